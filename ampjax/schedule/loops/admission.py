"""Admission: instances are let in, and what is pumped for them travels on."""

from __future__ import annotations

import numpy as np

from ampjax.schedule import columns as c
from ampjax.schedule.columns import Tables
from ampjax.schedule.loops.compiled import entry, inlined
from ampjax.schedule.loops.dispatches import give_slots
from ampjax.schedule.loops.ranges import take_live, take_rows
from ampjax.schedule.loops.travel import emit, end_instance

PUMP, HEAD, TAIL = range(3)
"""Columns of `pumps`: which it is; the first and the last of its messages."""


@entry
def admit(slots, places, programs, pumps, *tables):
    """Starts instances that have been given slots: their counters are set, and what is pumped for them gets slots and travels on.

    Args:
      slots: `[n]`: the instances' slots.
      places: `[n]`: their programs' places.
      programs: `Store.programs`.
      pumps: `[pumps, 3]`: the pumps, as numbers of stages, in the order in which they pump; two columns to be written.
      *tables: The tables, which have room.
    """
    t = Tables(*tables)
    forget(pumps)
    for k in range(len(slots)):
        i, place = slots[k], places[k]
        length, rows = programs[place, c.P_LENGTH], programs[place, c.P_ROWS]
        t.instances[i, c.LINE], t.instances[i, c.PICK] = programs[place, c.P_LINE], programs[place, c.P_PICK]
        t.instances[i, c.PLACE], t.instances[i, c.LENGTH_OF], t.instances[i, c.N_ROWS] = place, length, rows
        t.instances[i, c.LIVE], t.instances[i, c.ROWS_AT] = take_live(t, length), take_rows(t, rows)
        begin(t, i, pumps)
    pump(t, pumps)


@entry
def start(messages, pumps, *tables):
    """Pumped messages of instances in flight get slots and travel on; see `admit`."""
    t = Tables(*tables)
    forget(pumps)
    for v in messages:
        note(t, np.int64(v), np.int64(t.lines[t.live[v, c.INVOCATION], c.STAGE]), pumps)
    pump(t, pumps)


@entry
def close(slots, *tables):
    """Nothing more is pumped for instances; those of which nothing is left have ended."""
    t = Tables(*tables)
    for i in slots:
        t.instances[i, c.ALIVE] -= 1
        if t.instances[i, c.ALIVE] == 0:
            end_instance(t, i)


@inlined
def begin(t, i, pumps):
    """Sets the counters of an instance's messages, and notes those that are pumped."""
    alive, line, v = 0, t.instances[i, c.LINE], t.instances[i, c.LIVE]
    for _ in range(t.instances[i, c.LENGTH_OF]):
        t.live[v, c.NEED], t.live[v, c.LEFT] = t.lines[line, c.N_IN], t.lines[line, c.OWED]
        t.live[v, c.SLOT], t.live[v, c.INVOCATION] = i, line
        stage = np.int64(t.lines[line, c.STAGE])
        alive += t.stages[stage, c.KIND] != c.ENDS
        if stage < 0:
            note(t, v, stage, pumps)
        line, v = line + 1, v + 1
    t.instances[i, c.ALIVE] += alive


@inlined
def forget(pumps):
    """Nothing has been pumped."""
    for k in range(len(pumps)):
        pumps[k, HEAD] = pumps[k, TAIL] = -1


@inlined
def note(t, v, stage, pumps):
    """Gives a pumped message slots, and puts it at the end of its pump's list."""
    give_slots(t, v, stage)
    t.live[v, c.TOGETHER] = -1
    for k in range(len(pumps)):
        if pumps[k, PUMP] != stage:
            continue
        if pumps[k, TAIL] < 0:
            pumps[k, HEAD] = v
        else:
            t.live[pumps[k, TAIL], c.TOGETHER] = v
        pumps[k, TAIL] = v


@inlined
def pump(t, pumps):
    """What has been noted travels on, pump by pump."""
    for k in range(len(pumps)):
        if pumps[k, HEAD] >= 0:
            emit(t, pumps[k, HEAD])
