"""How long it took to notice what had happened, and to go on."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence


def summary(seconds: Sequence[float]) -> dict[str, float] | None:
    """The median and the worst; None if there were none.

    Args:
      seconds: How long it took, each time.
    """
    if seconds:
        return {"median": statistics.median(seconds), "worst": max(seconds)}
    return None


def words(
    of: Mapping[str, float] | None,
    digits: int = 2,
) -> str:
    """A summary in a table's cell; empty for None.

    Args:
      of: What `summary` gave.
      digits: Digits behind the point.

    >>> words(summary([1.0, 2.0, 4.0])), words(summary([]))
    ('2.00, 4.00', '')
    """
    return f"{of['median']:.{digits}f}, {of['worst']:.{digits}f}" if of else ""
