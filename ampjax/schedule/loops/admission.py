"""Admission: instances are let in, and what is pumped for them travels on."""

from __future__ import annotations

import numpy as np

from ampjax.schedule import columns as c
from ampjax.schedule.columns import Tables
from ampjax.schedule.loops.compiled import entry, inner
from ampjax.schedule.loops.dispatches import give_slots
from ampjax.schedule.loops.queues import line_of
from ampjax.schedule.loops.ranges import take_live, take_rows
from ampjax.schedule.loops.travel import by_rank, emit, end_instance


@entry
def admit(places, first, pick_first, n_rows, ids, order, train, *tables):
    """Lets instances in: their counters are set, and what is pumped for them gets slots and travels on.

    Args:
      places: `[n]`: their places among all programs.
      first: Where each program begins: see `Store`.
      pick_first: Where its picks begin.
      n_rows: How many rows it has.
      ids: Its instance's number.
      order: The pumps, as numbers of stages, in the order in which they pump.
      train: Whether the instances train.
      *tables: The tables, which have room.
    """
    t = Tables(*tables)
    admitted, n_pumped = np.empty(len(places), np.int64), 0
    in_flight = t.clock[c.N_TRAIN] + t.clock[c.N_INFER] + len(places)
    t.clock[c.MOST_IN_FLIGHT] = max(t.clock[c.MOST_IN_FLIGHT], in_flight)
    for k in range(len(places)):
        place = places[k]
        t.n_vacant[0] -= 1
        i = np.int64(t.vacant[t.n_vacant[0]])
        admitted[k] = i
        length = first[place + 1] - first[place]
        t.instances[i, c.LINE], t.instances[i, c.PICK] = first[place], pick_first[place]
        t.instances[i, c.PLACE], t.instances[i, c.ID] = place, ids[place]
        t.instances[i, c.TRAIN], t.instances[i, c.AGE] = train, t.clock[c.ADMITTED]
        t.instances[i, c.LENGTH_OF], t.instances[i, c.N_ROWS] = length, n_rows[place]
        t.instances[i, c.LIVE], t.instances[i, c.ROWS_AT] = take_live(t, length), take_rows(t, n_rows[place])
        t.clock[c.ADMITTED] += 1
        t.clock[c.N_TRAIN if train else c.N_INFER] += 1
        n_pumped += begin(t, i)
    pump(t, pumped(t, admitted, n_pumped), order)


@inner
def begin(t, i):
    """Sets the counters of an instance's messages; returns how many are pumped. One for which there is nothing to wait has ended."""
    alive, n_pumped, line, v = 0, 0, t.instances[i, c.LINE], t.instances[i, c.LIVE]
    for _ in range(t.instances[i, c.LENGTH_OF]):
        t.live[v, c.NEED], t.live[v, c.LEFT], t.live[v, c.SLOT] = t.lines[line, c.N_IN], t.lines[line, c.OWED], i
        kind = t.stages[t.lines[line, c.STAGE], c.KIND]
        alive += kind != c.ENDS
        n_pumped += kind == c.PUMPS
        line, v = line + 1, v + 1
    t.instances[i, c.ALIVE] = alive
    if alive == 0:
        end_instance(t, i)
    return n_pumped


@inner
def pumped(t, admitted, n):
    """The `n` messages that are pumped for instances."""
    messages, at = np.empty(n, np.int32), 0
    for i in admitted:
        for k in range(t.instances[i, c.LENGTH_OF]):
            if t.lines[t.instances[i, c.LINE] + k, c.STAGE] < 0:
                messages[at] = t.instances[i, c.LIVE] + k
                at += 1
    return messages


@inner
def pump(t, messages, order):
    """Pumped messages get slots and travel on, pump by pump, in this order."""
    n = len(messages)
    ranks = np.zeros(len(order) + 1, np.int32)
    for k in range(len(order)):
        ranks[order[k]] = k
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
