"""Admission: instances are let in, and what is pumped for them travels on."""

from __future__ import annotations

import numpy as np

from ampjax.sched import columns as c
from ampjax.sched.columns import Tables
from ampjax.sched.loops.compiled import entry, inlined
from ampjax.sched.loops.queues import line_of, slot_of
from ampjax.sched.loops.ranges import power_of, take_live, take_rows
from ampjax.sched.loops.travel import emit, end_instance
from ampjax.unfold.program_keys import N_ROWS, PLACE

PUMP, HEAD, TAIL = range(3)
"""Columns of `pumps`: which it is; the first and the last of its messages."""

NO_PLACE = -1
"""The place of an instance that has no program."""


@entry
def open_all(ids, purpose, train, slots, *tables):
    """Gives instances slots, of which there are enough.

    Args:
      ids: `[n]`: the instances' numbers.
      purpose: What they are run for, as a number.
      train: Whether that is training.
      slots: `[n]` int64, to be written: their slots.
      *tables: The tables.
    """
    t, n = Tables(*tables), len(ids)
    for k in range(n):
        t.clock[c.N_VACANT] -= 1
        i = np.int64(t.idle[c.VACANT, t.clock[c.N_VACANT]])
        slots[k] = i
        t.instances[i, c.ID], t.instances[i, c.PURPOSE], t.instances[i, c.TRAIN] = ids[k], purpose, train
        t.instances[i, c.AGE] = t.clock[c.ADMITTED] + k
        t.instances[i, c.ALIVE], t.instances[i, c.LENGTH_OF], t.instances[i, c.PLACE] = 1, -1, NO_PLACE
    t.clock[c.ADMITTED] += n
    t.clock[c.N_TRAIN if train else c.N_INFER] += n
    t.clock[c.MOST_IN_FLIGHT] = max(t.clock[c.MOST_IN_FLIGHT], t.clock[c.N_TRAIN] + t.clock[c.N_INFER])


@entry
def admit(slots, places, programs, uses, pumps, numbers, rows_at, fed, *tables):
    """Starts instances that have been given slots: their counters are set, and what is pumped for them gets slots and travels on.

    Args:
      slots: `[n]`: the instances' slots.
      places: `[n]`: their programs' places.
      programs: `Store.programs`.
      uses: `Store.uses`.
      pumps: `[pumps, 3]`: the pumps, as numbers of stages, in the order in which they pump; two columns to be written.
      numbers: `[m, columns]`: what is pumped (`unfold.program_keys`).
      rows_at: `[n]` int64, to be written.
      fed: int64, to be written: where what is pumped belongs, the slots of its rows in the order of `numbers`.
      *tables: The tables.

    Returns:
      `STARTED`; or why nothing has been done: an instance has been `PUMPED_BEFORE`, or something `LACKS_ROOM`.
    """
    t = Tables(*tables)
    for i in slots:
        if t.instances[i, c.LENGTH_OF] >= 0:
            return c.PUMPED_BEFORE
    if not has_room_for(t, places, programs):
        return c.LACKS_ROOM
    forget(pumps)
    for k in range(len(slots)):
        i, place = slots[k], places[k]
        length, rows = programs[place, c.P_LENGTH], programs[place, c.P_ROWS]
        t.instances[i, c.LINE], t.instances[i, c.PICK] = programs[place, c.P_LINE], programs[place, c.P_PICK]
        t.instances[i, c.PLACE], t.instances[i, c.LENGTH_OF], t.instances[i, c.N_ROWS] = place, length, rows
        t.instances[i, c.LIVE], t.instances[i, c.ROWS_AT] = take_live(t, length), take_rows(t, rows)
        rows_at[k] = t.instances[i, c.ROWS_AT]
        t.clock[c.ASKED] += 1
        uses[programs[place, c.WAVE], c.USERS] += 1
        uses[programs[place, c.WAVE], c.USED] = t.clock[c.ASKED]
        begin(t, i, pumps)
    feed_all(t, numbers, rows_at, fed)
    pump(t, pumps)
    return c.STARTED


@entry
def start(messages, pumps, numbers, rows_at, fed, *tables):
    """Pumped messages of instances in flight get slots and travel on; see `admit`. `rows_at` says where in `slots` the rows of each instance's begin."""
    t = Tables(*tables)
    forget(pumps)
    for v in messages:
        note(t, np.int64(v), np.int64(t.lines[t.live[v, c.INVOCATION], c.STAGE]), pumps)
    feed_all(t, numbers, rows_at, fed)
    pump(t, pumps)


@entry
def close(slots, *tables):
    """Nothing more is pumped for instances; those of which nothing is left have ended."""
    t = Tables(*tables)
    for i in slots:
        t.instances[i, c.ALIVE] -= 1
        if t.instances[i, c.ALIVE] == 0:
            end_instance(t, i)


@entry
def finish(told, programs, uses, *tables):
    """Instances that have ended are told of: their slots and programs are free for others.

    Args:
      told: `[n, 2]` int64, to be written: their numbers, and whether they were training instances.
      programs: `Store.programs`.
      uses: `Store.uses`.
      *tables: The tables.
    """
    t, n = Tables(*tables), len(told)
    for k in range(n):
        i = np.int64(t.idle[c.ENDED, k])
        told[k, 0], told[k, 1] = t.instances[i, c.ID], t.instances[i, c.TRAIN]
        t.idle[c.VACANT, t.clock[c.N_VACANT] + k] = i
        place = t.instances[i, c.PLACE]
        if place >= 0 and programs[place, c.WAVE] >= 0:
            uses[programs[place, c.WAVE], c.USERS] -= 1
    t.clock[c.N_VACANT] += n
    t.clock[c.N_ENDED] = 0
    t.clock[c.N_FINISHED] += n


@inlined
def has_room_for(t, places, programs):
    """Whether tables and arenas have room for these programs, and for what is pumped."""
    live, rows = t.clock[c.LIVE_TOP], t.clock[c.ROWS_TOP]
    for place in places:
        live += np.int64(1) << power_of(programs[place, c.P_LENGTH])
        rows += np.int64(1) << power_of(programs[place, c.P_ROWS])
    if live > len(t.live) or rows > len(t.slots):
        return False
    for arena in range(len(t.free)):
        need = np.int64(0)
        for place in places:
            need += programs[place, c.PUMPED + arena]
        if need > t.free[arena, c.N_FREE]:
            return False
    return True


@inlined
def feed_all(t, numbers, rows_at, fed):
    """Writes where what is pumped belongs; `rows_at` moves on to where each instance's rows end."""
    at = 0
    for j in range(len(numbers)):
        k, n = numbers[j, PLACE], numbers[j, N_ROWS]
        for r in range(n):
            fed[at + r] = t.slots[rows_at[k] + r]
        rows_at[k] += n
        at += n


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
def give_own_slots(t, v, pump):
    """Gives a pumped message slots."""
    arena, line = t.stages[pump, c.ARENA], line_of(t, v)
    at, size = t.instances[slot_of(t, v), c.ROWS_AT] + t.lines[line, c.ROW], np.int64(t.lines[line, c.SIZE])
    n = np.int64(t.free[arena, c.N_FREE]) - size
    for r in range(size):
        t.slots[at + r] = t.free[arena, c.FREE + n + r]
    t.free[arena, c.N_FREE] = n


@inlined
def note(t, v, stage, pumps):
    """Gives a pumped message slots, and puts it at the end of its pump's list."""
    give_own_slots(t, v, stage)
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
