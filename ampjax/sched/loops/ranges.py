"""Ranges: parts of long tables that are given out to instances, in lengths that are powers of two."""

from __future__ import annotations

import numpy as np

from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables
from ampjax.sched.loops.compiled import entry, inlined, inner


@inlined
def power_of(length):
    """Finds the power of two that a range is given out in.

    Returns:
      The least `k` with `2 ** k >= length`.
    """
    power = 0
    while 1 << power < length:
        power += 1
    return power


@inlined
def take_live(t, length):
    """Takes a free range of `live`.

    Args:
      t: The tables, which have room.
      length: Its length, at least.

    Returns:
      Where it begins.
    """
    power = power_of(length)
    begin = np.int64(t.ranges[c.FREE_LIVE, power])
    # A range of this length that was given back; its first line names the next one.
    if begin >= 0:
        t.ranges[c.FREE_LIVE, power] = t.live[begin, c.NEXT]
    # None is free: the table's end moves on.
    else:
        begin = t.clock[c.LIVE_TOP]
        t.clock[c.LIVE_TOP] += 1 << power
    return begin


@inlined
def take_rows(t, length):
    """Takes a free range of `slots`.

    Args:
      t: The tables, which have room.
      length: Its length, at least.

    Returns:
      Where it begins.
    """
    power = power_of(length)
    begin = np.int64(t.ranges[c.FREE_ROWS, power])
    # A free range's first slot holds where the next one begins.
    if begin >= 0:
        t.ranges[c.FREE_ROWS, power] = t.slots[begin]
    # None is free: the table's end moves on.
    else:
        begin = t.clock[c.ROWS_TOP]
        t.clock[c.ROWS_TOP] += 1 << power
    return begin


@inlined
def give_live(t, begin, length):
    """Gives a range of `live` back; its first line then holds where the next free one of its length begins.

    Args:
      t: The tables.
      begin: Where it begins.
      length: The length that it was taken for.
    """
    power = power_of(length)
    t.live[begin, c.NEXT] = t.ranges[c.FREE_LIVE, power]
    t.ranges[c.FREE_LIVE, power] = begin


@inlined
def give_rows(t, begin, length):
    """Gives a range of `slots` back, as `give_live` does.

    Args:
      t: The tables.
      begin: Where it begins.
      length: The length that it was taken for.
    """
    power = power_of(length)
    t.slots[begin] = t.ranges[c.FREE_ROWS, power]
    t.ranges[c.FREE_ROWS, power] = begin


@entry
def widen(handles, lengths, rows, moved, *tables):
    """Makes room for longer programs: messages move to longer ranges where needed, together with their places in queues.

    Args:
      handles: `[n]`: their handles.
      lengths: `[n]`: invocations that they have now.
      rows: `[n]`: rows that they have now.
      moved: `[n, 3]`, to be written: where each one's messages began, how many there were, and where they begin now.
      *tables: The tables, which have room.
    """
    t = Tables(*tables)
    for k in range(len(handles)):
        i = handles[k]
        old = t.instances[i, c.FIRST_LIVE]
        n = t.instances[i, c.N_INVOCATIONS]
        # The caller must know the old place: what it keeps by message number moves, too.
        moved[k, 0] = old
        moved[k, 1] = max(0, n)
        # Messages move only if the program has outgrown its power of two.
        if n < 0 or power_of(lengths[k]) != power_of(n):
            # The new range is taken before the old one is given back: they must not overlap.
            t.instances[i, c.FIRST_LIVE] = take_live(t, lengths[k])
            if n >= 0:
                move_messages(t, old, n, t.instances[i, c.FIRST_LIVE])
                give_live(t, old, n)
        # The same for rows, whose slots are copied one by one.
        old = t.instances[i, c.FIRST_SLOT]
        n_rows = t.instances[i, c.N_OUT_ROWS]
        if n < 0 or power_of(rows[k]) != power_of(n_rows):
            t.instances[i, c.FIRST_SLOT] = take_rows(t, rows[k])
            if n >= 0:
                for r in range(n_rows):
                    t.slots[t.instances[i, c.FIRST_SLOT] + r] = t.slots[old + r]
                give_rows(t, old, n_rows)
        # From now on the instance has its new lengths, which say what to give back later.
        t.instances[i, c.N_INVOCATIONS] = lengths[k]
        t.instances[i, c.N_OUT_ROWS] = rows[k]
        moved[k, 2] = t.instances[i, c.FIRST_LIVE]
        # The program itself has moved, so messages name their new lines.
        for v in range(max(0, n)):
            t.live[moved[k, 2] + v, c.INVOCATION] = t.instances[i, c.FIRST_LINE] + v


@inner
def move_messages(t, old, n, new):
    """Moves messages to other lines of `live`, in all queues where the messages wait."""
    for k in range(n):
        # All of a message moves, links included: these still name old places, which the next loop
        # mends.
        for column in range(t.live.shape[1]):
            t.live[new + k, column] = t.live[old + k, column]
        # The old line belongs to nobody now.
        t.live[old + k, c.N_MISSING] = t.live[old + k, c.N_OWED] = 0
    # Each queue is walked once, and links into the old range are set to the new one.
    for q in range(len(t.queues)):
        if t.queues[q, c.ITEMS] == 0:
            continue
        before = np.int64(-1)
        v = np.int64(t.queues[q, c.HEAD])
        while v >= 0:
            # The link is read before it changes.
            follower = np.int64(t.live[v, c.NEXT])
            if old <= v < old + n:
                v += new - old
                if before < 0:
                    t.queues[q, c.HEAD] = v
                else:
                    t.live[before, c.NEXT] = v
            before = v
            v = follower
        # The last message may have moved, and so may the last sorted one.
        t.queues[q, c.TAIL] = before
        if t.queues[q, c.N_SORTED] and old <= t.queues[q, c.SORTED] < old + n:
            t.queues[q, c.SORTED] += new - old
