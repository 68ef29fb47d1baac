"""Admission: instances are let in, and what is pumped for them travels on."""

from __future__ import annotations

import numpy as np

from ampjax.schedule import columns as c
from ampjax.schedule.loops.compiled import entry, inner
from ampjax.schedule.loops.dispatches import give_slots
from ampjax.schedule.loops.queues import line_of
from ampjax.schedule.loops.ranges import take_range
from ampjax.schedule.loops.travel import by_rank, emit, end_instance


@entry
def admit(t, places, first, pick_first, n_rows, ids, order, train):
    """Lets instances in: their counters are set, and what is pumped for them gets slots and travels on.

    Args:
      t: The tables, which have room.
      places: `[n]`: their places among all programs.
      first: Where each program begins: see `Store`.
      pick_first: Where its picks begin.
      n_rows: How many rows it has.
      ids: Its instance's number.
      order: The pumps, as numbers of stages, in the order in which they pump.
      train: Whether the instances train.
    """
    admitted = np.empty(len(places), np.int64)
    for k in range(len(places)):
        place = places[k]
        t.n_vacant[0] -= 1
        i = np.int64(t.vacant[t.n_vacant[0]])
        admitted[k] = i
        one, length = t.instances[i], first[place + 1] - first[place]
        one[c.LINE], one[c.PICK], one[c.PLACE], one[c.ID] = first[place], pick_first[place], place, ids[place]
        one[c.TRAIN], one[c.LENGTH_OF], one[c.N_ROWS], one[c.AGE] = train, length, n_rows[place], t.clock[c.ADMITTED]
        one[c.LIVE] = take_range(t.ranges[0], t.live[:, c.NEXT], length, t.clock, c.LIVE_TOP)
        one[c.ROWS_AT] = take_range(t.ranges[1], t.slots, n_rows[place], t.clock, c.ROWS_TOP)
        t.clock[c.ADMITTED] += 1
        t.clock[c.N_TRAIN if train else c.N_INFER] += 1
        alive = 0
        for n in range(length):
            line, v = t.lines[one[c.LINE] + n], one[c.LIVE] + n
            t.live[v, c.NEED], t.live[v, c.LEFT], t.live[v, c.SLOT] = line[c.N_IN], line[c.OWED], i
            alive += t.stages[line[c.STAGE], c.KIND] != c.ENDS
        one[c.ALIVE] = alive
        if alive == 0:
            end_instance(t, i)
    pump(t, admitted, order)


@inner
def pump(t, admitted, order):
    """What is pumped for the instances in the slots `admitted`, which have just been let in, travels on, pump by pump."""
    messages, n = np.empty(8, np.int32), 0
    ranks = np.zeros(len(order) + 1, np.int32)
    for k in range(len(order)):
        ranks[order[k]] = k
    for i in admitted:
        one = t.instances[i]
        for k in range(one[c.LENGTH_OF]):
            if t.stages[t.lines[one[c.LINE] + k, c.STAGE], c.KIND] == c.PUMPS:
                messages, n = added(messages, n, one[c.LIVE] + k)
    messages = messages[:n].copy()
    lines, own = np.empty(n, np.int32), np.empty(n, np.int32)
    for k in range(n):
        lines[k] = line_of(t, messages[k])
        own[k] = ranks[t.lines[lines[k], c.STAGE]]
    give_slots(t, messages, lines)
    messages = by_rank(messages, own, len(order))
    start = 0
    for k in range(1, n + 1):
        if k == n or t.lines[line_of(t, messages[k]), c.STAGE] != t.lines[line_of(t, messages[start]), c.STAGE]:
            emit(t, messages[start:k])
            start = k


@inner
def added(array, n, value):
    """`array[n] = value`, in a longer array if need be."""
    if n == len(array):
        longer = np.empty(2 * n, array.dtype)
        longer[:n] = array
        array = longer
    array[n] = value
    return array, n + 1
