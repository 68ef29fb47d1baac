"""Queues: lists of messages through `live`, each in order of arrival until more wait than one dispatch takes; then the oldest instances go first."""

from __future__ import annotations

import numpy as np

from ampjax.schedule import columns as c
from ampjax.schedule.loops.compiled import inner


@inner
def line_of(t, v):
    """The line of a message's program."""
    i = t.live[v, c.SLOT]
    return t.instances[i, c.LINE] + v - t.instances[i, c.LIVE]


@inner
def push(t, q, v, rows):
    """Puts a message at the end of a queue."""
    queue = t.queues[q]
    t.live[v, c.NEXT], t.live[v, c.BORN] = -1, t.clock[c.NOW]
    if queue[c.ITEMS] == 0:
        queue[c.HEAD] = v
    else:
        t.live[queue[c.TAIL], c.NEXT] = v
    queue[c.TAIL] = v
    queue[c.ITEMS] += 1
    queue[c.WAITING] += rows
    queue[c.LONGEST] = max(queue[c.LONGEST], queue[c.ITEMS])
    if queue[c.AT] < 0:
        worker = t.stages[q // 3, c.WORKER]
        t.clock[c.ENTERED] += 1
        queue[c.SINCE] = t.clock[c.ENTERED]
        queue[c.AT] = t.n_active[worker]
        t.active[worker, t.n_active[worker]] = q
        t.n_active[worker] += 1


@inner
def leave(t, q):
    """A queue is empty: its worker has one less."""
    worker, at = t.stages[q // 3, c.WORKER], t.queues[q, c.AT]
    t.n_active[worker] -= 1
    last = t.active[worker, t.n_active[worker]]
    t.active[worker, at] = last
    t.queues[last, c.AT] = at
    t.queues[q, c.AT] = -1


@inner
def age_of(t, v):
    """When a message's instance was admitted."""
    return t.instances[t.live[v, c.SLOT], c.AGE]


@inner
def merge(t, a, b):
    """Two lists in order of age as one; of equal age those of `a` go first. Gives its first and its last message."""
    live = t.live
    first = last = -1
    while a >= 0 and b >= 0:
        if age_of(t, b) < age_of(t, a):
            v, b = b, live[b, c.NEXT]
        else:
            v, a = a, live[a, c.NEXT]
        if last < 0:
            first = v
        else:
            live[last, c.NEXT] = v
        last = v
    rest = a if a >= 0 else b
    if last < 0:
        first = rest
    else:
        live[last, c.NEXT] = rest
    while rest >= 0:
        last, rest = rest, live[rest, c.NEXT]
    return first, last


@inner
def in_order(t, head):
    """A list sorted by age, equal ones as they stand: runs that are in order are merged, two by two."""
    live = t.live
    runs = np.empty(64, np.int64)  # run k is as long as all those behind it together, so there are few
    lengths = np.empty(64, np.int64)
    n = 0
    while head >= 0:
        runs[n], lengths[n] = head, 1
        last, follower = head, live[head, c.NEXT]
        while follower >= 0 and age_of(t, last) <= age_of(t, follower):
            last, follower = follower, live[follower, c.NEXT]
            lengths[n] += 1
        live[last, c.NEXT] = -1
        head = follower
        n += 1
        while n > 1 and lengths[n - 2] <= 2 * lengths[n - 1]:
            runs[n - 2], _ = merge(t, runs[n - 2], runs[n - 1])
            lengths[n - 2] += lengths[n - 1]
            n -= 1
    while n > 1:
        runs[n - 2], _ = merge(t, runs[n - 2], runs[n - 1])
        n -= 1
    return runs[0]


@inner
def oldest_first(t, q):
    """Puts the messages of the oldest instances first."""
    queue, live = t.queues[q], t.live
    if queue[c.N_SORTED] == queue[c.ITEMS]:
        return
    if queue[c.N_SORTED] == 0:
        queue[c.SORTED_BORN] = live[queue[c.HEAD], c.BORN]
        head, late = -1, queue[c.HEAD]
    else:
        head, late = queue[c.HEAD], live[queue[c.SORTED], c.NEXT]
        live[queue[c.SORTED], c.NEXT] = -1
    late = in_order(t, late)
    if head >= 0 and age_of(t, queue[c.SORTED]) <= age_of(t, late):  # all that has come is younger
        live[queue[c.SORTED], c.NEXT] = late
        last = late
        while live[last, c.NEXT] >= 0:
            last = live[last, c.NEXT]
    else:
        head, last = merge(t, head, late)
        queue[c.HEAD] = head
    queue[c.TAIL] = queue[c.SORTED] = last
    queue[c.N_SORTED] = queue[c.ITEMS]


@inner
def born(t, q):
    """When a queue began to wait."""
    queue = t.queues[q]
    return queue[c.SORTED_BORN] if queue[c.N_SORTED] else t.live[queue[c.HEAD], c.BORN]


@inner
def fitting(t, q):
    """How many of a queue's first messages make one dispatch, at least one; their input rows and the rows of each of their outputs."""
    queue = t.queues[q]
    n, rows, out, v = 0, 0, 0, queue[c.HEAD]
    while v >= 0:
        line = t.lines[line_of(t, v)]
        more_rows, more_out = rows + line[c.ROWS], out + line[c.SIZE]
        over = more_rows > queue[c.MAX_IN] or n + 1 > queue[c.MAX_ITEMS] or more_out > queue[c.MAX_OUT]
        if over and n > 0:
            break
        n, rows, out, v = n + 1, more_rows, more_out, t.live[v, c.NEXT]
    return n, rows, out
