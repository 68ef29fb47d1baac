"""Embeddings whose rows lie in a table in host memory."""

from __future__ import annotations

from ampjax.errors import SettingsError
from ampjax.nn import ChosenEmbed, TableEmbed
from ampjax.sparse import Table


def check_table(model: str, table: Table | ChosenEmbed, n_rows: int, features: int) -> None:
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
        raise SettingsError(f"{model}, `table`", wanted, got, "Make the table as large as the vocabulary.")


def table_of(model: str, table: Table | ChosenEmbed, n_rows: int, features: int) -> TableEmbed | ChosenEmbed:
    """A layer that looks rows up.

    Args:
      model: The model's name, for errors.
      table: The table, or a layer that has chosen where its rows lie.
      n_rows: How many ids there are.
      features: Features of a row.

    Returns:
      The layer.

    Raises:
      SettingsError: As `check_table`.
    """
    check_table(model, table, n_rows, features)
    return table if isinstance(table, ChosenEmbed) else TableEmbed(table)
