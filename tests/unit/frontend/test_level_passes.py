"""The host's passes over rows by level, beside plain NumPy and Python on random rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.effort import examples
from support.row_groups import random_groups

from ampjax.frontend.draft.waiting_levels import waiting_levels
from ampjax.frontend.loops import level_passes
from ampjax.frontend.loops.step_layouts import largest_count, lay_out, row_counts

CASES = hypothesis_settings(max_examples=examples(200), deadline=None)
SEEDS = st.integers(0, 2**32 - 1)


@CASES
@given(SEEDS)
def test_levels_of_groups(seed):
    rng = np.random.default_rng(seed)
    groups = random_groups(rng, 8)
    levels = rng.integers(-1, 3, 8)
    lists = []
    for group in groups:
        for level in range(3):
            own = []
            for row in group.tolist():
                if row >= 0 and levels[row] == level:
                    own.append(row)
            lists.append(own)
    shape = (len(groups), 3)
    counts = np.zeros(shape, np.int64)
    most = level_passes.count_levels(groups, levels, counts)
    assert most == max(map(len, lists))
    # steps of as many rows as the widest level has, and of fewer
    for width in range(1, most + 1):
        n_each = -(-counts // width)
        n_steps = int(n_each.sum(1).max())
        found = np.full((len(groups), n_steps, width), -1)
        level_passes.list_steps(
            groups,
            levels,
            n_each.cumsum(1) - n_each,
            np.zeros(shape, np.int64),
            found,
        )
        want = []
        for group in range(len(groups)):
            steps = []
            for own in lists[3 * group : 3 * group + 3]:
                for first in range(0, len(own), width):
                    part = own[first : first + width]
                    steps.append(part + [-1] * (width - len(part)))
            want.append(steps + [[-1] * width] * (n_steps - len(steps)))
        assert found.tolist() == want


@pytest.mark.parametrize("largest", [3, 10**9])  # keys that are counted, and too many of them
@CASES
@given(seed=SEEDS)
def test_sorting_is_stable(largest, seed):
    rng = np.random.default_rng(seed)
    keys = rng.integers(-largest, largest, rng.integers(0, 20))
    order = level_passes.sorted_rows(keys)
    assert order.tolist() == np.argsort(keys, kind="stable").tolist()
    before = rng.permutation(len(keys))
    again = level_passes.sorted_rows(keys, before)
    assert again.tolist() == before[np.argsort(keys[before], kind="stable")].tolist()


def levels_one_by_one(n, pairs):
    """The level of each row by rounds over all rows; -1 for a row in a circle, or behind one."""
    levels = [-1] * n
    for _ in range(n):
        for row in range(n):
            below = [levels[awaited] for waiting, awaited in pairs if waiting == row]
            if min(below, default=0) >= 0:
                levels[row] = max(below, default=-1) + 1
    return levels


@CASES
@given(SEEDS)
def test_rows_wait_for_the_highest_level_below(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    pairs = rng.integers(
        0,
        n,
        (rng.integers(0, 10), 2),
    )
    if seed % 3:  # without circles
        pairs = np.sort(
            pairs[pairs[:, 0] != pairs[:, 1]],
            axis=1,
        )[:, ::-1]
    found = waiting_levels(n, pairs[:, 0], pairs[:, 1])
    assert found.tolist() == levels_one_by_one(n, pairs.tolist())


def cheapest(n, sizes, start):
    """The least cost of the steps of a level of so many rows, by trying all."""
    best = [0.0]
    for rows in range(1, n + 1):
        best.append(min(best[max(rows - size, 0)] + start + size for size in sizes))
    return best[n]


@CASES
@given(SEEDS)
def test_levels_are_cut_at_the_least_cost(seed):
    rng = np.random.default_rng(seed)
    counts = rng.integers(
        0,
        40,
        (
            int(rng.integers(1, 4)),
            int(rng.integers(0, 5)),
        ),
    )
    sizes = row_counts(largest_count(int(counts.max(initial=0))))
    start = float(rng.integers(0, 9))
    batch, level = (np.repeat(at.ravel(), counts.ravel()) for at in np.indices(counts.shape))
    order = rng.permutation(len(level))
    layout = lay_out(
        level,
        order,
        batch,
        counts,
        sizes[0] if sizes else 0,
        start,
    )
    for number, n_each in enumerate(counts):
        n_steps = layout.n_steps[number]
        firsts = [*layout.firsts[number, :n_steps], layout.n_rows[number]]
        own_sizes = np.diff(firsts)
        assert set(own_sizes.tolist()) <= set(sizes)
        # a level's rows lie one after the other in steps of their own, at the least cost
        steps = 0
        for own_level, n in enumerate(n_each.tolist()):
            is_own = (batch == number) & (level == own_level)
            at = layout.at[is_own][np.argsort(order[is_own])]
            first = firsts[steps]
            assert at.tolist() == [*range(first, first + n)]
            cost = 0.0
            while firsts[steps] < first + n:
                cost += start + own_sizes[steps]
                steps += 1
            assert cost == cheapest(n, sizes, start)
        assert steps == n_steps
        # a round has the steps of each row count, from large to small, and the next one goes on there
        in_rounds = []
        for starts in layout.starts[number, : layout.n_rounds[number]]:
            for size, begin, end in zip(
                sizes,
                starts[:-1],
                starts[1:],
                strict=True,
            ):
                assert (own_sizes[begin:end] == size).all()
                in_rounds += range(begin, end)
        assert in_rounds == [*range(n_steps)]
