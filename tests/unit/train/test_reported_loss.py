"""The loss that is reported is the mean over examples of what the model function returns, wherever it is reported."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.effort import left_to_nightly

import ampjax as amp
import ampjax.graphs as ag
from ampjax.simulation import FlopsCost

QUIET = {"progress": False}
SPEC = {"x": "float32[t]"}
PARAMS = {
    "w": np.float32(1.5),
    "v": np.float32(0.5),
}
EXAMPLES = [{"x": np.ones(n, np.float32)} for n in (4, 0, 1, 3)]


def tokens(p, e):
    return amp.map(lambda x: p["w"] * x, e["x"])


MODELS = {
    "mean of tokens": lambda p, e: amp.mean(tokens(p, e)),
    "sum over length": lambda p, e: amp.sum(tokens(p, e)) / (1.0 + amp.length(e["x"])),
    "root of a mean": lambda p, e: jnp.sqrt(1.0 + amp.sum(tokens(p, e))),
    "weighted": lambda p, e: 0.5 * amp.sum(tokens(p, e)),
    "in two places": lambda p, e: amp.sum(tokens(p, e)) + (p["v"] - 2.0) ** 2,
    "a difference": lambda p, e: (
        amp.logsumexp(tokens(p, e)) * (amp.length(e["x"]) > 0) - amp.sum(tokens(p, e))
    ),
    "and a constant": lambda p, e: amp.sum(tokens(p, e)) - 7.0,
    "tokens alone": lambda p, e: amp.sum(tokens(p, e)),
}
ORDINARY = "mean of tokens", "weighted", "in two places", "a difference"
NON_EMPTY = "mean of tokens", "a difference"


def case(name):
    model = MODELS[name]
    if name in NON_EMPTY:
        examples = [e for e in EXAMPLES if len(e["x"])]
    else:
        examples = EXAMPLES
    return model, examples, float(np.mean([float(model(PARAMS, e)) for e in examples]))


@pytest.mark.first_case
@pytest.mark.parametrize(
    "name",
    [*ORDINARY, *left_to_nightly(MODELS, *ORDINARY)],
)
def test_evaluate_fit_and_accumulate(name):
    model, examples, mean = case(name)
    compiled = amp.compile(model, PARAMS, SPEC)
    data = compiled.data(examples)
    assert float(compiled.loss(PARAMS, examples)) / len(examples) == pytest.approx(mean, rel=1e-6)
    trainer = amp.Trainer(compiled.graph, optax.sgd(0.0))
    assert trainer.evaluate(data)["loss"] == pytest.approx(mean, rel=1e-6)
    found = trainer.accumulate(data)
    assert (found["loss"], found["loss_sum"]) == pytest.approx(
        (mean, mean * len(examples)), rel=1e-6
    )
    history = trainer.fit(data, data, epochs=2, **QUIET)
    for epoch in history.epochs:
        assert (epoch.train["loss"], epoch.valid["loss"]) == pytest.approx((mean, mean), rel=1e-6)
    assert history.best("loss") == pytest.approx(mean, rel=1e-6)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", ["in two places", "mean of tokens"])
def test_on_hosts_in_virtual_time_in_simulations_and_after_snapshots(name, tmp_path):
    model, examples, mean = case(name)
    compiled = amp.compile(model, PARAMS, SPEC, copies=2)
    data = compiled.data(examples)
    cost = FlopsCost
    for options in (
        {"hosts": amp.Hosts(2, kind="threads")},
        {"cost": cost},
        {"mode": "pipeline", "workers": 2},
    ):
        trainer = amp.Trainer(compiled.graph, optax.sgd(0.0), **options)
        try:
            assert trainer.fit(data, data, **QUIET)[0].train["loss"] == pytest.approx(
                mean, rel=1e-6
            )
            assert trainer.evaluate(data)["loss"] == pytest.approx(mean, rel=1e-6)
        finally:
            trainer.close()
    simulation = amp.simulate(
        compiled.graph,
        data,
        numerics=True,
        tx=optax.sgd(0.0),
    )
    assert simulation.metrics["loss"] == pytest.approx(mean, rel=1e-6)
    snapshots = amp.Snapshots(tmp_path, every_instances=1)
    trainer = amp.Trainer(
        compiled.graph,
        optax.sgd(0.0),
        mode="sync",
        snapshot=snapshots,
    )
    assert trainer.fit(data, **QUIET)[0].train["loss"] == pytest.approx(mean, rel=1e-6)


def test_examples_that_bring_no_row_count():
    compiled = amp.compile(MODELS["tokens alone"], PARAMS, SPEC)
    trainer = amp.Trainer(compiled.graph)
    assert trainer.evaluate(compiled.data([{"x": np.ones(0, np.float32)}] * 3))["loss"] == 0.0


def test_a_graph_without_a_loss_reports_none():
    with ag.Graph() as graph:
        ag.sink(
            "y",
            ag.npt("f", lambda x: x)(ag.pump("x")),
        )
    assert amp.Trainer(graph).evaluate([{"x": 1.0}]) == {}
