"""Choosing: which queue a worker takes next."""

from __future__ import annotations

import numpy as np

from ampjax.schedule import columns as c
from ampjax.schedule.loops.compiled import inner
from ampjax.schedule.loops.queues import born


@inner
def rank(t, q, policy):
    """What the policies of these numbers compare: the lowest goes first (`policy.POLICIES`)."""
    queue = t.queues[q]
    stage, direction = q // 3, q % 3
    back = direction == c.BACKWARD or (direction == c.FORWARD and t.stages[stage, c.KIND] == c.ENDS)
    ready = min(queue[c.WAITING], queue[c.MAX_ROWS])
    since = born(t, q)
    if policy == 1:
        return -ready, 1 - back, since, queue[c.SINCE]
    if policy == 2:
        return since - ready * (6 if back else 4), 1 - back, since, queue[c.SINCE]
    if policy == 3:
        return np.int64(back), -stage if back else stage, since, queue[c.SINCE]
    return 1 - t.stages[stage, c.IS_TRANSFER], 1 - back, since, queue[c.SINCE]


@inner
def choose(t, worker, policy):
    """The queue that a worker takes next; -1 if nothing waits for it, -2 if the policy wants it to wait."""
    best = -1 if t.n_active[worker] == 0 else -2
    lowest = (np.int64(0), np.int64(0), np.int64(0), np.int64(0))
    for k in range(t.n_active[worker]):
        q = np.int64(t.active[worker, k])
        goes_forth = q % 3 == c.FORWARD and t.stages[q // 3, c.KIND] != c.ENDS
        if policy == 4 and goes_forth and t.queues[q, c.UNDER_WAY] >= t.stages[q // 3, c.AHEAD]:
            continue
        own = rank(t, q, policy)
        if best < 0 or own < lowest:
            best, lowest = q, own
    return best
