"""Names for the columns of the arrays in a table of ids.

An id has an entry, a line of `lines`. It is found by its slot (open addressing, one slot after the other). The queue says in which order ids were
last seen: an id that is seen again gets another place at the queue's end, and its place before that is void.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

SLOT_ID = 0
SLOT_ENTRY = 1
"""Columns of a slot; the entry is `NONE` where there is no id."""

ID = 0
COUNT = 1
SEEN = 2
PLACE = 3
"""Columns of an entry: how often the id was seen, in which call last, and its place in the queue, `NONE` where the entry is free."""
N_COLUMNS = 4

N_USED = 0
N_FREE = 1
HEAD = 2
TAIL = 3
"""Numbers: entries that were ever used; how many of these are free; where the queue begins and ends."""
N_NUMBERS = 4

N_EVICTED = 0
N_FORGOTTEN = 1
N_REFUSED = 2
"""A call's tally: ids that lost their rows for others, candidates that were forgotten for others, ids for which there was no row."""
N_TALLIES = 3

NONE = -1


class IdArrays(NamedTuple):
    """A table of ids as arrays, all int64.

    Args:
      slots: `[2 ** k, 2]`, at least twice as many as entries.
      lines: `[entries, 4]`.
      queue: `[2 * entries]`, entries.
      free: `[entries]`, a stack of the free ones.
      numbers: `[4]`.
    """

    slots: np.ndarray
    lines: np.ndarray
    queue: np.ndarray
    free: np.ndarray
    numbers: np.ndarray
