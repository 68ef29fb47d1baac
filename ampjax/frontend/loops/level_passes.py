"""Passes over rows by level, compiled by Numba: the levels of rows that wait for others, and rows in the order of levels.

As in `table_passes`, results go where the caller says, and arrays are contiguous and of 64 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampjax.frontend.loops.compiled_passes import compiled
from ampjax.frontend.loops.table_passes import wide


def sorted_rows(keys: Any, before: np.ndarray | None = None) -> np.ndarray:
    """Sorts rows by integers; rows of one key stay in their order.

    Args:
      keys: `[rows]`: the key of each row.
      before: Rows in their order; by default all of them.
    """
    keys = wide(keys)
    if before is None:
        before = np.arange(len(keys))
    if not len(keys):
        return before
    least = int(keys.min())
    n_keys = int(keys.max()) - least + 1
    if n_keys > 4 * len(keys) + 1000:  # to count so many keys would take longer than to compare
        return before[np.argsort(keys[before], kind="stable")]
    order = np.empty(len(before), np.int64)
    sort_by(
        keys - least,
        before,
        np.zeros(n_keys + 1, np.int64),
        order,
    )
    return order


@compiled
def note_levels(
    waiting,
    awaited,
    first,
    by_awaited,
    left,
    ready,
    levels,
):
    """Notes the level of each row that waits for others; see `waiting_levels`.

    Args:
      waiting: `[pairs]`: rows that wait.
      awaited: `[pairs]`: the row that each waits for.
      first: `[rows + 1]` zeros, for where the pairs of each awaited row begin.
      by_awaited: `[pairs]`, for the rows that wait, in the order of awaited rows.
      left: `[rows]` zeros, for how many rows each one still waits for.
      ready: `[rows]`, for the rows in the order in which their levels are known.
      levels: `[rows]`, all -1: the result.
    """
    # Count the pairs of each row, in both roles.
    for pair in range(len(waiting)):
        first[awaited[pair]] += 1
        left[waiting[pair]] += 1
    # Each awaited row's pairs end where the next one's begin; filled from behind, so that `first` ends up at the beginnings.
    for row in range(len(left)):
        first[row + 1] += first[row]
    for pair in range(len(waiting) - 1, -1, -1):
        first[awaited[pair]] -= 1
        by_awaited[first[awaited[pair]]] = waiting[pair]
    # Rows that wait for nothing come first.
    n = 0
    for row in range(len(left)):
        if left[row] == 0:
            levels[row] = 0
            ready[n] = row
            n += 1
    # Rows are gone through level by level, so the last wait of a row ends with the highest level that it waits for.
    done = 0
    while done < n:
        row = ready[done]
        done += 1
        for pair in range(first[row], first[row + 1]):
            other = by_awaited[pair]
            left[other] -= 1
            if left[other] == 0:
                levels[other] = levels[row] + 1
                ready[n] = other
                n += 1


@compiled
def sort_by(
    keys,
    before,
    first,
    order,
):
    """Sorts rows by small keys; rows of one key stay in their order.

    Args:
      keys: `[rows]`: the key of each row.
      before: `[n]`: rows.
      first: `[keys + 1]` zeros.
      order: `[n]`: the result, the same rows sorted.
    """
    # Count the rows of each key, one place behind.
    for row in before:
        first[keys[row] + 1] += 1
    # The rows of a key begin where those of smaller keys end.
    for key in range(len(first) - 1):
        first[key + 1] += first[key]
    # Rows of a key come in the order of `before`, each behind the one that was put there.
    for row in before:
        order[first[keys[row]]] = row
        first[keys[row]] += 1


@compiled
def count_levels(
    groups,
    levels,
    counts,
):
    """Counts the rows of each level of each group, and returns the largest count.

    Args:
      groups: `[groups, rows]`; -1 for none.
      levels: `[rows of the space]`: their levels; below 0 for rows without one.
      counts: `[groups, levels]` zeros.
    """
    most = 0
    for group in range(groups.shape[0]):
        for at in range(groups.shape[1]):
            row = groups[group, at]
            # The largest count so far is that of this level, or of one before.
            if row >= 0 and levels[row] >= 0:
                counts[group, levels[row]] += 1
                most = max(most, counts[group, levels[row]])
    return most


@compiled
def list_steps(
    groups,
    levels,
    firsts,
    counts,
    found,
):
    """Lists the rows of each step of each group, in order; a level with more rows than a step has takes several steps.

    Args:
      groups: `[groups, rows]`; -1 for none.
      levels: `[rows of the space]`: their levels; below 0 for rows without one.
      firsts: `[groups, levels]`: the first step of each level.
      counts: `[groups, levels]` zeros.
      found: `[groups, steps, rows of a step]`, all -1: the result.
    """
    width = found.shape[2]
    for group in range(groups.shape[0]):
        for at in range(groups.shape[1]):
            row = groups[group, at]
            if row >= 0 and levels[row] >= 0:
                # Rows of a level stay in the order of their group.
                level = levels[row]
                place = counts[group, level]
                step = firsts[group, level] + place // width
                found[group, step, place % width] = row
                counts[group, level] += 1


@compiled
def cut_levels(
    counts,
    sizes,
    last,
    cut,
    of_level,
    firsts,
    starts,
    totals,
):
    """Cuts levels into steps, at the least cost; see `step_layouts`.

    Args:
      counts: `[batches, levels]`: the rows of each level.
      sizes: `[row counts]`: the row counts, the largest first.
      last: `[rows]`: for so many rows, the number of the last step's row count.
      cut: `[row counts]`, for the steps of a level.
      of_level: `[batches, levels]`: a result: where each level's rows begin.
      firsts: `[batches, steps]`: a result: where each step's rows begin.
      starts: `[batches, rounds, row counts + 1]`: a result: where each row count's steps begin in each round, and where the round ends.
      totals: `[batches, 3]`: a result: the number of steps, of rounds and of rows.
    """
    n_sizes = len(sizes)
    for batch in range(counts.shape[0]):
        n_steps = 0
        n_rounds = 0
        n_rows = 0
        latest = n_sizes
        for level in range(counts.shape[1]):
            of_level[batch, level] = n_rows
            rest = counts[batch, level]
            if rest == 0:
                continue
            # The steps of each row count: full ones while the rows would fill two, then those that cost least.
            cut[:] = 0
            cut[0] = max(0, rest // sizes[0] - 1)
            rest -= cut[0] * sizes[0]
            while rest > 0:
                number = last[rest]
                cut[number] += 1
                rest -= sizes[number]
            # A level's steps come from large to small; a step that is larger than the one before begins a round.
            for number in range(n_sizes):
                for _ in range(cut[number]):
                    if n_rounds == 0 or number < latest:
                        starts[batch, n_rounds, :] = n_steps
                        n_rounds += 1
                    latest = number
                    firsts[batch, n_steps] = n_rows
                    n_rows += sizes[number]
                    n_steps += 1
                    # Smaller row counts, and the end of the round, come behind it.
                    starts[batch, n_rounds - 1, number + 1 :] = n_steps
        totals[batch, 0] = n_steps
        totals[batch, 1] = n_rounds
        totals[batch, 2] = n_rows
