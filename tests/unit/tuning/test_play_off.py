"""The best two trials of a contest run again, with other luck."""

import math

import numpy as np
import pytest
from support.told_trials import Clock, Told, needed_s

from ampjax.tuning.budget import Budget
from ampjax.tuning.contest import slowness
from ampjax.tuning.play_off import CLEAR, NOISE, RUNS, expected_loss, play_off


def reached(clock, rate):
    """A trial that has come to its target, an accuracy of 0.9."""
    trial = Told(clock, rate)
    while trial.to_target is None:
        trial.advance(Budget(1e9, clock))
    return trial


def luck(clock, *rates):
    """Makes the trials of later runs, by run and finalist; tells which runs were asked for."""
    asked = []

    def again(finalists, run):
        asked.append(run)
        return [Told(clock, rate) for rate in rates[run - 1]]

    return again, asked


def test_the_mean_of_all_runs_decides():
    clock = Clock()
    lucky = reached(clock, 0.27)
    steady = reached(clock, 0.25)
    third = Told(clock, 0.1)
    again, asked = luck(clock, (0.15, 0.25), (0.15, 0.25))
    assert play_off(
        [lucky, steady, third],
        again,
        Budget(1000.0, clock),
    ) == [steady, lucky, third]
    assert asked == [1, 2] and len(lucky.runs) == RUNS
    most_s = CLEAR * needed_s(0.25)
    assert needed_s(0.15) > most_s, "who is far behind is stopped there"
    assert lucky.runs == pytest.approx((needed_s(0.27), most_s, most_s))
    assert steady.runs == pytest.approx(3 * (needed_s(0.25),))
    result = lucky.result()
    assert result.runs == RUNS and result.seconds_to_target == pytest.approx(
        (needed_s(0.27) * most_s**2) ** (1 / 3)
    )
    assert third.result().runs == 1 and third.pieces == 0


def test_a_finalist_that_the_contest_stopped_goes_on_to_the_target():
    clock = Clock()
    first = reached(clock, 0.27)
    second = Told(clock, 0.25)
    again, _ = luck(clock, (0.2, 0.3), (0.2, 0.3))
    assert play_off(
        [first, second],
        again,
        Budget(1000.0, clock),
    ) == [second, first]
    assert second.runs[0] == pytest.approx(needed_s(0.25))


def test_whole_curves_decide_where_luck_at_the_target_would():
    """One comes to the target a little sooner, for one good validation; everywhere else it is a quarter slower."""
    clock = Clock()
    lucky = Told(clock, 0.1)
    steady = Told(clock, 0.125)
    for trial in (lucky, steady):
        for _ in range(7):
            trial.advance(Budget(1e9, clock))
    lucky.values[-1] = 0.95
    again, _ = luck(clock)
    assert lucky.to_target[0] < 7.0
    assert play_off(
        [lucky, steady],
        again,
        Budget(6.0, clock),
    ) == [steady, lucky]
    assert lucky.runs[0] < steady.runs[0] == pytest.approx(needed_s(0.125))


def test_who_is_far_behind_is_stopped_and_needs_no_second_run():
    clock = Clock()
    first = reached(clock, 0.3)
    second = Told(clock, 0.01)
    again, asked = luck(clock)
    assert play_off(
        [first, second],
        again,
        Budget(1000.0, clock),
    ) == [first, second]
    assert not asked
    assert second.seconds[-1] == 5.0
    assert second.result().seconds_to_target is None


@pytest.mark.parametrize(
    "runs",
    [
        [(3.0, 3.0)],
        [(3.0, 3.3)],
        [(3.3, 3.0)],
        [(3.0, 4.0), (4.0, 3.1)],
        [(2.0, 1.9), (2.2, 2.1), (2.0, 1.8)],
    ],
)
def test_what_the_wrong_choice_costs_on_average_is_that_of_all_quotients_that_may_be_true(runs):
    """By numerical integration; the quotient's logarithm is around the mean, its variance over n, with one run more that showed `NOISE`."""
    ratios = np.log([one / other for one, other in runs])
    error = np.sqrt((NOISE**2 + len(ratios) * ratios.var()) / len(ratios) ** 2)
    true = np.linspace(
        ratios.mean() - 12 * error,
        ratios.mean() + 12 * error,
        200_001,
    )
    density = np.exp(-(((true - ratios.mean()) / error) ** 2) / 2) / (error * np.sqrt(2 * np.pi))
    lost = np.maximum(
        -true * np.sign(ratios.mean() or 1.0),
        0.0,
    )
    assert expected_loss(ratios) == pytest.approx(
        (lost * density).sum() * (true[1] - true[0]),
        rel=1e-4,
    )


def test_runs_end_as_soon_as_one_choice_is_clearly_ahead():
    def n_runs(first, *later):
        clock = Clock()
        again, asked = luck(clock, *later)
        play_off(
            [reached(clock, first), reached(clock, 0.25)],
            again,
            Budget(1000.0, clock),
        )
        return 1 + len(asked)

    assert n_runs(0.35) == 1
    assert n_runs(0.29, (0.29, 0.25)) == 2  # both times by as much
    assert n_runs(0.29, (0.25, 0.25), (0.2, 0.25)) == 3


def test_a_run_for_which_the_budget_is_too_short_does_not_begin_and_one_that_it_ends_does_not_count():
    clock = Clock()
    again, asked = luck(clock, (0.2, 0.3))
    play_off(
        [reached(clock, 0.26), reached(clock, 0.25)],
        again,
        Budget(5.0, clock),
    )
    assert not asked
    trials = [reached(clock, 0.26), reached(clock, 0.25)]
    again, asked = luck(clock, (0.2, 0.01))
    assert play_off(trials, again, Budget(12.0, clock)) == trials
    assert asked == [1]
    assert [len(trial.runs) for trial in trials] == [1, 1]


def test_who_was_stopped_before_the_target_does_not_win_for_its_beginning():
    clock = Clock()
    first = reached(clock, 0.25)
    second = Told(clock, 0.25)
    for _ in range(4):
        second.advance(Budget(1e9, clock))
    second.values[:] = [0.0, 0.6, 0.7, 0.75, 0.8]
    second.rate = 0.2
    second.top = 0.85
    again, _ = luck(clock)
    assert slowness([first, second])[1] < 0.0
    assert play_off(
        [first, second],
        again,
        Budget(12.0, clock),
    ) == [first, second]
    assert second.to_target is None


def test_finalists_that_have_not_trained_are_left():
    """Where untrained parameters are as good as the target: there is nothing to choose by."""
    clock = Clock()
    trials = [Told(clock, 0.2), Told(clock, 0.3)]
    for trial in trials:
        trial.values[0] = 0.95
    again, asked = luck(clock)
    assert play_off(trials, again, Budget(100.0, clock)) == trials and not asked


def test_one_trial_or_a_target_that_nobody_has_reached_leave_the_order():
    clock = Clock()
    again, asked = luck(clock)
    alone = [reached(clock, 0.3)]
    far = [Told(clock, 0.01), Told(clock, 0.02)]
    assert play_off(alone, again, Budget(100.0, clock)) == alone
    assert play_off(far, again, Budget(100.0, clock)) == far
    assert not asked


def test_a_run_in_which_all_diverge_does_not_count():
    clock = Clock()
    trials = [reached(clock, 0.26), reached(clock, 0.25)]

    def again(finalists, run):
        bad = []
        for _ in finalists:
            bad.append(Told(clock, math.nan, top=math.nan))
        return bad

    assert play_off(trials, again, Budget(1000.0, clock)) == trials
    assert [len(trial.runs) for trial in trials] == [1, 1]


def test_a_run_in_which_nobody_comes_to_the_target_ends_and_does_not_count():
    clock = Clock()
    first = reached(clock, 0.26)
    second = reached(clock, 0.25)
    stuck = [
        Told(clock, 0.1, top=0.5),
        Told(clock, 0.1, top=0.5),
    ]
    assert play_off(
        [first, second],
        lambda finalists, run: stuck,
        Budget(1e9, clock),
    ) == [
        first,
        second,
    ]
    assert len(first.runs) == 1
    assert all(trial.seconds[-1] <= 4 * 3.6 + 1 for trial in stuck)
