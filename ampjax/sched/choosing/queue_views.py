"""Queues as policies see queues: the loops keep lines of a table; a policy in Python gets a `Queue` object for each line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import DIRECTIONS
from ampjax.sched.layout import columns as c

VIEW_COLUMNS = c.UNDER_WAY, c.ITEMS, c.ITEM_ROWS, c.MAX_ROWS, c.LONGEST, c.SINCE
"""The columns of a queue's line that `Queue.update` gets. All but `under_way` change only when messages come or go."""


class Queue:
    """A queue as policies see queues: messages of one stage that can be dispatched together in one direction, valid until the next event.

    Args:
      plan: The plan.
      q: The queue's line.
      states_of: Gives the states of the messages in a line.

    Attributes:
      stage, direction: The stage that its messages wait for, and the direction of their dispatch.
      backward: Whether its dispatch computes gradients: it holds backward messages, or messages of a loss.
      items: The number of messages in it.
      rows: The number of their rows.
      max_rows: The number of rows of a full dispatch.
      ready: The number of rows that one dispatch can take: `rows`, but at most `max_rows`.
      born: When its first message, the next to go, became ready: the number of the dispatch that made it so, lower for older ones.
      longest: The largest number of messages that have waited at once.
      under_way: For a forward queue: messages of the stage that have been dispatched forward but not yet backward.
    """

    def __init__(
        self,
        plan: Plan,
        q: int,
        states_of: Callable[[int], np.ndarray],
    ):
        self.stage = plan.stages[q // c.N_DIRECTIONS]
        self.direction = DIRECTIONS[q % c.N_DIRECTIONS]
        self.backward = q % c.N_DIRECTIONS == c.BACKWARD or (
            q % c.N_DIRECTIONS == c.FORWARD and self.stage.kind.starts_backward
        )
        self.number = q
        self._states_of = states_of
        self.items = self.rows = self.max_rows = self.longest = self.under_way = self.ready = (
            self.born
        ) = 0

    def update(self, shown: Sequence[int]) -> None:
        """Updates the attributes from the queue's line.

        Args:
          shown: The columns `VIEW_COLUMNS` of the queue's line, then the number of the dispatch that made its first message ready.
        """
        self.under_way, self.items, self.rows, self.max_rows, self.longest, _, self.born = shown
        self.ready = min(self.rows, self.max_rows)

    @property
    def states(self) -> np.ndarray:
        """`[items, width]`: the states of the messages that wait, in the order of the queue."""
        return self._states_of(self.number)

    def __repr__(self) -> str:
        return f"Queue({self.direction} of `{self.stage.name}`: {self.items} messages, {self.rows} rows)"
