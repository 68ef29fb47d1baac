"""The calls of a run that are measured: all, or a few calls of few sizes, with interpolation between."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

APART = 4
"""Measured sizes are so many times as large as one another, at least; between them times are interpolated."""


@dataclass
class Calls:
    """The choice of a run's calls that are made: the first few of each size.

    Args:
      most: Of each size, for one dispatch and for several in a call; with 0 the run only tells which calls there would be.
      sizes: The padded sizes for which calls are made, by key; None for all.
      check: Called before each call; what it raises ends the run.

    Attributes:
      seen: How many calls there were or would have been, by key, size, and whether several dispatches shared one.
    """

    most: float = math.inf
    sizes: Mapping[str, Iterable[int]] | None = None
    check: Callable[[], object] = lambda: None
    seen: Counter[tuple[str, int, bool]] = field(default_factory=Counter)

    def want(self, key: str, size: int, several: bool) -> bool:
        """Counts a call, and tells whether to make the call."""
        self.check()
        self.seen[key, size, several] += 1
        is_chosen = self.sizes is None or size in self.sizes.get(key, ())
        return is_chosen and self.seen[key, size, several] <= self.most


def few_sizes(seen: Iterable[tuple[str, int, bool]]) -> dict[str, set[int]]:
    """Chooses few of a run's sizes: the least and the largest of each key, and some between.

    Args:
      seen: Key and size of each call, as in `Calls.seen`.

    Returns:
      The sizes, by key.

    >>> found = few_sizes([("a", n, False) for n in (1, 4, 16, 24, 32, 48, 64)] + [("b", 8, True)])
    >>> {key: sorted(sizes) for key, sizes in found.items()}
    {'a': [1, 4, 16, 64], 'b': [8]}
    """
    sizes: dict[str, set[int]] = {}
    for key, size, _ in seen:
        sizes.setdefault(key, set()).add(size)
    for key, all_of_key in sizes.items():
        *others, largest = sorted(all_of_key)
        chosen = [min(all_of_key)]
        for size in others:
            if chosen[-1] * APART <= size and size * APART <= largest:
                chosen.append(size)
        sizes[key] = {*chosen, largest}
    return sizes
