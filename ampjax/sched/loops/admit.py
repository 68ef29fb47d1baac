"""Admission: instances are let in, and their pumped messages travel on."""

from __future__ import annotations

import numpy as np

from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables
from ampjax.sched.loops.compiled import entry, inlined
from ampjax.sched.loops.queues import handle_of, line_of
from ampjax.sched.loops.ranges import power_of, take_live, take_rows
from ampjax.sched.loops.travel import emit, end_instance
from ampjax.unfold.program_keys import POSITION, PUMPED_ROWS

PUMP_STAGE, PUMP_FIRST, PUMP_LAST = range(3)
"""PUMP_STAGE: Which pump it is, as a number of a stage.
PUMP_FIRST: The first of its messages, or -1.
PUMP_LAST: The last of them.
"""


@entry
def open_all(ids, purpose, train, handles, *tables):
    """Gives instances handles, of which there are enough.

    Args:
      ids: `[n]`: the instances' numbers.
      purpose: What they are run for, as a number.
      train: Whether that is training.
      handles: `[n]` int64, to be written: their handles.
      *tables: The tables.
    """
    t = Tables(*tables)
    n = len(ids)
    for k in range(n):
        # The handle that was freed last is given out first.
        t.clock[c.N_VACANT] -= 1
        i = np.int64(t.idle[c.VACANT, t.clock[c.N_VACANT]])
        handles[k] = i
        t.instances[i, c.ID] = ids[k]
        t.instances[i, c.PURPOSE] = purpose
        t.instances[i, c.TRAIN] = train
        # Ages count admissions, so queues can tell the oldest instance whatever handle it has.
        t.instances[i, c.AGE] = t.clock[c.ADMITTED] + k
        # One more than it has messages, until `close`: it must not end while more may be pumped.
        t.instances[i, c.N_ALIVE] = 1
        t.instances[i, c.N_INVOCATIONS] = -1
        t.instances[i, c.PROGRAM] = c.NO_PLACE
    # Counters change once for all of them.
    t.clock[c.ADMITTED] += n
    t.clock[c.N_TRAIN if train else c.N_INFER] += n
    t.clock[c.MOST_IN_FLIGHT] = max(
        t.clock[c.MOST_IN_FLIGHT],
        t.clock[c.N_TRAIN] + t.clock[c.N_INFER],
    )


@entry
def admit(
    handles,
    places,
    programs,
    uses,
    pumps,
    numbers,
    rows_at,
    fed,
    *tables,
):
    """Starts instances that have been given handles: sets their counters, gives pumped messages slots, and lets pumped messages travel on.

    Args:
      handles: `[n]`: the instances' handles.
      places: `[n]`: their programs' places.
      programs: `ProgramStore.programs`.
      uses: `ProgramStore.uses`.
      pumps: `[pumps, 3]`: the pumps, as numbers of stages, in the order in which they pump; two columns to be written.
      numbers: `[m, columns]`: what is pumped (`unfold.program_keys`).
      rows_at: `[n]` int64, to be written.
      fed: int64, to be written: where what is pumped belongs, the slots of its rows in the order of `numbers`.
      *tables: The tables.

    Returns:
      `STARTED`; or why nothing has been done: an instance has been `PUMPED_BEFORE`, or something `LACKS_ROOM`.
    """
    t = Tables(*tables)
    # Nothing is changed before everything is known to fit: the caller makes room and calls again.
    for i in handles:
        if t.instances[i, c.N_INVOCATIONS] >= 0:
            return c.PUMPED_BEFORE
    if not has_room_for(t, places, programs):
        return c.LACKS_ROOM
    # Lists of pumped messages are filled below, instance by instance.
    clear_pumps(pumps)
    for k in range(len(handles)):
        i = handles[k]
        place = places[k]
        length = programs[place, c.P_LENGTH]
        rows = programs[place, c.P_ROWS]
        # The program says where its lines and picks are; several instances may share it.
        t.instances[i, c.FIRST_LINE] = programs[place, c.P_LINE]
        t.instances[i, c.FIRST_PICK] = programs[place, c.P_PICK]
        t.instances[i, c.PROGRAM] = place
        t.instances[i, c.N_INVOCATIONS] = length
        t.instances[i, c.N_OUT_ROWS] = rows
        # Messages and rows are the instance's own.
        t.instances[i, c.FIRST_LIVE] = take_live(t, length)
        t.instances[i, c.FIRST_SLOT] = take_rows(t, rows)
        rows_at[k] = t.instances[i, c.FIRST_SLOT]
        # The wave is in use, and was used last now: the store drops the least recently used first.
        t.clock[c.ASKED] += 1
        uses[programs[place, c.WAVE], c.USERS] += 1
        uses[programs[place, c.WAVE], c.USED] = t.clock[c.ASKED]
        # Pumped messages get slots here, so `feed_all` can write down where their payloads belong.
        begin_instance(t, i, pumps)
    # Messages travel on only when all instances are there: then those of one pump travel together.
    feed_all(t, numbers, rows_at, fed)
    emit_pumped(t, pumps)
    return c.STARTED


@entry
def start_more(messages, pumps, numbers, rows_at, fed, *tables):
    """Gives pumped messages of instances in flight slots, and lets the messages travel on; see `admit`.

    Args:
      messages: `[n]`: the messages.
      pumps: See `admit`.
      numbers: See `admit`.
      rows_at: `[instances]` int64: where in `slots` the rows of each instance's begin; it is written to.
      fed: See `admit`.
      *tables: The tables.
    """
    t = Tables(*tables)
    clear_pumps(pumps)
    # Slots first, for all; then where payloads belong; then messages travel on, as in `admit`.
    for v in messages:
        note_pumped(
            t,
            np.int64(v),
            np.int64(t.lines[t.live[v, c.INVOCATION], c.STAGE]),
            pumps,
        )
    feed_all(t, numbers, rows_at, fed)
    emit_pumped(t, pumps)


@entry
def close(handles, *tables):
    """Notes that nothing more is pumped for instances; instances without messages have then ended.

    Args:
      handles: `[n]`: their handles.
      *tables: The tables.
    """
    t = Tables(*tables)
    for i in handles:
        # The one that stood for what may still be pumped.
        t.instances[i, c.N_ALIVE] -= 1
        if t.instances[i, c.N_ALIVE] == 0:
            end_instance(t, i)


@entry
def report_ended(ended, programs, uses, *tables):
    """Reports instances that have ended: their handles and programs are free for others.

    Args:
      ended: `[n, 2]` int64, to be written: their numbers, and whether they were training instances.
      programs: `ProgramStore.programs`.
      uses: `ProgramStore.uses`.
      *tables: The tables.
    """
    t = Tables(*tables)
    n = len(ended)
    for k in range(n):
        i = np.int64(t.idle[c.ENDED, k])
        ended[k, 0] = t.instances[i, c.ID]
        ended[k, 1] = t.instances[i, c.TRAIN]
        # The handle goes to the end of the vacant ones.
        t.idle[c.VACANT, t.clock[c.N_VACANT] + k] = i
        # A wave without users may be dropped by the store.
        place = t.instances[i, c.PROGRAM]
        if place >= 0 and programs[place, c.WAVE] >= 0:
            uses[programs[place, c.WAVE], c.USERS] -= 1
    # Counters change last: the loop reads the list's old end.
    t.clock[c.N_VACANT] += n
    t.clock[c.N_ENDED] = 0
    t.clock[c.N_FINISHED] += n


@inlined
def has_room_for(t, places, programs):
    """Tells whether tables and arenas have room for programs and for pumped rows.

    Args:
      t: The tables.
      places: `[n]`: the programs' places.
      programs: `ProgramStore.programs`.
    """
    live = t.clock[c.LIVE_TOP]
    rows = t.clock[c.ROWS_TOP]
    # Ranges that were given back are not looked for: what is taken from the end is an upper bound.
    for place in places:
        live += np.int64(1) << power_of(programs[place, c.P_LENGTH])
        rows += np.int64(1) << power_of(programs[place, c.P_ROWS])
    if live > len(t.live) or rows > len(t.slots):
        return False
    # Then slots, of each arena for all instances together.
    for arena in range(len(t.free)):
        need = np.int64(0)
        for place in places:
            need += programs[place, c.PUMPED + arena]
        if need > t.free[arena, c.N_FREE]:
            return False
    return True


@inlined
def feed_all(t, numbers, rows_at, fed):
    """Writes the slots to which the rows of pumped payloads belong.

    Args:
      t: The tables.
      numbers: See `admit`.
      rows_at: `[instances]` int64: where in `slots` the rows of each instance's begin; moves on to where they end.
      fed: See `admit`.
    """
    at = 0
    for j in range(len(numbers)):
        k = numbers[j, POSITION]
        n = numbers[j, PUMPED_ROWS]
        # Rows of an instance stand in the order in which its messages are pumped.
        for r in range(n):
            fed[at + r] = t.slots[rows_at[k] + r]
        # Its next message's rows begin behind these.
        rows_at[k] += n
        at += n


@inlined
def begin_instance(t, i, pumps):
    """Sets the counters of an instance's messages, and notes the pumped ones.

    Args:
      t: The tables.
      i: The instance's handle.
      pumps: See `admit`.
    """
    alive = 0
    line = t.instances[i, c.FIRST_LINE]
    v = t.instances[i, c.FIRST_LIVE]
    for _ in range(t.instances[i, c.N_INVOCATIONS]):
        # A message's counters start at what its program line says.
        t.live[v, c.N_MISSING] = t.lines[line, c.N_IN]
        t.live[v, c.N_OWED] = t.lines[line, c.OWED]
        t.live[v, c.HANDLE] = i
        t.live[v, c.INVOCATION] = line
        stage = np.int64(t.lines[line, c.STAGE])
        # Losses and sinks make no rows, so an instance does not wait for their messages to end.
        alive += t.stages[stage, c.KIND] != c.ENDS
        # Pumped messages are ready at once; they wait in their pump's list until all have slots.
        if stage < 0:
            note_pumped(t, v, stage, pumps)
        line += 1
        v += 1
    # Added, since the one for what may be pumped stands already.
    t.instances[i, c.N_ALIVE] += alive


@inlined
def clear_pumps(pumps):
    """Empties the pumps' lists.

    Args:
      pumps: See `admit`.
    """
    for k in range(len(pumps)):
        pumps[k, PUMP_FIRST] = pumps[k, PUMP_LAST] = -1


@inlined
def give_own_slots(t, v, pump):
    """Gives a pumped message slots.

    Args:
      t: The tables.
      v: The message.
      pump: Its pump, as a number of a stage.
    """
    arena = t.stages[pump, c.ARENA]
    line = line_of(t, v)
    # Slots come from the end of the free list, in the order in which they stand there.
    at = t.instances[handle_of(t, v), c.FIRST_SLOT] + t.lines[line, c.ROW]
    size = np.int64(t.lines[line, c.OUT_ROWS])
    n = np.int64(t.free[arena, c.N_FREE]) - size
    for r in range(size):
        t.slots[at + r] = t.free[arena, c.FREE + n + r]
    # Then they are no longer free.
    t.free[arena, c.N_FREE] = n


@inlined
def note_pumped(t, v, stage, pumps):
    """Gives a pumped message slots, and puts the message at the end of its pump's list.

    Args:
      t: The tables.
      v: The message.
      stage: Its pump, as a number of a stage.
      pumps: See `admit`.
    """
    give_own_slots(t, v, stage)
    # The end of the list: first in, first out, so messages travel in the order of pumping.
    t.live[v, c.NEXT_TOGETHER] = -1
    for k in range(len(pumps)):
        if pumps[k, PUMP_STAGE] != stage:
            continue
        if pumps[k, PUMP_LAST] < 0:
            pumps[k, PUMP_FIRST] = v
        else:
            t.live[pumps[k, PUMP_LAST], c.NEXT_TOGETHER] = v
        pumps[k, PUMP_LAST] = v


@inlined
def emit_pumped(t, pumps):
    """Lets the messages of the pumps' lists travel on, pump by pump.

    Args:
      t: The tables.
      pumps: See `admit`.
    """
    for k in range(len(pumps)):
        # Pump by pump: all messages of one reach their consumers before the next pump's do.
        if pumps[k, PUMP_FIRST] >= 0:
            emit(t, pumps[k, PUMP_FIRST])
