"""Lines of dispatches that compiled loops have decided together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.layout import columns as c

Capacities = Callable[[int], Sequence[int]]
"""From a stage's number to how many rows the arena of each of its outputs has."""


class DecidedLines(NamedTuple):
    """The arrays that loops have written about some dispatches.

    Args:
      lines: `[n, columns]`: a line for each dispatch; see `columns`.
      packs: int32: memory in which their packs lie, one behind the other.
      start: Where the first pack begins in `packs`.
      due: `[d, 4]`: the updates that are due: node, gradient rows, their summed staleness, the version that they make.
    """

    lines: np.ndarray
    packs: np.ndarray
    start: int
    due: np.ndarray


class Decisions:
    """Dispatches that have been decided together. The objects are made on demand, if `says_all` each time anew.

    Args:
      decided: What loops have written about them.
      make: Makes the objects.
      says_all: Whether `decided` says all about them that there is to say, so that nobody needs the objects.
    """

    def __init__(
        self,
        decided: DecidedLines,
        make: Callable[[], list[Dispatch]],
        says_all: bool,
    ):
        self.decided = decided
        self.says_all = says_all
        self._make = make

    def __len__(self) -> int:
        return len(self.decided.lines)

    def __iter__(self) -> Iterator[Dispatch]:
        return iter(self._make())

    @property
    def n_messages(self) -> int:
        """Messages of all dispatches together."""
        return int(self.decided.lines[:, c.N_MESSAGES].sum())

    @property
    def last(self) -> int:
        """The number of the last one."""
        return int(self.decided.lines[-1, c.NUMBER])
