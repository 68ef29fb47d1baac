"""Queues: first come, first served, cut to size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import graphs
from support.control import plan_for

from ampjax.sched.queues import BACKWARD, FORWARD, Queue
from ampjax.sched.runs import Chunk

STAGE = plan_for(graphs.chain(1)).stages[0]


def queue(max_rows=64, direction=FORWARD):
    return Queue(STAGE, direction, max_rows)


def chunk(cells, sizes=None, born=0):
    cells = np.asarray(cells, np.int64)
    return Chunk(np.stack([cells, cells], axis=1), cells, None if sizes is None else np.asarray(sizes), born)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=8), st.lists(st.integers(1, 9), min_size=1, max_size=60))
def test_messages_leave_in_the_order_in_which_they_came(lengths, limits):
    q, first = queue(), 0
    for born, length in enumerate(lengths):
        q.put(chunk(range(first, first + length), born=born))
        first += length
    left = []
    for limit in limits * 60:
        if not q.items:
            break
        taken = q.take(limit)
        assert 1 <= len(taken.cells) <= limit
        assert len(taken.cells) == limit or q.items == 0  # as much as fits
        left += taken.cells.tolist()
    assert left == list(range(sum(lengths))) and q.items == q.rows == 0


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), min_size=1, max_size=6), st.integers(1, 5))
def test_the_number_of_messages_can_be_limited_too(sizes, most):
    q, cell = queue(), 0
    for part in sizes:
        q.put(chunk(range(cell, cell + len(part)), part))
        cell += len(part)
    taken = [q.take(1 << 60, most).cells.tolist() for _ in range(-(-cell // most))]
    assert [c for cells in taken for c in cells] == list(range(cell)) and q.items == q.rows == 0
    assert all(len(cells) == most for cells in taken[:-1])


@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=6), st.integers(0, 12))
def test_ragged_messages_are_never_cut(sizes, limit):
    q, first, all_sizes = queue(), 0, [s for part in sizes for s in part]
    for part in sizes:
        q.put(chunk(range(first, first + len(part)), part))
        first += len(part)
    order = []
    while q.items:
        before = q.rows
        taken = q.take(limit)
        rows = int(taken.sizes.sum())
        assert rows <= limit or len(taken.cells) == 1  # one that is larger than the limit goes alone
        assert [all_sizes[c] for c in taken.cells] == taken.sizes.tolist()
        assert q.rows == before - rows
        order += taken.cells.tolist()
    assert order == list(range(len(all_sizes)))


def test_what_a_queue_says_of_itself():
    q = queue(max_rows=3, direction=BACKWARD)
    q.put(chunk([1, 2], born=4))
    q.put(chunk([3, 4, 5], born=9))
    assert (q.items, q.rows, q.ready, q.born, q.backward, q.longest) == (5, 5, 3, 4, True, 5)
    assert repr(q) == "Queue(backward of `f0`: 5 messages, 5 rows)"
    assert q.take(2).cells.tolist() == [1, 2]
    assert (q.born, q.ready, q.longest) == (9, 3, 5)
    assert [c.cells.tolist() for c in q.contents()] == [[3, 4, 5]]
    q.clear()
    assert q.items == q.rows == 0 and q.contents() == []


@given(st.lists(st.integers(0, 2), min_size=1, max_size=20), st.integers(1, 6))
def test_messages_of_one_parameter_version_go_together(versions, limit):
    """Every dispatch of stashed weights has one version; the oldest message goes first; within a version the order is kept."""
    q, marks = queue(direction=BACKWARD), np.array(versions)[:, None]
    for start in range(0, len(versions), 3):
        q.put(chunk(range(start, min(start + 3, len(versions)))))
    waiting = list(range(len(versions)))
    while waiting:
        expected = [c for c in waiting if versions[c] == versions[waiting[0]]][:limit]
        assert q.take_like(limit, marks).cells.tolist() == expected
        waiting = [c for c in waiting if c not in expected]
        assert (q.items, q.rows) == (len(waiting), len(waiting))


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_ragged_messages_of_one_version_fit_the_limit(limit):
    q, sizes, marks = queue(direction=BACKWARD), [3, 0, 2, 5, 1], np.array([[0], [1], [0], [0], [0]])
    q.put(chunk(range(5), sizes))
    assert q.take_like(limit, marks).cells.tolist() == {1: [0], 4: [0], 100: [0, 2, 3, 4]}[limit]
