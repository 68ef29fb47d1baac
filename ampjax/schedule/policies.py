"""Policies: those of ours have numbers, by which compiled loops compare queues; users' are asked with views of the queues."""

from __future__ import annotations

import numpy as np

from ampjax.sched.plan import Plan
from ampjax.sched.policy import (
    Policy,
    backward_first,
    balanced,
    largest,
    one_forward_one_backward,
    wavefront,
)
from ampjax.sched.stages import Stage
from ampjax.schedule import columns as c
from ampjax.schedule.columns import Tables
from ampjax.schedule.dispatch import DIRECTIONS

NUMBERS: dict[Policy, int] = {
    backward_first: 0,
    largest: 1,
    balanced: 2,
    wavefront: 3,
    one_forward_one_backward: 4,
}
"""As in `loops.choice`."""

BY_ASKING = -1
"""A policy that has no number."""


def number_of(policy: Policy) -> int:
    """A policy's number, or `BY_ASKING`."""
    return NUMBERS.get(policy, BY_ASKING)


class QueueView:
    """A queue as policies see it: what `sched.queues.Queue` tells.

    Args:
      plan: The plan.
      t: The tables.
      q: Its line.
    """

    def __init__(self, plan: Plan, t: Tables, q: int):
        self.stage: Stage = plan.stages[q // 3]
        self.direction = DIRECTIONS[q % 3]
        self.backward = q % 3 == c.BACKWARD or (q % 3 == c.FORWARD and self.stage.kind == "loss")
        queue = t.queues[q]
        self.number, self.max_rows = q, int(queue[c.MAX_ROWS])
        self.items, self.rows, self.longest = (int(queue[k]) for k in (c.ITEMS, c.WAITING, c.LONGEST))
        self.under_way, self.ready = int(queue[c.UNDER_WAY]), min(self.rows, self.max_rows)
        self.born = int(queue[c.SORTED_BORN] if queue[c.N_SORTED] else t.live[queue[c.HEAD], c.BORN])

    def __repr__(self) -> str:
        return f"Queue({self.direction} of `{self.stage.name}`: {self.items} messages, {self.rows} rows)"


def views(plan: Plan, t: Tables, queues: np.ndarray) -> list[QueueView]:
    """Some queues, in the order in which they ceased to be empty."""
    return [QueueView(plan, t, q) for q in queues[np.argsort(t.queues[queues, c.SINCE])].tolist()]
