"""Queues as policies see them. Loops keep them as lines of a table; a policy in Python gets an object for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched import columns as c
from ampjax.sched.decisions.dispatch import DIRECTIONS

VIEW_COLUMNS = c.UNDER_WAY, c.ITEMS, c.ITEM_ROWS, c.MAX_ROWS, c.LONGEST, c.SINCE
"""The columns of a queue that views show; then follows when it began to wait. All but the first change only when messages come or go."""


class Queue:
    """A queue as policies see it. It holds until the next event.

    Args:
      plan: The plan.
      q: The queue's line.
      states_of: Gives the states of the messages in a line.

    Attributes:
      stage, direction: What it waits for.
      backward: Whether dispatching it answers messages: it holds backward messages, or a loss's, which start the way back.
      items: Messages that wait.
      rows: Their rows.
      max_rows: Rows from which on a dispatch is full.
      ready: Rows that one dispatch can take.
      born: When it began to wait: the number of the dispatch that made the first message ready.
      longest: The most messages that have waited.
      under_way: Forward: messages that have been dispatched and whose gradients have not.
    """

    def __init__(self, plan: Plan, q: int, states_of: Callable[[int], np.ndarray]):
        self.stage, self.direction = plan.stages[q // c.N_DIRECTIONS], DIRECTIONS[q % c.N_DIRECTIONS]
        self.backward = q % c.N_DIRECTIONS == c.BACKWARD or (
            q % c.N_DIRECTIONS == c.FORWARD and self.stage.kind.starts_backward
        )
        self.number, self._states_of = q, states_of
        self.items = self.rows = self.max_rows = self.longest = self.under_way = self.ready = self.born = 0

    def update(self, shown: Sequence[int]) -> None:
        """Takes what the queue's line says (`VIEW_COLUMNS`), and when it began to wait.

        Args:
          shown: The columns `VIEW_COLUMNS` of the queue's line, then the dispatch that made its first message ready.
        """
        self.under_way, self.items, self.rows, self.max_rows, self.longest, _, self.born = shown
        self.ready = min(self.rows, self.max_rows)

    @property
    def states(self) -> np.ndarray:
        """`[items, width]`: the states of the messages that wait, in the order in which they stand."""
        return self._states_of(self.number)

    def __repr__(self) -> str:
        return f"Queue({self.direction} of `{self.stage.name}`: {self.items} messages, {self.rows} rows)"
