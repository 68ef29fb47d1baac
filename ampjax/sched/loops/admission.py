"""Admission: instances are let in, and what is pumped for them travels on."""

from __future__ import annotations

import numpy as np

from ampjax.sched import columns as c
from ampjax.sched.columns import Tables
from ampjax.sched.loops.compiled import entry, inner
from ampjax.sched.loops.dispatches import give_slots
from ampjax.sched.loops.queues import line_of
from ampjax.sched.loops.ranges import take_live, take_rows
from ampjax.sched.loops.travel import by_rank, emit, end_instance


@entry
def admit(slots, places, programs, order, *tables):
    """Starts instances that have been given slots: their counters are set, and what is pumped for them gets slots and travels on.

    Args:
      slots: `[n]`: the instances' slots.
      places: `[n]`: their programs' places.
      programs: `Store.programs`.
      order: The pumps, as numbers of stages, in the order in which they pump.
      *tables: The tables, which have room.
    """
    t = Tables(*tables)
    n_pumped = 0
    for k in range(len(slots)):
        i, place = slots[k], places[k]
        length, rows = programs[place, c.P_LENGTH], programs[place, c.P_ROWS]
        t.instances[i, c.LINE], t.instances[i, c.PICK] = programs[place, c.P_LINE], programs[place, c.P_PICK]
        t.instances[i, c.PLACE], t.instances[i, c.LENGTH_OF], t.instances[i, c.N_ROWS] = place, length, rows
        t.instances[i, c.LIVE], t.instances[i, c.ROWS_AT] = take_live(t, length), take_rows(t, rows)
        n_pumped += begin(t, i)
    pump(t, pumped(t, slots, n_pumped), order)


@entry
def start(messages, order, *tables):
    """Pumped messages of instances in flight get slots and travel on; see `admit`."""
    pump(Tables(*tables), messages, order)


@entry
def close(slots, *tables):
    """Nothing more is pumped for instances; those of which nothing is left have ended."""
    t = Tables(*tables)
    for i in slots:
        t.instances[i, c.ALIVE] -= 1
        if t.instances[i, c.ALIVE] == 0:
            end_instance(t, i)


@inner
def begin(t, i):
    """Sets the counters of an instance's messages; returns how many are pumped."""
    alive, n_pumped, line, v = 0, 0, t.instances[i, c.LINE], t.instances[i, c.LIVE]
    for _ in range(t.instances[i, c.LENGTH_OF]):
        t.live[v, c.NEED], t.live[v, c.LEFT], t.live[v, c.SLOT] = t.lines[line, c.N_IN], t.lines[line, c.OWED], i
        kind = t.stages[t.lines[line, c.STAGE], c.KIND]
        alive += kind != c.ENDS
        n_pumped += kind == c.PUMPS
        line, v = line + 1, v + 1
    t.instances[i, c.ALIVE] += alive
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
