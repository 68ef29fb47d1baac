import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampjax.errors import SettingsError
from ampjax.parallel.planning.partition_search import Fit, best_count, fit, next_count, search
from ampjax.viz.partitions import partition_search


def curve(optimum, floor=1.0, share=0.1):
    """A time with its minimum at `optimum`: θ1/θ2 = optimum²."""
    return lambda count: floor + share * optimum / count + share * count / optimum


@given(
    st.floats(1.0, 4096.0),
    st.integers(1, 256),
)
@settings(max_examples=200)
def test_the_minimum_of_the_model_is_found_with_few_samples(optimum, start):
    time = curve(optimum)
    result = search("emb", time, start)
    brute = min(
        range(
            max(1, int(optimum) - 1),
            int(optimum) + 3,
        ),
        key=time,
    )
    assert time(result.partitions) <= time(brute) * (1 + 1e-9)
    assert len(result.samples) <= 3 + abs(math.log2(result.partitions / start)) + 1e-9


def test_the_order_is_doubling_then_halving():
    assert list(
        search(
            "up",
            curve(64.0),
            8,
        ).samples
    ) == [8, 16, 32, 64, 128]
    assert list(
        search(
            "down",
            curve(2.0),
            8,
        ).samples
    ) == [8, 16, 4, 2]


def test_bounds_are_kept():
    assert list(
        search(
            "emb",
            curve(100.0),
            4,
            low=1,
            high=24,
        ).samples
    ) == [4, 8, 16, 24]
    assert list(
        search(
            "emb",
            curve(1.0),
            8,
            low=3,
            high=64,
        ).samples
    ) == [8, 16, 4, 3]
    assert search("emb", curve(5.0), 8, low=7, high=7).partitions == 7


@given(
    st.lists(
        st.floats(0.5, 1.5),
        min_size=30,
        max_size=30,
    ),
    st.integers(1, 64),
    st.integers(1, 100),
    st.integers(0, 500),
)
@settings(max_examples=100)
def test_noise_ends_too_and_stays_inside(noise, start, low, more):
    times = iter(noise)
    result = search(
        "emb",
        lambda count: next(times),
        start,
        low,
        low + more,
    )
    assert min(result.samples) <= result.partitions <= max(result.samples)
    assert all(low <= count <= low + more for count in result.samples)


@pytest.mark.parametrize("rounding", [0, 1e-15])
def test_a_flat_time_takes_what_was_fastest(rounding):
    result = search(
        "emb",
        lambda count: 1.0 + rounding * (9 / count + count),
        4,
    )
    assert result.partitions == min(result.samples, key=result.samples.__getitem__)
    assert result.fit == Fit(pytest.approx(1.0), 0, 0)


def test_the_fit_is_exact_on_the_model_and_needs_three_samples():
    model = fit({p: 3 + 8 / p + 0.5 * p for p in (1, 2, 4, 8)})
    assert (model.theta0, model.theta1, model.theta2) == pytest.approx((3, 8, 0.5))
    assert fit({1: 1.0, 2: 2.0}) is None
    assert best_count({1: 1.0, 2: 2.0}) == 1


def test_it_prints_and_draws(tmp_path):
    result = search("emb", curve(10.0), 4)
    assert str(result).startswith("emb: 10 partitions (tried 4: ")
    partition_search([result], tmp_path / "search.png")
    assert (tmp_path / "search.png").stat().st_size > 5000


def test_mistakes():
    with pytest.raises(SettingsError, match="1 <= low <= high"):
        search("emb", curve(2.0), 1, low=5, high=2)
    with pytest.raises(SettingsError, match="a time above 0"):
        search("emb", lambda count: 0.0, 1)
    with pytest.raises(SettingsError, match="at least one sample"):
        best_count({})
    with pytest.raises(SettingsError, match="at least one result"):
        partition_search([])
    assert next_count({}, 4, 1, 2) == 2
