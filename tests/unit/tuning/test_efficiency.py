"""Which choices are promising, before and after trials whose law is known."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

from ampjax.tuning.candidate import Candidate, Figures
from ampjax.tuning.efficiency import LAWS, NOISE, UNCERTAINTY, Law, predicted_seconds, promising
from ampjax.tuning.trial import Goal, Trial

powers = st.builds(
    Law,
    st.floats(0, 2),
    st.floats(0, 1),
)
figures = st.builds(
    Figures,
    st.floats(1, 1000),
    st.floats(0, 30),
    st.floats(0.01, 1),
)
many_figures = st.lists(figures, min_size=1, max_size=12)


def trial(own, n_examples, reached=True):
    """A trial that has come to an accuracy of 0.9 with so many examples, or only half of the way."""
    made = Trial(
        Candidate({}, {}, own),
        None,
        [0],
        [0],
        Goal("accuracy", 0.9),
        1,
    )  # type: ignore[arg-type]
    made.values += [0.0, 0.9 if reached else 0.45]
    made.seconds.append(n_examples / own.per_s)
    made.examples.append(n_examples)
    made.staleness.append(own.staleness)
    return made


def test_without_trials_seconds_follow_from_rate_staleness_and_updates():
    usual = Figures(100.0, 0.0, 1.0)
    choices = [
        usual,
        Figures(200.0, 0.0, 1.0),
        Figures(100.0, 4.0, 1.0),
        Figures(100.0, 0.0, 0.25),
    ]
    seconds = predicted_seconds(choices, [])
    assert [s / seconds[0] for s in seconds] == pytest.approx([1.0, 0.5, 2.0, 2.0])


def test_the_best_under_each_law_come_first_and_each_once():
    fast = Figures(400.0, 8.0, 0.05)
    fresh = Figures(150.0, 0.0, 0.05)
    busy = Figures(200.0, 8.0, 0.8)
    beaten = Figures(100.0, 8.0, 0.05)
    chosen = promising([beaten, fast, fresh, busy, fast], 4)
    assert sorted(chosen[:3]) == [1, 2, 3]
    assert chosen[3] == 4
    assert promising([fast], 3) == [0]
    assert promising([], 3) == []


@settings(max_examples=examples(100))
@given(many_figures, st.integers(1, 12))
def test_each_laws_best_is_among_the_promising(choices, n):
    chosen = promising(choices, n)
    assert len(chosen) == len(set(chosen)) == min(n, len(choices))
    best = set()
    for law in LAWS:
        best.add(int(np.argmin([2 ** law.examples(c) / c.per_s for c in choices])))
    assert set(chosen) <= best or best <= set(chosen)


@settings(max_examples=examples(100))
@given(many_figures, powers, st.floats(100, 10000))
def test_trials_correct_the_law_as_least_squares_with_a_prior(tried, true, factor):
    """The oracle: the mean of a posterior is a least-squares solution with a row for each prior; the trials follow a law exactly."""
    trials = []
    for own in tried:
        trials.append(trial(own, factor * 2 ** true.examples(own)))
    x = np.array([[1.0, Law(1, 0).examples(own), Law(0, 1).examples(own)] for own in tried]) / NOISE
    y = np.array([np.log2(max(own.examples[-1], 1.0)) for own in trials]) / NOISE
    prior = np.array(
        [
            [
                0,
                1 / UNCERTAINTY[0],
                0,
            ],
            [0, 0, 1 / UNCERTAINTY[1]],
        ]
    )
    means = np.array([LAWS[0].staleness_power, LAWS[0].updates_power]) / UNCERTAINTY
    _, staleness, updates = np.linalg.lstsq(
        np.vstack([x, prior]),
        np.concatenate([y, means]),
        rcond=None,
    )[0]
    others = [
        Figures(100.0, 0.0, 1.0),
        Figures(100.0, 4.0, 1.0),
        Figures(100.0, 0.0, 0.5),
    ]
    usual, stale, seldom = predicted_seconds(others, trials)
    assert np.log2([stale / usual, seldom / usual]) == pytest.approx([staleness, updates], abs=1e-6)


def test_who_has_not_come_as_far_needs_twice_what_it_has_had():
    own = Figures(100.0, 0.0, 1.0)
    other = Figures(100.0, 4.0, 1.0)
    behind = [
        trial(own, 1000.0),
        trial(own, 1000.0),
        trial(other, 4000.0, reached=False),
    ]
    ahead = [
        trial(own, 1000.0),
        trial(own, 1000.0),
        trial(other, 8000.0),
    ]
    assert predicted_seconds([own, other], behind) == pytest.approx(
        predicted_seconds([own, other], ahead)
    )


def test_a_trial_without_a_piece_tells_nothing():
    own = Figures(100.0, 4.0, 0.1)
    begun = SimpleNamespace(
        pieces=0,
        choice=Candidate({}, {}, own),
        goal=Goal("accuracy", 0.9),
    )
    assert predicted_seconds([own], [begun]) == predicted_seconds([own], [])  # type: ignore[list-item]
