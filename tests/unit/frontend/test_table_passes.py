"""The host's passes over rows, beside plain NumPy and Python on random lengths."""

import numpy as np
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from support.effort import examples
from support.row_groups import random_groups

from ampjax.frontend.loops import table_passes

CASES = hypothesis_settings(max_examples=examples(200), deadline=None)
SEEDS = st.integers(0, 2**32 - 1)


@CASES
@given(SEEDS)
def test_inner_rows_are_listed_in_the_order_of_the_outer_ones(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, rng.integers(0, 9))
    ends = np.cumsum(sizes)
    groups = random_groups(rng, len(sizes))
    wanted = []
    for group in groups:
        own = [np.arange(ends[row] - sizes[row], ends[row]) for row in group if row >= 0]
        wanted.append(
            np.concatenate(
                [
                    np.zeros(
                        0,
                        np.int64,
                    ),
                    *own,
                ]
            ).tolist()
        )
    width = table_passes.widest_inside(groups, sizes)
    assert width == max(map(len, wanted))
    found = np.full((len(groups), width + 1), -1)
    table_passes.list_inside(groups, sizes, ends, found)
    for row, inner in zip(found, wanted, strict=True):
        assert row.tolist() == inner + [-1] * (width + 1 - len(inner))


@CASES
@given(SEEDS)
def test_gaps_are_filled_from_the_same_group_if_it_has_a_row(seed):
    rng = np.random.default_rng(seed)
    groups = random_groups(rng, 9)
    batches = np.stack(
        [
            groups,
            rng.permutation(groups.ravel()).reshape(groups.shape),
            groups * 0 - 1,
        ]
    )
    found = np.empty_like(batches)
    table_passes.fill(batches, found)
    for own_groups, filled in zip(batches, found, strict=True):
        every = own_groups[own_groups >= 0]
        for before, after in zip(own_groups, filled, strict=True):
            own = before[before >= 0]
            spare = own[0] if len(own) else every[0] if len(every) else -1
            assert after.tolist() == np.where(before >= 0, before, spare).tolist()


@CASES
@given(SEEDS)
def test_readers_are_those_that_read(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 6))
    wanted = rng.integers(
        -1,
        n,
        (
            int(rng.integers(1, 4)),
            int(rng.integers(0, 12)),
        ),
    )
    lists = []
    for batch in wanted:
        lists += [np.flatnonzero(batch == row).tolist() for row in range(n)]
    counts = np.zeros((len(wanted), n), np.int64)
    most = table_passes.count_readers(wanted, counts)
    assert counts.ravel().tolist() == [*map(len, lists)]
    assert most == max(1, counts.max())
    found = np.full(
        (*counts.shape, most),
        -7,
        np.int32,
    )
    table_passes.list_readers(wanted, np.zeros_like(counts), found)
    for row, readers in zip(
        found.reshape(-1, most),
        lists,
        strict=True,
    ):
        assert row.tolist() == readers + [-7] * (most - len(readers))


@CASES
@given(SEEDS)
def test_rows_find_what_they_read(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    lies = np.where(
        rng.random(n) < 0.2,
        -1,
        rng.permutation(3 * n)[:n],
    )
    wanted = rng.integers(-1, n, rng.integers(1, 7))
    rows = rng.integers(-1, len(wanted), 9)
    n_rows = int(rng.integers(1, 5))
    places = np.maximum(lies[wanted[rows]], 0) % n_rows
    reads = (rows >= 0) & (wanted[rows] >= 0)
    found = np.zeros(9, np.int32)
    table_passes.find_places(rows, wanted, lies, n_rows, found)
    assert found.tolist() == np.where(reads, places, 0).tolist()
    found = np.zeros(9, np.int64)
    table_passes.find_wanted(rows, wanted, lies, n_rows, found)
    is_there = lies[wanted[rows]] >= 0
    assert found.tolist() == np.where(reads & is_there, places, -1).tolist()


@CASES
@given(SEEDS, st.booleans())
def test_states_come_from_the_loop_or_from_before_it(seed, has_start):
    rng = np.random.default_rng(seed)
    positions = rng.permutation(6)
    before = rng.permutation(4)
    awaited = rng.integers(-1, 6, 5)
    start = rng.integers(-1, 4, 5) if has_start else np.zeros(0, np.int64)
    rows = rng.integers(-1, 5, 8)
    other = np.full(8, -1)
    if has_start:
        other = np.where(
            start[rows] >= 0,
            before[start[rows]],
            -1,
        )
    wanted = np.where(
        awaited[rows] >= 0,
        positions[awaited[rows]],
        other,
    )
    wanted[rows < 0] = -1
    found = np.empty(8, np.int64)
    table_passes.find_states(rows, awaited, positions, start, before, found)
    assert found.tolist() == wanted.tolist()


@CASES
@given(SEEDS)
def test_parents_are_found_in_any_order(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 4, rng.integers(1, 9))
    sizes[rng.integers(len(sizes))] += 1
    rows = rng.integers(0, sizes.sum(), 12)
    rows = np.sort(rows) if seed % 2 else rows
    found = np.empty(12, np.int64)
    table_passes.find_parents(np.cumsum(sizes), rows, found)
    assert found.tolist() == np.repeat(np.arange(len(sizes)), sizes)[rows].tolist()


@CASES
@given(SEEDS)
def test_pairs_of_tiles(seed):
    rng = np.random.default_rng(seed)
    n, height, width = rng.integers(1, 5, 3)
    around = rng.integers(0, 50, (n, height))
    across = rng.integers(0, 50, (n, width))
    first = rng.integers(0, 5, n)
    is_around = rng.random((n, height)) < 0.5
    is_across = rng.random((n, width)) < 0.5
    pairs = around[:, :, None] + (across - first[:, None])[:, None]
    is_there = is_around[:, :, None] & is_across[:, None]
    there, filled = np.empty(
        (2, n, height, width),
        np.int64,
    )
    table_passes.list_pairs(around, across, first, is_around, is_across, there, filled)
    assert filled.tolist() == pairs.tolist()
    assert there.tolist() == np.where(is_there, pairs, -1).tolist()
