"""Loops over rows in eight bits, compiled by Numba. To import this module imports Numba, so a table waits for its first row.

They compute with the bits of float32 numbers, as integers: so the results don't depend on a compiler. No loop makes an array.
"""

from __future__ import annotations

import numpy as np

from ampjax.sched.loops.compiled import entry, inlined
from ampjax.sparse.narrow.format_columns import (
    IS_INTEGER,
    LEAST,
    LIMIT,
    MANTISSA,
    MIN_EXPONENT,
    TOP,
)

ABSOLUTE = 0x7FFFFFFF
"""All bits of a float32 but its sign."""
FRACTION = (1 << 23) - 1
"""The fraction of a float32."""
MOST_CUT = 40
"""Bits that are cut off at most, as many as there are random ones, with zeros below those."""

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio, by which SplitMix64 counts."""
ROW_FACTORS = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
ROW_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
UPPER_HALF = np.uint64(32)

STEP = np.uint32(0x9E3779B9)
"""2^32 over the golden ratio."""
FACTORS = np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
SHIFTS = np.uint32(16), np.uint32(13)


@inlined
def draw_for_row(key, row_id):
    """Draws a row's random number: SplitMix64's for some place in its sequence.

    Args:
      key: Where the sequence begins, uint64.
      row_id: The row's number in its table, uint64.

    Returns:
      32 random bits, uint32.
    """
    bits = key + row_id * GOLDEN
    bits ^= bits >> ROW_SHIFTS[0]
    bits *= ROW_FACTORS[0]
    bits ^= bits >> ROW_SHIFTS[1]
    bits *= ROW_FACTORS[1]
    bits ^= bits >> ROW_SHIFTS[2]
    return np.uint32(bits >> UPPER_HALF)


@inlined
def draw_for_element(of_row, column):
    """Draws an element's random number, by MurmurHash3's finalizer.

    Args:
      of_row: The row's.
      column: The element's place in it.

    Returns:
      32 random bits, int64.
    """
    # Numba computes with 64 bits, of which the upper ones are taken away.
    salt = np.uint32(column) * STEP
    bits = np.uint32(of_row + salt)
    bits ^= bits >> SHIFTS[0]
    bits = np.uint32(bits * FACTORS[0])
    bits ^= bits >> SHIFTS[1]
    bits = np.uint32(bits * FACTORS[1])
    bits ^= bits >> SHIFTS[0]
    return np.int64(bits)


@inlined
def fitting_exponent(largest, form):
    """Finds the exponent of the smallest scale with which a row fits into a format.

    Args:
      largest: The bits of the row's largest absolute value, int64.
      form: The format.

    Returns:
      The exponent.
    """
    exponent = (largest >> 23) - 127 - form[TOP]
    if (largest & FRACTION) > form[LIMIT]:
        exponent += 1
    return max(exponent, MIN_EXPONENT)


@entry
def round_rows(bits, stored, places, row_ids, key, is_nearest, form):
    """Rounds and stores rows.

    Args:
      bits: The rows, the bits of float32 numbers, `[n, size]`, int32.
      stored: Where they go, `[m, 1 + size]`, uint8: the exponent of the scale, then codes.
      places: Which rows of `stored` these are, `[n]`, int64.
      row_ids: Their numbers in the table, `[n]`, uint64: which random numbers they get.
      key: Where the sequence of random numbers begins, uint64.
      is_nearest: Whether each element is rounded to the nearest number, or up or down at random.
      form: The format.
    """
    kept = form[MANTISSA]
    least = form[LEAST]
    # The largest float32 number with the format's bits: above it the nearest one would be infinity.
    ceiling = np.int32((254 << 23) | form[LIMIT])
    # The code of a negative number: a two's complement, or a sign bit and the absolute value.
    of_negative = 256 if form[IS_INTEGER] else 128
    sign = -1 if form[IS_INTEGER] else 1
    for i in range(len(places)):
        place = places[i]
        largest = np.int32(0)
        for j in range(bits.shape[1]):
            largest = max(largest, bits[i, j] & np.int32(ABSOLUTE))
        largest = min(largest, ceiling)
        exponent = fitting_exponent(np.int64(largest), form)
        stored[place, 0] = np.uint8(exponent & 0xFF)
        of_row = draw_for_row(key, row_ids[i])
        lowest = 127 + exponent + least
        # No branches, so that several elements are computed at once.
        for j in range(bits.shape[1]):
            number = np.int64(bits[i, j])
            size = min(number & ABSOLUTE, np.int64(ceiling))
            biased = size >> 23
            is_normal = np.int64(biased > 0)
            mantissa = (size & FRACTION) + (is_normal << 23)
            # Below the least exponent numbers are evenly spaced: there more bits are cut off.
            above = max(biased, 1) - lowest
            wanted = 23 - kept + max(-above, 0)
            cut = min(wanted, MOST_CUT)
            beyond = min(wanted - cut, 62)
            mantissa = mantissa >> beyond
            # What is added before they are cut off decides whether the absolute value goes up.
            if is_nearest:
                half = 1 << (cut - 1)
                is_odd = (mantissa >> cut) & 1
                added = half - 1 + is_odd
            else:
                random = draw_for_element(of_row, j) << 8
                added = random >> (MOST_CUT - cut)
            code = (mantissa + added) >> cut
            code += max(above, 0) << kept
            if (number < 0) & (code > 0):
                code = of_negative + sign * code
            stored[place, 1 + j] = np.uint8(code)


@entry
def read_rows(stored, places, values, powers, out):
    """Reads rows.

    Args:
      stored: As for `round_rows`.
      places: Which rows, `[n]`, int64.
      values: The number of each code, `[256]`, float32; none where codes are the numbers.
      powers: The scale of each exponent, as an unsigned byte, `[256]`, float32.
      out: To be written, `[n, size]`, float32.
    """
    for i in range(len(places)):
        place = places[i]
        scale = powers[stored[place, 0]]
        if len(values) == 0:
            for j in range(out.shape[1]):
                out[i, j] = np.float32(np.int8(stored[place, 1 + j])) * scale
        else:
            for j in range(out.shape[1]):
                out[i, j] = values[stored[place, 1 + j]] * scale
