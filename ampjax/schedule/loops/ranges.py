"""Ranges: parts of long tables that are given out to instances, in lengths that are powers of two."""

from __future__ import annotations

import numpy as np

from ampjax.schedule import columns as c
from ampjax.schedule.loops.compiled import inlined


@inlined
def power_of(length):
    """The least `k` with `2 ** k >= length`."""
    power = 0
    while 1 << power < length:
        power += 1
    return power


@inlined
def take_live(t, length):
    """A free range of at least `length` lines of `live`: where it begins."""
    power = power_of(length)
    begin = np.int64(t.ranges[0, power])
    if begin >= 0:
        t.ranges[0, power] = t.live[begin, c.NEXT]
    else:
        begin = t.clock[c.LIVE_TOP]
        t.clock[c.LIVE_TOP] += 1 << power
    return begin


@inlined
def take_rows(t, length):
    """A free range of at least `length` lines of `slots`: where it begins."""
    power = power_of(length)
    begin = np.int64(t.ranges[1, power])
    if begin >= 0:
        t.ranges[1, power] = t.slots[begin]
    else:
        begin = t.clock[c.ROWS_TOP]
        t.clock[c.ROWS_TOP] += 1 << power
    return begin


@inlined
def give_live(t, begin, length):
    """Gives a range of `live` back; its first line holds where the next free one of its length begins."""
    power = power_of(length)
    t.live[begin, c.NEXT] = t.ranges[0, power]
    t.ranges[0, power] = begin


@inlined
def give_rows(t, begin, length):
    """Gives a range of `slots` back, in the same way."""
    power = power_of(length)
    t.slots[begin] = t.ranges[1, power]
    t.ranges[1, power] = begin
