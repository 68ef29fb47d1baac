"""A loop over row ids, compiled by Numba. To import this module imports Numba, so the first step with many ids imports the module.

A row is a bit of a word, so that rows are numbered in rising order without sorting. The loop makes no array.
"""

from __future__ import annotations

import numpy as np

from ampjax.sched.loops.compiled import entry, inlined

SHIFT = 5
"""A word has 2^5 rows."""
LAST = 31
"""The last bit of a word, and the bits of a row's place in its word."""
PAIRS = 0x55555555
FOURS = 0x33333333
BYTES = 0x0F0F0F0F
FIRST_BITS = 0x01010101


@inlined
def count_bits(word):
    """Counts the bits of a word that are set.

    Args:
      word: int64, below 2^32.

    Returns:
      The number of bits, int64.
    """
    pairs = word - ((word >> 1) & PAIRS)
    fours = (pairs & FOURS) + ((pairs >> 2) & FOURS)
    each_byte = (fours + (fours >> 4)) & BYTES
    return ((each_byte * FIRST_BITS) >> 24) & 0xFF


@entry
def number_rows(ids, marks, before, distinct, inverse):
    """Finds the distinct rows, and each id's place among the rows found.

    Args:
      ids: `[n]`, each below 2^5 times the number of words.
      marks: A word for each 2^5 rows, uint32, all zero.
      before: `[n_words]`, int32, to be filled: by word the distinct rows before it.
      distinct: `[n]`, to be filled: the distinct rows, rising.
      inverse: `[n]`, int32, to be filled.

    Returns:
      How many distinct rows there are.
    """
    # Mark the rows that are read.
    for i in range(len(ids)):
        row = np.int64(ids[i])
        marks[row >> SHIFT] |= np.uint32(np.int64(1) << (row & LAST))

    # Number them: word by word, and in a word from the lowest bit on, so they rise.
    n = 0
    for w in range(len(marks)):
        before[w] = n
        word = np.int64(marks[w])
        while word:
            below = (word & -word) - 1
            distinct[n] = (w << SHIFT) + count_bits(below)
            word &= word - 1
            n += 1

    # The place of a row is the number of marks below it.
    for i in range(len(ids)):
        row = np.int64(ids[i])
        w = row >> SHIFT
        below = (np.int64(1) << (row & LAST)) - 1
        inverse[i] = before[w] + count_bits(np.int64(marks[w]) & below)
    return n
