"""Passes over rows for the host's tables, compiled by Numba. They make no arrays: results go where the caller says.

All arrays are contiguous and of 64 bits, unless a docstring says otherwise, so that each pass is compiled once.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampjax.frontend.loops.compiled_passes import compiled


def wide(values: Any) -> np.ndarray:
    """Converts integers to the dtype and the layout of the passes.

    Args:
      values: Integers.
    """
    return np.ascontiguousarray(values, np.int64)


@compiled
def count_readers(wanted, counts):
    """Counts the reads of each row, and returns the largest count, 1 at least.

    Args:
      wanted: `[batches, reads]`: the row that each read wants; below 0 for none.
      counts: `[batches, rows]` zeros.
    """
    most = 1
    for batch in range(wanted.shape[0]):
        for read in range(wanted.shape[1]):
            row = wanted[batch, read]
            if row >= 0:
                # The largest count so far is that of this row, or of one before.
                counts[batch, row] += 1
                most = max(most, counts[batch, row])
    return most


@compiled
def list_readers(
    wanted,
    counts,
    found,
):
    """Lists the numbers of each row's reads, in order.

    Args:
      wanted: `[batches, reads]`: the row that each read wants; below 0 for none.
      counts: `[batches, rows]` zeros.
      found: `[batches, rows, most]` int32, all of it what stands for none: the result.
    """
    for batch in range(wanted.shape[0]):
        for read in range(wanted.shape[1]):
            row = wanted[batch, read]
            if row >= 0:
                # Reads come in their order, so each goes behind those that are listed.
                found[batch, row, counts[batch, row]] = read
                counts[batch, row] += 1


@compiled
def list_places(rows, places):
    """Lists the place of each row in its batch.

    Args:
      rows: `[batches, places]`: the row at each place; below 0 for none.
      places: `[rows]`, all -1: the result.
    """
    for batch in range(rows.shape[0]):
        for place in range(rows.shape[1]):
            row = rows[batch, place]
            if row >= 0:
                places[row] = place


@compiled
def list_rows_with_level(rows, levels, counts, listed):
    """Lists the rows with a level, batch by batch: batch, row and level of each.

    Args:
      rows: `[batches, places]`: the row at each place; below 0 for none.
      levels: `[rows]`: the level of each; below 0 for none.
      counts: `[1]`: the result, how many there are.
      listed: `[3, all places]`: the result.
    """
    n = 0
    for batch in range(rows.shape[0]):
        for place in range(rows.shape[1]):
            row = rows[batch, place]
            if row < 0 or levels[row] < 0:
                continue
            listed[0, n] = batch
            listed[1, n] = row
            listed[2, n] = levels[row]
            n += 1
    counts[0] = n


@compiled
def widest_inside(groups, sizes):
    """Counts the inner rows of each group, and returns the largest count.

    Args:
      groups: `[groups, rows]`: rows around; -1 for none.
      sizes: `[rows around]`: how many rows each has.
    """
    widest = 0
    for group in range(groups.shape[0]):
        # Rows of a group lie one after the other: their number is the sum of their sizes.
        n = 0
        for at in range(groups.shape[1]):
            row = groups[group, at]
            if row >= 0:
                n += sizes[row]
        widest = max(widest, n)
    return widest


@compiled
def list_inside(
    groups,
    sizes,
    ends,
    found,
):
    """Lists the inner rows of each group, one after the other.

    Args:
      groups: `[groups, rows]`: rows around; -1 for none.
      sizes: `[rows around]`: how many rows each has.
      ends: `[rows around]`: where these end.
      found: `[groups, widest]`, all -1: the result.
    """
    for group in range(groups.shape[0]):
        # `n` rows of the group are listed.
        n = 0
        for at in range(groups.shape[1]):
            row = groups[group, at]
            if row >= 0:
                for inner in range(ends[row] - sizes[row], ends[row]):
                    found[group, n] = inner
                    n += 1


@compiled
def fill(rows, found):
    """Puts a row that is there where none is: the first of its group, else the first of its batch; -1 stays in a batch without any.

    Args:
      rows: `[batches, groups, rows]`; -1 for none.
      found: `[batches, groups, rows]`: the result.
    """
    for batch in range(rows.shape[0]):
        # The first row of all groups, if there is any.
        anywhere = -1
        for group in range(rows.shape[1]):
            for at in range(rows.shape[2]):
                if rows[batch, group, at] >= 0:
                    anywhere = rows[batch, group, at]
                    break
            if anywhere >= 0:
                break
        # Then each group's own first one, which is known before any gap is filled.
        for group in range(rows.shape[1]):
            first = anywhere
            for at in range(rows.shape[2]):
                if rows[batch, group, at] >= 0:
                    first = rows[batch, group, at]
                    break
            for at in range(rows.shape[2]):
                # A row that is there stays.
                row = rows[batch, group, at]
                found[batch, group, at] = row if row >= 0 else first


@compiled
def find_places(
    rows,
    wanted,
    lies,
    n_rows,
    found,
):
    """Finds where the row lies that each row reads.

    Args:
      rows: `[n]`: rows that read; -1 for none.
      wanted: `[rows of a space]`: which row each of them reads; below 0 for none.
      lies: `[rows that are read]`: where each lies, -1 for nowhere; one at least.
      n_rows: Places of a level.
      found: `[n]` int32, all 0: the result.
    """
    last = len(lies) - 1
    for i in range(len(rows)):
        # A row that reads none, which nobody uses, reads the first place.
        if rows[i] >= 0 and wanted[rows[i]] >= 0:
            row = min(wanted[rows[i]], last)
            # Behind a loop, `lies` counts over all levels of the loops around, which each have so many places.
            found[i] = max(lies[row], 0) % n_rows


@compiled
def find_wanted(
    rows,
    wanted,
    lies,
    n_rows,
    found,
):
    """Finds where the row lies that each row reads, if both are there; -1 for others.

    Args:
      rows: `[n]`: rows that read; -1 for none.
      wanted: `[rows of a space]`: which row each of them reads; below 0 for none.
      lies: `[rows that are read]`: where each lies, -1 for nowhere; one at least.
      n_rows: Places of a level.
      found: `[n]`: the result.
    """
    last = len(lies) - 1
    for i in range(len(rows)):
        found[i] = -1
        # Copies, and rows that read none, are nobody's readers; what lies nowhere has none.
        if rows[i] >= 0 and wanted[rows[i]] >= 0:
            row = min(wanted[rows[i]], last)
            if lies[row] >= 0:
                found[i] = lies[row] % n_rows


@compiled
def find_states(
    rows,
    awaited,
    positions,
    at_start,
    before,
    found,
):
    """Finds the position of the state that each row reads; -1 for none.

    Args:
      rows: `[n]`: rows that read; -1 for none.
      awaited: `[rows of a space]`: the row whose state each of them reads; below 0 for none.
      positions: `[rows of the loop]`: where each one's state lies.
      at_start: `[rows of a space]`: where they read none, the row whose state before the loop they read, below 0 for none; or empty.
      before: `[rows before the loop]`: where each one's state lies.
      found: `[n]`: the result.
    """
    for i in range(len(rows)):
        row = rows[i]
        found[i] = -1
        # A state of the loop, else one from before the loop, else none.
        if row >= 0 and awaited[row] >= 0:
            found[i] = positions[awaited[row]]
        elif row >= 0 and len(at_start) and at_start[row] >= 0:
            found[i] = before[at_start[row]]


@compiled
def find_parents(
    ends,
    rows,
    found,
):
    """Finds the row around each of some rows; quickly where neighbours are in the same one or in the next.

    Args:
      ends: `[rows around]`: where the rows inside each end.
      rows: `[n]`: rows, each of which is in some row around.
      found: `[n]`: the result.
    """
    parent = 0
    for i in range(len(rows)):
        row = rows[i]
        # Mostly the row is in the same one as the row before, or in the next.
        if ends[parent] <= row and parent + 1 < len(ends):
            parent += 1
        # Elsewhere: halve the rows around until only the first that ends behind the row is left.
        if ends[parent] <= row or (parent > 0 and ends[parent - 1] > row):
            parent = 0
            after = len(ends) - 1
            while parent < after:
                middle = (parent + after) // 2
                if ends[middle] > row:
                    after = middle
                else:
                    parent = middle + 1
        found[i] = parent


@compiled
def list_pairs(
    around,
    across,
    first,
    is_around,
    is_across,
    there,
    filled,
):
    """Lists the pairs of each tile.

    Args:
      around: `[tiles, rows]`: the first pair of each row around, copies included.
      across: `[tiles, rows]`: the rows across, copies included.
      first: `[tiles]`: the first row across of each tile's outer row.
      is_around: `[tiles, rows]`: which rows around are no copies.
      is_across: `[tiles, rows]`: which rows across are no copies.
      there: `[tiles, rows around, rows across]`: the result; -1 for a copy.
      filled: The same with copies.
    """
    for tile in range(around.shape[0]):
        for a in range(around.shape[1]):
            for x in range(across.shape[1]):
                # The pairs of a row around lie as the rows across lie in their outer row.
                pair = around[tile, a] + across[tile, x] - first[tile]
                filled[tile, a, x] = pair
                is_there = is_around[tile, a] and is_across[tile, x]
                there[tile, a, x] = pair if is_there else -1
