"""Numbers of things, in words."""

from __future__ import annotations


def count_of(n: int, thing: str) -> str:
    """Writes a number of things: `1 epoch`, `2 epochs`.

    Args:
      n: How many.
      thing: What one of them is called; the plural takes an s.

    >>> count_of(1, "epoch"), count_of(0, "epoch"), count_of(2000, "row")
    ('1 epoch', '0 epochs', '2000 rows')
    """
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"
