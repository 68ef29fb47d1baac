"""Times that are worked out, against devices whose times are known."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampjax.engine.timing.device_times import Costs, Issued, Timing, place_in_time

KERNELS = {"a": 100, "b": 40}
CHANGES = 30
STAGES = {name: i for i, name in enumerate("abc")}


def device(tasks, every, cost=lambda name, i: KERNELS[name]):
    """What a device that runs in order does, and what a host sees of it.

    Args:
      tasks: For each launch the stage, whether it changes parameters, and how long the host takes before it issues it.
      every: One dispatch in so many is timed.
      cost: The kernels' time.

    Returns:
      The issues, and the true times of each.
    """
    now = free = 0
    issues = []
    truth = []
    for i, (name, changes, pause) in enumerate(tasks):
        now += pause
        work = STAGES[name], "forward", changes
        timed = i % every == 0
        waited = free > now
        if timed:
            now = max(now, free)
        idle = now
        start = max(now, free)
        between = start + cost(name, i)
        free = between + CHANGES * changes
        if timed:
            timing = Timing(idle, waited, (between - start, free - between))
        else:
            timing = None
        issues.append(
            Issued(
                work,
                8,
                idle,
                between if timed else idle,
                timing,
            )
        )
        truth.append((start, between, between, free))
        if timed:
            now = free
    return issues, truth


work = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.booleans(),
        st.integers(0, 250),
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=50)
@given(work, st.integers(1, 9))
def test_times_are_exact_where_a_stage_always_takes_the_same(work, every):
    first = [
        work for work in itertools.product("ab", (True, False), [0]) for _ in range(every)
    ]  # each is timed once
    issues, truth = device(first + work, every)
    found = np.array(
        place_in_time(
            issues,
            Costs(issues),
            truth[-1][3],
        )
    )
    np.testing.assert_allclose(found, truth, atol=3)


@settings(max_examples=50)
@given(
    work,
    st.integers(1, 9),
    st.lists(
        st.integers(1, 400),
        min_size=40,
        max_size=40,
    ),
)
def test_whatever_the_device_does_the_order_is_kept_and_timed_dispatches_are_exact(
    work, every, costs
):
    issues, truth = device(work, every, lambda name, i: costs[i])
    placed = place_in_time(issues, Costs(issues), truth[-1][3])
    edges = []
    for times in placed:
        for edge in times:
            edges.append(edge)
    assert edges == sorted(edges)
    assert edges[-1] <= truth[-1][3]
    for issue, times, true in zip(issues, placed, truth, strict=True):
        assert times[0] >= issue.start_ns
        if issue.timing is not None:
            assert times == true


@settings(max_examples=30)
@given(
    st.integers(2, 8),
    st.floats(0.3, 3.0),
)
def test_a_device_that_changes_its_pace_is_followed(every, pace):
    """Where it is never idle, what lies between two timed dispatches ends when the second one starts."""
    issues, truth = device(
        [("a", False, 1)] * 40,
        every,
        lambda name, i: int(100 * (pace if i >= 16 else 1)),
    )
    placed = place_in_time(issues, Costs(issues), truth[-1][3])
    ends = [times[3] for times in placed]
    for before in range(every - 1, 39, every):  # the next one is timed
        assert ends[before] == pytest.approx(
            truth[before][3], abs=every
        )  # each time is cut to whole nanoseconds


def test_the_time_of_a_compilation_is_no_other_dispatchs():
    issues, _ = device(
        [("a", False, 0)] * 3,
        1,
        lambda name, i: 10**6 if i == 0 else 100,
    )
    assert issues[0].timing is not None
    issues[0] = issues[0]._replace(timing=issues[0].timing._replace(compiled=True))
    assert Costs(issues).of(issues[0]) == (100, 0.0)


def test_a_size_that_was_never_timed_takes_its_neighbours_time():
    issues, _ = device(
        [("a", False, 0), ("b", False, 0)],
        1,
    )
    costs = Costs(issues)
    other = Issued(
        (STAGES["a"], "forward", False),
        4096,
        0,
        0,
    )
    assert costs.of(other) == (KERNELS["a"], 0.0)
    assert costs.of(
        Issued(
            (STAGES["c"], "forward", False),
            8,
            0,
            0,
        )
    ) == (KERNELS["b"], 0.0), "what is usual"
    assert Costs([]).of(other) == (0.0, 0.0)


@pytest.mark.parametrize("changes", [False, True])
def test_what_was_never_timed_with_changes_takes_the_kernels_time_without_and_the_other_way_round(
    changes,
):
    issues, _ = device([("a", changes, 0)], 1)
    assert Costs(issues).of(
        Issued(
            (STAGES["a"], "forward", not changes),
            8,
            0,
            0,
        )
    ) == (
        KERNELS["a"],
        0.0,
    )
