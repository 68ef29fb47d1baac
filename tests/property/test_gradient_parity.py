"""Law 2: under any schedule, the accumulated gradients are those of the composed function.

Every run also checks the scheduler's invariants after every event: law 5 (throttle), and law 1 (nothing is left over at the end).
"""

import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.effort import AS_USERS, NIGHTLY, examples
from support.laws import (
    SIZES,
    Costs,
    Scattered,
    Schedule,
    assert_parity,
    cases,
    frozen,
    run_python,
    schedules,
)

if NIGHTLY:
    GRAPHS, RICH, CASES = 60, 6, 2000
else:
    GRAPHS, RICH, CASES = 4, 1, 80 if AS_USERS else 20
"""Graphs (the oracle runs once for each), those that also run fused and on several devices, and schedules in all."""


@settings(max_examples=CASES)
@given(cases(GRAPHS, RICH, sizes=SIZES))
@example(
    (
        3,
        Schedule(
            frozen(max_active_keys=4, max_dispatch_size=4, workers=2, affinity=Scattered(1)),
            2,
            Costs(0, 2),
        ),
    )
)
def test_any_graph_under_any_schedule(case):
    assert_parity(*case)


@pytest.mark.long
@settings(max_examples=int(os.environ.get("AMPJAX_CASES", 100_000)))
@given(cases(300, RICH))
def test_a_hundred_thousand_cases(case):
    """Hours on two cores, with 0.07 s a case; `AMPJAX_CASES` sets another number."""
    assert_parity(*case)


@pytest.mark.users
@settings(max_examples=examples(40))
@given(
    st.integers(0, min(5, GRAPHS - 1)),
    schedules(weights="stashed"),
)
def test_stashed_weights_are_the_current_ones_while_nothing_updates(seed, schedule):
    assert_parity(seed, schedule)


@pytest.mark.users
@settings(max_examples=examples(40))
@given(
    st.sampled_from([2, 9] if NIGHTLY else [2]),
    schedules(
        sizes=(1, 4) if NIGHTLY else (4,),
        arena_rows=4,
    ),
)
def test_growing_arenas_change_nothing(seed, schedule):
    """Arenas double while dispatches are under way on their old arrays. (On the clock the first ones are decided together, and may find them large enough.)"""
    engine = assert_parity(seed, schedule)
    assert engine.executor.arenas.grown or schedule.costs is None


IN_FLOAT64 = f"""
from hypothesis import given, settings
from support.laws import assert_parity, cases

@settings(max_examples={60 if NIGHTLY else 12}, database=None, deadline=None, derandomize=True)
@given(cases({12 if NIGHTLY else 3}, 1, sizes=(1, 4)))
def check(case):
    assert_parity(*case, dtype="float64", tolerance=1e-10)

check()
"""


@pytest.mark.users
def test_in_float64_to_ten_digits():
    run_python(IN_FLOAT64, JAX_ENABLE_X64="1")
