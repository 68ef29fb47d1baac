"""Ranges: parts of long tables that are given out to instances, in lengths that are powers of two."""

from __future__ import annotations

import numpy as np

from ampjax.schedule.loops.compiled import inner


@inner
def power_of(length):
    """The least `k` with `2 ** k >= length`."""
    power = 0
    while 1 << power < length:
        power += 1
    return power


@inner
def take_range(heads, links, length, clock, top):
    """A free range of at least `length` lines: where it begins. `links` holds, where each free range begins, where the next one does."""
    power = power_of(length)
    if heads[power] >= 0:
        begin = heads[power]
        heads[power] = links[begin]
        return np.int64(begin)
    begin = clock[top]
    clock[top] += 1 << power
    return begin


@inner
def give_range(heads, links, begin, length):
    """Gives a range back."""
    power = power_of(length)
    links[begin] = heads[power]
    heads[power] = begin
