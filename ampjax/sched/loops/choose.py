"""Choosing: which queue a worker takes next."""

from __future__ import annotations

import numpy as np

from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables
from ampjax.sched.loops.compiled import entry, inlined
from ampjax.sched.loops.queues import has_room


@inlined
def rank(t, q, policy):
    """Ranks a queue as compiled policies do (`decisions.policy`).

    Args:
      t: The tables.
      q: The queue, which is not empty.
      policy: The policy's number.

    Returns:
      Four integers; the queue of the lowest goes first. The last one says when the queue ceased to be empty, so that of equal ones that which has waited longest
      goes first.
    """
    stage = q // c.N_DIRECTIONS
    direction = q % c.N_DIRECTIONS
    # A loss turns forward messages into gradients at once, so its queue counts as one on the way
    # back.
    back = direction == c.BACKWARD or (direction == c.FORWARD and t.stages[stage, c.KIND] == c.ENDS)
    # More rows than one dispatch holds make a queue no more urgent.
    ready = min(
        t.queues[q, c.ITEM_ROWS],
        t.queues[q, c.MAX_ROWS],
    )
    # Sorting by age moves the message that has waited longest from the head, so its time is kept.
    if t.queues[q, c.N_SORTED]:
        born = t.queues[q, c.SORTED_BORN]
    else:
        born = np.int64(t.live[t.queues[q, c.HEAD], c.BORN])
    second = np.int64(0 if back else 1)
    # The first two integers are the policy's own; the lower goes first.
    if policy == c.LARGEST:
        first = -ready
    # Each ready row outweighs some dispatches of waiting, a gradient's row more of them.
    elif policy == c.BALANCED:
        first = born - ready * (c.BACKWARD_ROW_WEIGHT if back else c.ROW_WEIGHT)
    # Forward before backward; forward the early stages first, backward the late ones.
    elif policy == c.WAVEFRONT:
        first = 1 - second
        second = -stage if back else stage
    # Transfers start before computations, which may then overlap them.
    else:
        first = 1 - t.stages[stage, c.IS_TRANSFER]
    return first, second, born, t.queues[q, c.SINCE]


@inlined
def choose(t, worker, policy, spare):
    """Chooses the queue that a worker takes next.

    Args:
      t: The tables.
      worker: The worker.
      policy: The policy's number.
      spare: See `decide`.

    Returns:
      The queue; `NOTHING` if nothing can be dispatched, `WAITS` if the policy wants the worker to wait.
    """
    best = np.int64(c.NOTHING)
    lowest = (
        np.int64(0),
        np.int64(0),
        np.int64(0),
        np.int64(0),
    )
    for k in range(t.active[worker, c.N_ACTIVE]):
        q = np.int64(t.active[worker, c.QUEUES + k])
        # First what can't run at all: a forward dispatch needs slots for its outputs.
        if not has_room(t, q, spare):
            continue
        # Then what the policy holds back: enough messages are between this stage and the end.
        goes_forth = (
            q % c.N_DIRECTIONS == c.FORWARD and t.stages[q // c.N_DIRECTIONS, c.KIND] != c.ENDS
        )
        if (
            policy == c.ONE_FORWARD_ONE_BACKWARD
            and goes_forth
            and t.queues[q, c.UNDER_WAY] >= t.stages[q // c.N_DIRECTIONS, c.WORKERS_AHEAD]
        ):
            # The worker waits on purpose, unless another of its queues can go.
            best = np.int64(c.WAITS) if best < 0 else best
            continue
        # Of what is left, the lowest rank; ranks end with a time that no two queues share.
        ranked = rank(t, q, policy)
        if best < 0 or ranked < lowest:
            best = q
            lowest = ranked
    return best


@entry
def list_ready(worker, spare, queues, *tables):
    """The queues of a worker that can be dispatched, for users' policies.

    Args:
      worker: The worker.
      spare: See `decide`.
      queues: `[queues]` int64, to be written: the queues.
      *tables: The tables.

    Returns:
      How many there are.
    """
    t = Tables(*tables)
    n = 0
    for k in range(t.active[worker, c.N_ACTIVE]):
        if has_room(
            t,
            np.int64(t.active[worker, c.QUEUES + k]),
            spare,
        ):
            queues[n] = t.active[worker, c.QUEUES + k]
            n += 1
    return n
