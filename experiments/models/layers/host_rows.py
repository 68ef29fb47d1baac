"""Embeddings whose rows lie in a table in host memory."""

from __future__ import annotations

from ampjax.errors import SettingsError
from ampjax.nn.layers import ChosenEmbed
from ampjax.sparse import Table


def check_table(
    model: str,
    table: Table | ChosenEmbed,
    n_rows: int,
    features: int,
) -> None:
    """Checks a table of rows.

    Args:
      model: The model's name, for errors.
      table: The table, or a layer that has chosen where its rows lie.
      n_rows: How many ids there are.
      features: Features of a row.

    Raises:
      SettingsError: If the table has fewer rows than there are ids, or rows of another shape.
    """
    if table.shape[0] < n_rows or table.shape[1:] != (features,):
        wanted = f"at least {n_rows} rows of {features} numbers"
        got = f"{table.shape[0]} rows of shape {table.shape[1:]}"
        raise SettingsError(
            f"{model}, `table`", wanted, got, "Make the table as large as the vocabulary."
        )
