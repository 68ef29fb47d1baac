"""Weight gradients go to accumulators, or into an update at once: nobody can tell but by the clock."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import graphs

import ampjax as amp
import ampjax.graphs as ag
from ampjax.engine.backward_runs import BackwardRuns
from ampjax.engine.kernels import rows
from ampjax.engine.kernels.residuals import find_residuals, shapes_of
from ampjax.engine.kernels.stage_program import make_program
from ampjax.engine.kernels.weight_gradients import ACCUMULATING, Updating
from ampjax.engine.kernels.wiring import Wiring

pytestmark = pytest.mark.slow


def by_staleness():
    """A rule that uses what optax calls extra arguments."""

    def scale(updates, state, params=None, *, staleness):
        return jax.tree.map(
            lambda u: -0.1 * u / (1 + staleness),
            updates,
        ), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), scale)


RULES = {
    "sgd": optax.sgd(0.1),
    "adam": optax.adam(1e-2),
    "adagrad": optax.adagrad(0.1),
    "staleness": by_staleness(),
}


def trained(tx, consumers, monkeypatch, at_once=True, **settings):
    """A trainer that has seen a few sequences twice; what consumes its dispatches' weight gradients is noted."""
    data = graphs.rnn_data([3, 1, 2, 3, 2, 1])
    of = BackwardRuns._consumer

    def noted(self, stage, launch):
        found = of(self, stage, launch)
        if stage.params:
            consumers.append(type(found[0]))
        return found

    with monkeypatch.context() as patch:
        if not at_once:
            patch.setattr(BackwardRuns, "can_update_at_once", lambda *_: False)
        trainer = amp.Trainer(
            graphs.rnn(),
            tx,
            max_active_keys=4,
            **settings,
        )
        trainer.warm_up(data, progress=False)
        patch.setattr(BackwardRuns, "_consumer", noted)
        history = trainer.fit(data, epochs=2, progress=False)
    assert [epoch.compilations for epoch in history.epochs] == [0, 0]
    return trainer


def assert_same(one, other):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
        one,
        other,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("gradient", ["mean", "sum"])
@pytest.mark.parametrize(
    "rule",
    [
        *sorted({*RULES} - {"adagrad"}),
        pytest.param(
            "adagrad",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_an_update_at_once_equals_one_from_accumulators(rule, gradient, monkeypatch):
    settings = {"min_update_interval": 1, "gradient": gradient}
    kinds = []
    others = []
    one = trained(RULES[rule], kinds, monkeypatch, **settings)
    other = trained(RULES[rule], others, monkeypatch, at_once=False, **settings)
    assert set(kinds) == {Updating}
    assert set(others) == {type(ACCUMULATING)}
    assert_same(one.params, other.params)
    assert_same(
        one.session.executor.store.opt_state,
        other.session.executor.store.opt_state,
    )
    jax.tree.map(
        lambda a: np.testing.assert_array_equal(a, 0),
        one.session.executor.store.accumulators,
    )


def test_gradients_from_several_dispatches_are_accumulated(monkeypatch):
    """Where an update takes more rows than a dispatch brings, and where some had been left over."""
    kinds = []
    others = []
    one = trained(RULES["adam"], kinds, monkeypatch, min_update_interval=3)
    other = trained(
        RULES["adam"],
        others,
        monkeypatch,
        at_once=False,
        min_update_interval=3,
    )
    assert set(kinds) == {Updating, type(ACCUMULATING)}
    assert_same(one.params, other.params)


@pytest.mark.first_case
@pytest.mark.parametrize(
    "settings",
    [{"weights": "stashed"}, {"weights": "estimated"}, {"mode": "sync"}],
    ids=repr,
)
def test_parameters_that_are_kept_and_updates_that_others_trigger_wait(settings, monkeypatch):
    kinds = []
    trained(RULES["sgd"], kinds, monkeypatch, min_update_interval=1, **settings)
    assert set(kinds) == {type(ACCUMULATING)}


def test_gradients_that_are_left_from_elsewhere_are_in_the_next_update():
    """What `accumulate` leaves is part of the next update, which so is none for a dispatch alone."""
    data = graphs.chain_data(4)
    trainer = amp.Trainer(
        graphs.chain(1),
        optax.sgd(0.1),
        min_update_interval=1,
        max_dispatch_size=4,
    )
    trainer.accumulate(data, update=False)
    (gradient, count) = trainer.gradients["f0"]
    assert count == 4
    start = float(trainer.params["f0"])
    trainer.fit(data[:1], progress=False)
    own = 2 * (start * 0.0 - 0.5) * 0.0
    np.testing.assert_allclose(
        trainer.params["f0"],
        start - 0.1 * (float(gradient) + own) / 5,
        rtol=1e-6,
    )


@pytest.mark.parametrize("rule", ["sgd", "adagrad", "adam"])
def test_it_copies_no_parameters(rule):
    """The weights are read for the inputs' cotangents and written in the same kernel."""
    features = 211
    n_rows = 4
    stage = next(
        s for s in amp.Trainer(layer(features), RULES[rule], fuse=False).plan.stages if s.params
    )
    program = make_program(stage)
    params = (
        {
            "w": jnp.ones((features, features)),
            "b": jnp.ones(features),
        },
    )
    wiring = Wiring(
        (0,),
        (1,),
        (True,),
        (True,),
    )
    residuals = find_residuals(
        program,
        (((features,), "float32"),),
        shapes_of(params),
    )
    arenas = jnp.ones((16, features)), jnp.ones((16, features))
    records = tuple(jnp.ones((16, *shape), dtype) for shape, dtype in residuals.rows)
    states = tuple(RULES[rule].init(p) for p in params)
    kernel = rows.backward(
        program,
        wiring,
        residuals,
        Updating(((RULES[rule], "mean"),)),
    )
    pack = np.ones((6, n_rows), np.int32)
    scalars = np.ones((1, 2), np.float32)
    donated = (arenas, states)
    brought = ((), pack, None, scalars)
    text = (
        kernel.once.lower(
            params,
            donated,
            (arenas, records),
            brought,
        )
        .compile()
        .as_text()
    )
    assert f"f32[{features},{features}]" in text
    assert not re.search(rf"f32\[{features},{features}\]\S* copy\(", text)


def layer(features):
    with ag.Graph() as g:
        h = ag.npt("start", jnp.tanh)(ag.pump("x", (features,)))
        y = ag.ppt(
            "layer",
            amp.nn.Linear(features, features),
        )(h)
        ag.loss(
            "loss",
            lambda y, label: ((y - label) ** 2).sum(),
        )(
            y,
            ag.pump("label", (features,)),
        )
    return g
