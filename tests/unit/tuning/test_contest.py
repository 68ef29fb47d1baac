"""Contests of trials that are told in advance how well they will do, on a clock of their own."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.told_trials import Clock, Told, needed_s

from ampjax.tuning.budget import Budget
from ampjax.tuning.contest import MOST, contest, slowness, standings
from ampjax.tuning.trial import Goal


def nobody(trials):
    return []


def test_the_fastest_to_the_target_wins_and_nobody_goes_on_after_it():
    clock = Clock()
    trials = [Told(clock, rate) for rate in (0.05, 0.4, 0.1)]
    ranked = contest(list(trials), nobody, Budget(1000.0, clock))
    assert ranked[0] is trials[1]
    assert ranked[0].to_target == pytest.approx(
        (
            needed_s(0.4),
            100 * needed_s(0.4),
        )
    )
    assert [trial.seconds[-1] for trial in trials] == [3.0, 5.0, 3.0], (
        "who has trained as long can't win any more"
    )
    assert clock.now_s == 22.0, "the winner is seen for two validations more"


class Falling(Told):
    """One whose accuracy goes down again, by `loss` a second, once it has reached the target."""

    def __init__(self, clock, rate, loss):
        super().__init__(clock, rate)
        self.loss = loss

    def advance(self, budget):
        reached = self.to_target is not None
        super().advance(budget)
        if reached:
            self.values[-1] = max(
                0.0,
                self.values[-2] - self.loss,
            )


@pytest.mark.parametrize(
    ("loss", "wins"),
    [(0.2, False), (0.03, True)],
)
def test_who_falls_back_after_the_target_does_not_win(loss, wins):
    clock = Clock()
    falling = Falling(clock, 0.45, loss)
    steady = Told(clock, 0.1)
    ranked = contest([falling, steady], nobody, Budget(1000.0, clock))
    assert falling.falls_back != wins and falling.to_target is not None
    assert ranked[0] is (falling if wins else steady)
    assert wins or steady.to_target is not None, (
        "the steady one goes on until it has reached the target, too"
    )


def test_whether_smaller_is_better_may_be_said():
    up = Goal("score", 1.0, smallest=False)
    down = Goal("score", 1.0, smallest=True)
    assert up.is_met(2.0) and not down.is_met(2.0)
    assert up.badness(2.0) < up.badness(1.0)
    assert down.badness(1.0) < down.badness(2.0)


def test_who_has_trained_least_goes_on():
    clock = Clock()
    trials = []
    for piece_s in (1.0, 2.0, 3.0):
        trials.append(Told(clock, 0.001, piece_s))
    contest(list(trials), nobody, Budget(100.0, clock))
    first_round = []
    for trial in trials:
        first_round.append(sum(s <= 6 for s in trial.seconds) - 1)
    assert min(first_round) >= 1
    assert first_round[0] >= first_round[1] >= first_round[2]


def test_the_worse_half_ends_after_each_round_and_two_go_on_to_the_end():
    clock = Clock()
    rates = (0.001, 0.002, 0.003, 0.004, 0.005, 0.006)
    trials = [Told(clock, rate) for rate in rates]
    ranked = contest(list(trials), nobody, Budget(240.0, clock))
    assert ranked == trials[::-1]
    assert [trial.pieces for trial in trials] == [5, 5, 5, 15, 45, 45]


def test_nobody_ends_who_has_not_trained_at_all():
    """A round of 8 s, in which two of four pieces fit; the best one is the last to train."""
    clock = Clock()
    trials = []
    for rate in (0.01, 0.02, 0.03, 0.04):
        trials.append(Told(clock, rate, 2.0))
    ranked = contest(list(trials), nobody, Budget(32.0, clock))
    assert all(trial.pieces for trial in trials)
    assert ranked[0] is trials[-1]


def test_the_budget_is_kept_and_the_piece_that_goes_beyond_does_not_count():
    clock = Clock()
    trials = [Told(clock, 0.001, 4.0)]
    contest(list(trials), nobody, Budget(20.0, clock))
    assert trials[0].pieces == 2 and clock.now_s == 24.0


def test_others_enter_after_a_round_and_catch_up():
    clock = Clock()
    slow = Told(clock, 0.01)
    quick = Told(clock, 0.09)
    asked = []

    def admit(trials):
        asked.append(len(trials))
        return [quick] if len(asked) == 1 else []

    ranked = contest([slow], admit, Budget(200.0, clock))
    assert ranked == [quick, slow] and asked[:2] == [1, 2]


def test_a_diverged_trial_ends():
    clock = Clock()
    bad = Told(clock, math.nan)
    good = Told(clock, 0.3)
    bad.top = math.nan
    ranked = contest([bad, good], nobody, Budget(1000.0, clock))
    assert ranked == [good, bad] and bad.pieces == 1


def test_who_has_trained_longer_is_not_before_others_for_that():
    clock = Clock()
    long = Told(clock, 0.01)
    short = Told(clock, 0.02)
    for trial, n in ((long, 9), (short, 2)):
        for _ in range(n):
            trial.advance(Budget(1000.0, clock))
    assert long.values[-1] > short.values[-1]
    assert standings([long, short]) == [short, long]


def test_who_is_validated_a_little_later_is_not_behind_for_that():
    """Curves are steep before the first validation: there, a straight line would say that 0.6 came 0.9 pieces after the beginning, not half a piece."""
    clock = Clock()
    quick, later = advanced(
        [Told(clock, 0.0, 1.0), Told(clock, 0.0, 1.2)],
        1,
    )
    quick.values[-1] = 0.66
    later.values[-1] = 0.72
    assert 0.6 * later.seconds[-1] / 0.72 > 0.6 / 0.66, "by straight lines"
    assert standings([quick, later]) == [later, quick]


def advanced(trials, n):
    """Trials after some pieces each."""
    for trial in trials:
        for _ in range(n):
            trial.advance(Budget(1e9, trial.clock))
    return trials


@settings(max_examples=examples(100))
@given(
    st.lists(
        st.floats(0.3, 3.0),
        min_size=2,
        max_size=6,
    ),
    st.integers(1, 8),
    st.data(),
)
def test_slowness_is_the_factor_of_seconds_by_which_curves_differ(factors, most, data):
    """The oracle: curves of one shape, each in its own time, straight between any two validations as the comparison takes them to be."""
    trials = [Stretched(Clock(), factor) for factor in factors]
    for trial in trials:
        advanced([trial], data.draw(st.integers(1, most)))
    furthest = min(
        trials,
        key=lambda trial: (
            -trial.values[-1],
            trial.seconds[-1],
        ),
    )
    got = slowness(trials)
    for trial, slow in zip(trials, got, strict=True):
        assert slow == pytest.approx(
            np.clip(
                np.log(trial.factor / furthest.factor),
                -np.log(MOST),
                np.log(MOST),
            ),
            abs=1e-6,
        )
    ranked = []
    for trial in standings(trials):
        if trial.factor < MOST * furthest.factor:
            ranked.append(trial.factor)
    assert ranked == pytest.approx(sorted(ranked), rel=1e-6)


class Stretched(Told):
    """A trial whose accuracy is that of all others, a logarithm of the examples, which it needs `factor` times as many seconds for."""

    def __init__(self, clock, factor):
        super().__init__(clock, 0.0)
        self.factor = factor

    def advance(self, budget):
        super().advance(budget)
        self.examples[-1] = 100 * self.seconds[-1] / self.factor
        self.values[-1] = math.log1p(self.examples[-1]) / 20


def test_one_lucky_value_does_not_decide():
    clock = Clock()
    steady, lucky = advanced(
        [Told(clock, 0.05), Told(clock, 0.04)],
        8,
    )
    lucky.values[-1] = 0.41
    assert lucky.values[-1] > steady.values[-1]
    assert standings([lucky, steady]) == [steady, lucky]


def told(clock, *values):
    """A trial with these accuracies, a piece of a second each."""
    trial = advanced(
        [Told(clock, 0.0)],
        len(values) - 1,
    )[0]
    trial.values[:] = values
    return trial


@pytest.mark.parametrize(
    ("learns", "stuck"),
    [
        ((0.10, 0.10, 0.10, 0.5, 0.91), (0.10, 0.11, 0.11, 0.11, 0.11)),
        ((0.10, 0.09, 0.3, 0.6, 0.89), (0.10, 0.12, 0.2, 0.3, 0.35)),
        ((0.10, 0.10, 0.10, 0.10, 0.6, 0.8), (0.10, 0.12, 0.13, 0.14, 0.15, 0.16)),
    ],
)
def test_a_curve_that_rises_late_is_before_one_that_never_does(learns, stuck):
    """As at the accuracy of chance: there a value tells nothing of when it was come to."""
    clock = Clock()
    trials = [told(clock, *stuck), told(clock, *learns)]
    assert standings(trials) == trials[::-1]
    assert slowness(trials)[1] == pytest.approx(0.0)


def test_who_has_reached_the_target_is_before_who_has_not_and_seems_quicker():
    clock = Clock()
    reached = told(clock, 0.0, 0.1, 0.2, 0.3, 0.95)
    quicker = told(clock, 0.0, 0.5, 0.8, 0.85, 0.89)
    assert slowness([reached, quicker])[1] < 0.0
    assert standings([quicker, reached]) == [reached, quicker]


def test_values_that_got_worse_again_count_as_the_best_before():
    clock = Clock()
    steady, shaky = advanced(
        [Told(clock, 0.05), Told(clock, 0.05)],
        4,
    )
    shaky.values[3] = 0.02
    assert shaky.best_values == pytest.approx([0.0, 0.05, 0.1, 0.1, 0.2])
    slow = slowness([steady, shaky])
    assert slow[0] == pytest.approx(0.0)
    assert 0.05 < slow[1] < 0.2


def test_who_has_not_trained_yet_is_behind_those_that_have_and_before_who_has_diverged():
    clock = Clock()
    slow = Told(clock, 0.05)
    quick = Told(clock, 0.1)
    fresh = Told(clock, 0.4)
    bad = Told(clock, math.nan, top=math.nan)
    advanced([slow, quick, bad], 2)
    assert standings([bad, fresh, slow, quick]) == [quick, slow, fresh, bad]
    assert slowness([fresh]) == [math.inf]
    assert standings([fresh]) == [fresh]


def test_a_trial_that_took_no_time_is_compared():
    """Where compiling took all of a piece, it counts no seconds."""
    clock = Clock()
    none, some = advanced(
        [Told(clock, 0.05), Told(clock, 0.05)],
        1,
    )
    none.seconds[-1] = 0.0
    assert standings([some, none]) == [none, some]
    assert np.isfinite(slowness([some, none])).all()


def test_who_lasted_longer_is_before_who_ended_sooner():
    clock = Clock()
    best, second, early, stuck = (
        Told(clock, *how) for how in ((0.011,), (0.0103,), (0.009,), (0.0105,))
    )
    stuck.top = 0.021
    quick = [Told(clock, 0.02), Told(clock, 0.019)]
    asked = []

    def admit(trials):
        asked.append(len(trials))
        return quick if len(asked) == 1 else []

    ranked = contest(
        [best, second, early, stuck],
        admit,
        Budget(64.0, clock),
    )
    by_curves = standings([*quick, second, stuck])
    assert by_curves == [*quick, second, stuck]
    assert second.pieces == early.pieces == 2 < stuck.pieces
    assert ranked == [*quick, best, stuck, second, early]


def test_values_between_two_validations_are_interpolated_over_the_logarithm_of_the_examples():
    clock = Clock()
    trial = Told(clock, 0.25, piece_s=2.0)
    for _ in range(2):
        trial.advance(Budget(1000.0, clock))
    assert trial.values == [0.0, 0.5, 1.0]
    half = math.sqrt(201.0) - 1
    assert trial.to_value(0.25) == pytest.approx((half / 100, half))
    assert trial.to_value(0.0) == (0.0, 0.0)
    assert trial.to_value(1.5) is None
    result = trial.result()
    assert result.seconds == 4.0
    assert result.examples == 400
    assert result.per_s == 100.0
    assert result.best == 1.0
    assert result.seconds_to_target == pytest.approx((201.0 * (401.0 / 201.0) ** 0.8 - 1) / 100)


def test_losses_fall():
    goal = Goal("loss", 0.5)
    assert goal.is_met(0.5) and not goal.is_met(0.6)
    assert goal.badness(0.1) < goal.badness(0.2) < goal.badness(math.nan) == math.inf
    assert not Goal("loss", None).is_met(-1.0)
