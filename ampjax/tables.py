"""Tables that are readable in a terminal of 80 columns."""

from __future__ import annotations

from rich import box
from rich.table import Column, Table


def compact(*headers: str, title: str | None = None) -> Table:
    """A table with narrow gaps: the first column for names, the others for numbers.

    Args:
      *headers: Column titles; a long one is written in two lines, with a line break in it.
      title: What stands above.
    """
    columns = [Column(header, justify="right" if i else "left", vertical="bottom") for i, header in enumerate(headers)]
    return Table(*columns, title=title, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
