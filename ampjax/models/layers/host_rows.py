"""Embeddings whose rows lie in a table in host memory."""

from __future__ import annotations

from ampjax.errors import SettingsError
from ampjax.nn import TableEmbed
from ampjax.sparse import Table


def check_table(model: str, table: Table, n_rows: int, features: int) -> None:
    """Checks a table of rows.

    Args:
      model: The model's name, for errors.
      table: The table.
      n_rows: How many ids there are.
      features: Features of a row.

    Raises:
      SettingsError: If the table has fewer rows than there are ids, or rows of another shape.
    """
    if table.n_rows < n_rows or table.shape[1:] != (features,):
        wanted = f"at least {n_rows} rows of {features} numbers"
        got = f"{table.n_rows} rows of shape {table.shape[1:]}"
        raise SettingsError(f"{model}, `table`", wanted, got, "Make the table as large as the vocabulary.")


def table_of(model: str, table: Table, n_rows: int, features: int) -> TableEmbed:
    """A layer that looks rows of a table up.

    Args:
      model: The model's name, for errors.
      table: The table.
      n_rows: How many ids there are.
      features: Features of a row.

    Returns:
      The layer.

    Raises:
      SettingsError: As `check_table`.
    """
    layer = TableEmbed(table)
    check_table(model, table, n_rows, features)
    return layer
