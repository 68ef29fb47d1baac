"""A trial: what its seconds count, and who evaluates it."""

from typing import Any

import jax
import numpy as np
import optax
import pytest
from support.graphs import chain, chain_data

import ampjax as amp
from ampjax.ir.instances import InstanceList
from ampjax.tuning.budget import Budget, OutOfTime
from ampjax.tuning.candidate import Candidate
from ampjax.tuning.trial import Goal, Trial

SETTINGS: dict[str, Any] = {
    "max_active_keys": 2,
    "max_dispatch_size": 2,
    "min_update_interval": 2,
}


@pytest.fixture(scope="module")
def trial():
    """A trial of a chain, with a keeper that has other parameters."""
    graph = chain(2)
    data = InstanceList(chain_data(12))
    trainer, keeper = (
        amp.Trainer(graph, optax.sgd(0.01), seed=seed, **SETTINGS) for seed in (0, 1)
    )
    for each in (trainer, keeper):
        each.warm_up(data, data, progress=False)
    return Trial(
        Candidate(SETTINGS, {}),
        trainer,
        data,
        data,
        Goal("loss", None),
        6,
        keeper=keeper,
    )


@pytest.mark.slow
def test_the_keeper_evaluates_the_trials_parameters_and_keeps_its_own(trial, monkeypatch):
    trial.warm_up(Budget(1000.0))
    kept = jax.tree.map(np.array, trial.keeper.params)
    trial.advance(Budget(1000.0))
    assert trial.values[-1] == pytest.approx(trial.trainer.evaluate(trial.valid)["loss"])
    assert trial.values[0] != trial.values[1]
    jax.tree.map(
        np.testing.assert_array_equal,
        kept,
        jax.tree.map(np.array, trial.keeper.params),
    )
    assert trial.pieces == 1 and trial.seconds[-1] > 0

    spent = iter([0.0, 1e6])
    monkeypatch.setattr("ampjax.tuning.trial.compiling_s", lambda: next(spent))
    trial.advance(Budget(1000.0))
    assert trial.seconds[-1] == trial.seconds[-2], "what compiling takes is not counted"


@pytest.mark.slow
def test_a_value_that_is_known_is_not_computed_again(trial):
    known = Trial(
        trial.choice,
        trial.trainer,
        trial.train,
        trial.valid,
        trial.goal,
        6,
        value=3.5,
    )
    known.warm_up(Budget(1000.0))
    assert known.values == [3.5]


@pytest.mark.slow
def test_a_rehearsal_ends_with_the_budget(trial):
    now = iter(range(1000))
    late = Trial(
        trial.choice,
        trial.trainer,
        trial.train,
        trial.valid,
        trial.goal,
        6,
        keeper=trial.keeper,
        value=0.0,
    )
    with pytest.raises(OutOfTime):
        late.warm_up(Budget(3.0, lambda: float(next(now))))
