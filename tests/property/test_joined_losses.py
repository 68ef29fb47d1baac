"""Losses that join several wires: weights of their rows, labels and metrics from wires of their own, some of integers, by some of the state's fields."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from support import graphs
from support.effort import examples
from support.laws import Engine, assert_gradients, schedules

import ampjax as amp
import ampjax.graphs as ag
from ampjax.testing import init_params, reference


def weighted(logits, label, weight, guess):
    """Cross entropy times a weight; how often another wire's guess is right, weighted, too."""
    loss, _ = graphs.xent(logits, label)
    return weight * loss, {
        "right": (weight * (guess == label), weight),
        "guess": guess.astype(jnp.float32),
    }


@functools.cache
def four_wires():
    """A logit row for each step, a label for each step, a weight for each instance's steps, and a guess that is computed: integers on the device."""
    with ag.Graph() as g:
        x = ag.pump(
            "x",
            (3,),
            fields=("t", "n"),
        )
        label = ag.pump("label", dtype="int32", fields=("t",))
        weight = ag.pump("weight", fields=("k", "t"))
        hidden = ag.npt("tanh", jnp.tanh)(
            ag.ppt(
                "inner",
                amp.nn.Linear(3, 4),
            )(x)
        )
        guess = ag.npt(
            "guess",
            lambda h: jnp.argmax(h[:3]).astype(jnp.int32),
        )(hidden)
        weight = ag.ppt(
            "scale",
            graphs.times,
            params=graphs.one(),
        )(weight)
        logits = ag.ppt(
            "outer",
            amp.nn.Linear(4, 3),
        )(hidden)
        loss = ag.loss("loss", weighted, join=("instance", "t"))
        loss(
            logits,
            label,
            weight,
            ag.relabel(guess, lambda s: s.drop("n")),
        )
        ag.sink("guesses", guess)
    return g


def data(lengths, seed=0):
    rng = np.random.default_rng(seed)
    result = []
    for n in lengths:
        result.append(
            {
                "x": ag.messages(
                    rng.normal(size=(n, 3)),
                    t=np.arange(n),
                    n=n,
                ),
                "label": ag.messages(
                    rng.integers(0, 3, n),
                    t=rng.permutation(n),
                ),
                "weight": ag.messages(
                    rng.random(n),
                    t=np.arange(n),
                    k=rng.integers(0, 9, n),
                ),
            }
        )
    return result


DATA = data([2, 0, 1, 4])


@functools.cache
def wanted():
    return reference(four_wires(), init_params(four_wires()), DATA, oracle="eager")


@pytest.mark.users
@settings(max_examples=examples(24))
@given(schedules(sizes=(1, 2)))
def test_a_loss_of_four_wires(schedule):
    engine = Engine(
        four_wires(),
        init_params(four_wires()),
        schedule,
    ).run(DATA)
    assert_gradients(engine, wanted())
    assert engine.gradients["scale"] != 0 and wanted().rows["scale"] == 7


@pytest.mark.first_case
@pytest.mark.parametrize(
    "settings",
    [{}, {"fuse": False, "workers": 2}],
    ids=str,
)
def test_metrics_come_from_other_wires(settings):
    trainer = amp.Trainer(four_wires(), **settings)
    got = trainer.evaluate(DATA)
    outputs = trainer.predict(DATA)["guesses"]
    want = reference(
        four_wires(),
        jax.tree.map(np.asarray, trainer.params),
        DATA,
        gradients=False,
    )
    assert {name: got[name] for name in ("right", "guess")} == pytest.approx(want.metrics, rel=1e-5)
    assert got["loss"] == pytest.approx(want.mean_loss, rel=1e-5)
    assert np.array(outputs.payload).dtype.kind == "i"


def test_a_loss_over_rows_that_are_weighted_by_their_number():
    """The mean over an instance's rows: 1 / n comes from the state by way of a pump."""
    with ag.Graph() as g:
        x = ag.pump("x", fields=("t",))
        share = ag.pump("share", fields=("t",))
        y = ag.ppt(
            "scale",
            graphs.times,
            params=graphs.one(),
        )(x)
        ag.loss("loss", lambda y, share: share * y * y)(
            y,
            share,
        )
    instances = []
    for n in (1, 3):
        instances.append(
            {
                "x": ag.messages(
                    np.arange(1.0, n + 1),
                    t=np.arange(n),
                ),
                "share": ag.messages(
                    np.full(n, 1 / n),
                    t=np.arange(n),
                ),
            }
        )
    got = reference(g, {"scale": np.float32(2)}, instances)
    assert got.loss == pytest.approx(4 * (1 + (1 + 4 + 9) / 3))
