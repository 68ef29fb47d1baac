"""What the scheduler tells a driver to do. A dispatch is data: integers, names and arrays, so it can travel to another process."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ampjax.sched.dispatch import Change

DIRECTIONS = "forward", "backward", "infer", "update"


class Dispatch(NamedTuple):
    """One action for a worker: run a stage on some messages, then change some parameters.

    Args:
      number: Dispatches are numbered in the order of issue.
      worker: Who runs it.
      stage: The number of the stage that it runs; -1 for parameter changes only.
      direction: One of `DIRECTIONS`.
      messages: `[n]` int32: the messages, by their numbers among those in flight.
      lines: `[n]` int32: their invocations, by their numbers among all programs (`Store.find` tells instances).
      slots: `[s]` int32: the arena slots of the rows of each port, then of each output.
      sizes: `[ports + outputs]` int64: how many of these each has.
      n_rows: Input rows of port 0.
      changes: Parameter changes that follow.
    """

    number: int
    worker: int
    stage: int
    direction: str
    messages: np.ndarray
    lines: np.ndarray
    slots: np.ndarray
    sizes: np.ndarray
    n_rows: int
    changes: tuple[Change, ...] = ()

    @property
    def rows(self) -> list[np.ndarray]:
        """The slots of each port's rows, then of each output's."""
        return np.split(self.slots, np.cumsum(self.sizes)[:-1])
