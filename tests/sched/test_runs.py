"""Runs: taking from a few sorted runs is taking from one sorted list; so is taking the oldest from a queue."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support import graphs
from support.control import plan_for

from ampjax.ir.state import SLOT
from ampjax.sched.queues import FORWARD, Queue
from ampjax.sched.runs import Chunk, Runs

STAGE = plan_for(graphs.chain(1)).stages[0]
PARTS = st.lists(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), min_size=1, max_size=6), max_size=4)
STEPS = st.lists(st.tuples(PARTS, st.integers(0, 7), st.integers(1, 5)), min_size=1, max_size=12)


def chunk(cells, ages, sizes):
    """Messages of instances in the slots `ages`: `ages[slot]` is the slot."""
    cells = np.asarray(cells, np.int64)
    states = np.zeros((len(cells), 2), np.int64)
    states[:, SLOT] = ages
    return Chunk(states, cells, None if sizes is None else np.asarray(sizes), 0)


def prefix(waiting, max_rows, max_items):
    """The longest beginning of `(age, size, cell)` that fits."""
    rows = 0
    for n, (_, size, _) in enumerate(waiting):
        rows += size
        if rows > max_rows or n == max_items:
            return n
    return len(waiting)


@given(STEPS, st.booleans())
@settings(max_examples=60)
def test_runs_are_one_sorted_list(steps, ragged):
    runs, waiting, cell = Runs(), [], 0
    for parts, max_rows, max_items in steps:
        for part in parts:
            ages, sizes = (list(column) for column in zip(*part, strict=True))
            sizes = sizes if ragged else [1] * len(part)
            cells = range(cell, cell + len(part))
            cell += len(part)
            runs.add(chunk(cells, ages, sizes if ragged else None), np.array(ages))
            waiting = sorted([*waiting, *zip(ages, sizes, cells, strict=True)], key=lambda one: one[0])
        if not waiting:
            continue
        assert runs.first.cells[0] == waiting[0][2]
        n = prefix(waiting, max_rows, max_items)
        taken = runs.take(max_rows, max_items)
        assert taken.cells.tolist() == [one[2] for one in waiting[:n]]
        assert taken.sizes is None or taken.sizes.tolist() == [one[1] for one in waiting[:n]]
        waiting = waiting[n:]
    assert (runs.everything().cells.tolist() if len(runs) else []) == [one[2] for one in waiting]


@given(STEPS, st.booleans())
@settings(max_examples=60)
def test_an_overfull_queue_gives_the_oldest_first(steps, ragged):
    """Against a list that is sorted whenever the oldest are asked for; what comes later stands behind until then."""
    ages = np.arange(16)
    queue, waiting, cell = Queue(STAGE, FORWARD, 4), [], 0
    for parts, max_rows, max_items in steps:
        for part in parts:
            own, sizes = (list(column) for column in zip(*part, strict=True))
            sizes = sizes if ragged else [1] * len(part)
            cells = range(cell, cell + len(part))
            cell += len(part)
            queue.put(chunk(cells, own, sizes if ragged else None))
            waiting += zip(own, sizes, cells, strict=True)
        if not waiting:
            continue
        if max_items > 2:
            queue.oldest_first(ages)
            waiting.sort(key=lambda one: one[0])
        assert queue.first.cells[0] == waiting[0][2]
        n = max(1, prefix(waiting, max_rows, max_items))
        assert queue.take(max_rows, max_items).cells.tolist() == [one[2] for one in waiting[:n]]
        waiting = waiting[n:]
        assert queue.items == len(waiting) and queue.rows == sum(size for _, size, _ in waiting)
    assert [c for part in queue.contents() for c in part.cells.tolist()] == [cell for *_, cell in waiting]


def test_runs_stay_few():
    """A thousand messages that come one by one, in falling age, lie in no more runs than a thousand has binary digits."""
    runs = Runs()
    for i in range(1000):
        runs.add(chunk([i], [1000 - i], None), np.array([1000 - i]))
        assert len(runs) <= 10
    assert runs.take(3, 3).cells.tolist() == [999, 998, 997]
