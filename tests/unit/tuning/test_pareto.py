"""The front's law: nobody on it is dominated, everybody else is, by somebody on it."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from ampjax.tuning.pareto import dominates, non_dominated

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
    assert (
        dominates((1, 2), (0, 2))
        and not dominates((1, 2), (1, 2))
        and not dominates((1, 0), (0, 2))
    )
