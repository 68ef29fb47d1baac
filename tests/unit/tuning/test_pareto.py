"""The front's law: nobody on it is dominated, everybody else is, by somebody on it."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from ampjax.tuning.pareto import dominates, non_dominated, spread

objectives = st.tuples(*[st.integers(-3, 3).map(float)] * 3)


@settings(max_examples=examples(300))
@given(st.lists(objectives, max_size=20))
def test_the_front_holds_who_is_not_dominated_and_nobody_else(points):
    front = non_dominated(points)
    assert front == sorted(set(front))
    assert not any(dominates(a, points[i]) for i in front for a in points)
    for i in set(range(len(points))) - set(front):
        assert any(dominates(points[j], points[i]) for j in front)
    assert bool(front) == bool(points)


def test_who_is_equal_does_not_dominate():
    assert non_dominated([(1, 2), (1, 2), (0, 2)]) == [0, 1]
    assert dominates((1, 2), (0, 2)) and not dominates((1, 2), (1, 2)) and not dominates((1, 0), (0, 2))


@settings(max_examples=examples(100))
@given(st.lists(objectives, max_size=12), st.integers(0, 14))
def test_spread_begins_with_the_first_and_takes_each_once(points, n):
    chosen = spread(points, n)
    assert len(chosen) == len(set(chosen)) == min(n, len(points))
    assert not chosen or chosen[0] == 0


def test_spread_takes_the_farthest():
    assert spread([(0.0,), (1.0,), (10.0,), (4.0,)], 3) == [0, 2, 3]
