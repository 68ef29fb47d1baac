"""Contests of trials that are told in advance how well they will do, on a clock of their own."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.told_trials import Clock, Lagging, Told

from ampjax.tuning.budget import Budget
from ampjax.tuning.contest import AHEAD, contest, prospects, standings
from ampjax.tuning.trial import Goal


def nobody(trials):
    return []


def test_the_fastest_to_the_target_wins_and_nobody_goes_on_after_it():
    clock = Clock()
    trials = [Told(clock, rate) for rate in (0.05, 0.4, 0.1)]
    ranked = contest(list(trials), nobody, Budget(1000.0, clock))
    assert ranked[0] is trials[1]
    assert ranked[0].to_target == pytest.approx((2.5, 250.0))
    assert all(trial.seconds[-1] == 3.0 for trial in trials), "who has trained as long can't win any more"
    assert clock.now_s == 18.0


def test_who_has_trained_least_goes_on():
    clock = Clock()
    trials = [Told(clock, 0.001, piece_s) for piece_s in (1.0, 2.0, 3.0)]
    contest(list(trials), nobody, Budget(100.0, clock))
    first_round = [sum(s <= 6 for s in trial.seconds) - 1 for trial in trials]
    assert min(first_round) >= 1 and first_round[0] >= first_round[1] >= first_round[2]


def test_the_worse_half_ends_after_each_round():
    clock = Clock()
    rates = (0.001, 0.002, 0.003, 0.004)
    trials = [Told(clock, rate) for rate in rates]
    ranked = contest(list(trials), nobody, Budget(160.0, clock))
    assert ranked == trials[::-1]
    assert trials[3].pieces > trials[2].pieces > trials[1].pieces == trials[0].pieces == 5


def test_nobody_ends_who_has_not_trained_at_all():
    """A round of 8 s, in which two of four pieces fit; the best one is the last to train."""
    clock = Clock()
    trials = [Told(clock, rate, 2.0) for rate in (0.01, 0.02, 0.03, 0.04)]
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
    slow, quick = Told(clock, 0.01), Told(clock, 0.09)
    asked = []

    def admit(trials):
        asked.append(len(trials))
        return [quick] if len(asked) == 1 else []

    ranked = contest([slow], admit, Budget(200.0, clock))
    assert ranked == [quick, slow] and asked[:2] == [1, 2]


def test_a_diverged_trial_ends():
    clock = Clock()
    bad, good = Told(clock, math.nan), Told(clock, 0.3)
    bad.top = math.nan
    ranked = contest([bad, good], nobody, Budget(1000.0, clock))
    assert ranked == [good, bad] and bad.pieces == 1


def test_standings_compare_at_the_same_seconds():
    clock = Clock()
    long, short = Told(clock, 0.01), Told(clock, 0.02)
    for trial, n in ((long, 9), (short, 2)):
        for _ in range(n):
            trial.advance(Budget(1000.0, clock))
    assert long.values[-1] > short.values[-1]
    assert standings([long, short]) == [short, long]


def test_who_is_validated_a_little_later_is_not_behind_for_that():
    """After a piece each: curves are steep before the first validation, so a straight line to it says nothing."""
    clock = Clock()
    quick, later = Told(clock, 0.05, 1.0), Told(clock, 0.048, 1.2)
    advanced([quick, later], 1)
    assert later.values[-1] > quick.values[-1] and later.value_at(1.0) < quick.value_at(1.0)
    assert standings([quick, later]) == [later, quick]
    advanced([quick], 1)
    assert standings([later, quick]) == [quick, later], "both at the end of the later one's piece: 0.06 and 0.0576"


def advanced(trials, n):
    """Trials after some pieces each."""
    for trial in trials:
        for _ in range(n):
            trial.advance(Budget(1e9, trial.clock))
    return trials


def test_who_begins_slowly_but_is_fast_has_prospects():
    clock = Clock()
    steady, fast, slow_and_late = advanced([Lagging(clock, 100), Lagging(clock, 150, 120), Lagging(clock, 90, 10)], 2)
    assert standings([fast, slow_and_late, steady]) == [steady, fast, slow_and_late]
    assert prospects([steady, slow_and_late, fast]) == [fast, steady, slow_and_late]
    steady, hopeless = advanced([Lagging(clock, 100), Lagging(clock, 150, 290)], 2)
    assert prospects([hopeless, steady]) == [steady, hopeless]


@settings(max_examples=examples(100))
@given(
    st.lists(st.tuples(st.floats(100, 400), st.floats(0, 50)), min_size=1, max_size=6),
    st.integers(1, 4),
)
def test_prospects_are_true_where_all_learn_alike_but_for_a_head_start(rates_and_heads, n):
    """The oracle: the time at which each comes to where the best will be, in closed form."""
    clock = Clock()
    trials = advanced([Lagging(clock, rate, -head) for rate, head in rates_and_heads], n)
    rate, head = max(rates_and_heads, key=lambda own: n * own[0] + own[1])
    there = head + (1 + AHEAD) * n * rate
    needed_s = {id(t): (there + t.lag) / t.per_s for t in trials}
    ranked = [needed_s[id(t)] for t in prospects(trials)]
    assert len(ranked) == len(trials) and ranked == pytest.approx(sorted(ranked))
    assert np.isfinite(ranked).all()


def test_who_has_reached_the_target_is_before_all_prospects_and_who_has_diverged_behind():
    clock = Clock()
    done, good, poor, bad = Told(clock, 0.9), Told(clock, 0.2), Told(clock, 0.1), Told(clock, math.nan, top=math.nan)
    advanced([done, good, poor, bad], 2)
    assert prospects([bad, poor, good, done]) == [done, good, poor, bad]


def test_before_the_first_piece_nobody_has_prospects():
    clock = Clock()
    begun, fresh = advanced([Told(clock, 0.1)], 1)[0], Told(clock, 0.1)
    assert prospects([begun, fresh]) == standings([begun, fresh])


def test_who_has_no_piece_yet_is_behind_those_that_have_and_leaves_their_order():
    clock = Clock()
    slow, quick, fresh = Told(clock, 0.05), Told(clock, 0.1), Told(clock, 0.4)
    advanced([slow, quick], 2)
    advanced([slow], 1)
    assert prospects([fresh, slow, quick]) == [quick, slow, fresh]


def test_who_has_no_value_is_behind_those_that_have():
    clock = Clock()
    quick, unknown = Told(clock, 0.1), Told(clock, 0.1)
    advanced([quick, unknown], 2)
    unknown.value_at = lambda seconds: math.nan
    assert prospects([unknown, quick]) == [quick, unknown]


def test_who_lasted_longer_is_before_who_ended_sooner():
    clock = Clock()
    best, second, early, later = (Lagging(clock, *how) for how in ((110,), (85,), (76,), (105, 60)))
    quick, asked = [Lagging(clock, 200), Lagging(clock, 190)], []

    def admit(trials):
        asked.append(len(trials))
        return quick if len(asked) == 1 else []

    ranked = contest([best, second, early, later], admit, Budget(64.0, clock))
    assert standings([early, later]) == [early, later] and early.pieces == 2 < later.pieces < best.pieces
    assert ranked == [*quick, best, later, second, early]


def test_who_is_in_the_better_half_by_value_or_by_prospects_goes_on():
    clock = Clock()
    best, second, slow_and_fast, worst = (Lagging(clock, *how) for how in ((110,), (99,), (120, 90), (80,)))
    contest([worst, slow_and_fast, second, best], nobody, Budget(64.0, clock))
    assert worst.pieces == 2
    assert min(best.pieces, second.pieces, slow_and_fast.pieces) > 4
    assert standings([slow_and_fast, second, best])[0] is not slow_and_fast


def test_values_between_two_validations_are_interpolated():
    clock = Clock()
    trial = Told(clock, 0.25, piece_s=2.0)
    for _ in range(2):
        trial.advance(Budget(1000.0, clock))
    assert trial.values == [0.0, 0.5, 1.0]
    assert trial.to_value(0.25) == (1.0, 100.0)
    assert trial.to_value(0.0) == (0.0, 0.0)
    assert trial.to_value(1.5) is None
    assert trial.value_at(3.0) == 0.75 and trial.value_at(2.0) == 0.5
    result = trial.result()
    assert (result.seconds, result.examples, result.per_s, result.best) == (4.0, 400, 100.0, 1.0)
    assert result.seconds_to_target == pytest.approx(3.6)


def test_losses_fall():
    goal = Goal("loss", 0.5)
    assert goal.is_met(0.5) and not goal.is_met(0.6)
    assert goal.badness(0.1) < goal.badness(0.2) < goal.badness(math.nan) == math.inf
    assert not Goal("loss", None).is_met(-1.0)
