"""Resets the tables after an interrupt or an error: nothing is in flight; counters of nodes and clocks stay."""

from __future__ import annotations

import numpy as np

from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables

QUEUE_COLUMNS = [
    c.HEAD,
    c.TAIL,
    c.ITEMS,
    c.ITEM_ROWS,
    c.LONGEST,
    c.UNDER_WAY,
    c.SINCE,
    c.SORTED,
    c.N_SORTED,
    c.SORTED_BORN,
]
"""The columns of a queue that describe its messages."""


def forget_all(t: Tables, capacities: np.ndarray) -> None:
    """Gives everything back: messages, slots, ranges, the places of instances. Programs stay.

    Args:
      t: The tables.
      capacities: `[arenas]`: slots of each arena.
    """
    t.queues[:, QUEUE_COLUMNS] = 0
    t.queues[:, c.ACTIVE_AT] = -1
    t.active[:] = 0
    t.clock[[c.LIVE_TOP, c.ROWS_TOP, c.N_ENDED, c.N_TRAIN, c.N_INFER]] = t.clock[c.WOKEN :] = 0
    t.clock[[c.N_HOLDING, c.CLOSED]] = t.nodes[:, c.HELD_SINCE] = t.nodes[:, c.AWAITED :] = 0
    t.ranges[:] = -1
    t.live[:] = 0
    t.instances[:] = 0
    n = t.clock[c.N_VACANT] = len(t.instances)
    t.idle[c.VACANT, :n] = np.arange(
        n - 1,
        -1,
        -1,
    )
    t.free[:, c.N_FREE] = capacities
    for arena, capacity in enumerate(capacities.tolist()):
        t.free[arena, c.FREE : c.FREE + capacity] = np.arange(
            capacity,
            0,
            -1,
        )
