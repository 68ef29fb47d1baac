"""Models of many kinds as functions: the compiled graph's loss and gradients are those that `jax.grad` gives of the function itself."""

import ast
import inspect
from functools import partial
from importlib import import_module
from types import ModuleType
from typing import Any

import jax
import numpy as np
import optax
import pytest
from support.parity import assert_equal, ours

import ampjax as amp
from experiments.data.generated import spirals
from experiments.functions import RECIPES
from experiments.models.functions.zoo import memory_network, stochastic_depth

KEY = jax.random.key(0)
N_INSTANCES = 2
IN_EVERY_RUN = ("stochastic-depth",)
"""The others repeat what the front end's own tests check, so they are left to nightly runs."""


def case(name: str) -> tuple[ModuleType, Any, list[Any]]:
    """A model's module, the model itself and some instances."""
    module = import_module(f"experiments.models.functions.zoo.{name.replace('-', '_')}")
    generate = import_module(f"experiments.data.generated.{RECIPES[name].data}").generate
    model = getattr(module, name.replace("-", "_"))
    if name == "stochastic-depth":
        model = partial(
            model, last=1.0
        )  # the graph draws other numbers than the reference: here all layers are kept
    return module, model, generate(N_INSTANCES, seed=3)


EVERY_MODEL = pytest.mark.parametrize(
    "name",
    [
        name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.nightly)
        for name in RECIPES
    ],
)


@pytest.mark.nightly
@pytest.mark.slow
@EVERY_MODEL
def test_a_model_computes_what_its_function_does(name: str) -> None:
    module, model, instances = case(name)
    compiled = amp.compile(
        model,
        module.init(KEY, 6),
        module.SPEC,
    )
    params, loss, grads = ours(compiled.graph, compiled.data(instances))

    def reference(p: Any) -> jax.Array:
        with amp.training(KEY):
            return compiled.loss(p, instances)

    assert_equal(
        (loss, grads),
        jax.value_and_grad(reference)(compiled.params(params)),
    )


@pytest.mark.nightly
@pytest.mark.slow
@EVERY_MODEL
def test_a_model_is_one_function_of_a_batch(name: str) -> None:
    module, model, instances = case(name)
    params = module.init(KEY, 6)
    batched = amp.vmap(model, module.SPEC, params=params)
    batch = batched.pack(instances, size=N_INSTANCES + 1)

    def weighted(p: Any) -> jax.Array:
        losses, _ = batched(p, batch)
        return (losses * batch.weights).sum()

    compiled = amp.compile(model, params, module.SPEC)
    want = jax.value_and_grad(lambda p: compiled.loss(p, instances))(params)
    assert_equal(jax.jit(jax.value_and_grad(weighted))(params), want)


@pytest.mark.nightly
@pytest.mark.slow
@EVERY_MODEL
def test_a_model_trains_by_batches(name: str) -> None:
    """Two steps from both instances are those of plain optax on the mean of the function; evaluation is the function's."""
    module, model, instances = case(name)
    params = module.init(KEY, 6)
    compiled = amp.compile(model, params, module.SPEC)
    tx = optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.sgd(0.1),
    )
    trainer = amp.Trainer(
        compiled.graph,
        tx,
        params=compiled.node_params(params),
        mode="batch",
        max_active_keys=N_INSTANCES,
    )
    data = compiled.data(instances)

    def mean(p: Any) -> jax.Array:
        with amp.training(KEY):
            return compiled.loss(p, instances) / N_INSTANCES

    want = params
    state = tx.init(params)
    for _ in range(2):
        changes, state = tx.update(
            jax.grad(mean)(want),
            state,
            want,
        )
        want = optax.apply_updates(want, changes)
    trainer.fit(data, epochs=2, progress=False)
    found = compiled.params(trainer.params)
    evaluated = trainer.evaluate(data)["loss"]
    own = float(compiled.loss(found, instances))
    assert_equal(
        (evaluated, found),
        (own / N_INSTANCES, want),
    )


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["spinn", "programmer-interpreter"])
def test_outside_of_training_a_model_follows_its_own_predictions(name: str) -> None:
    module, model, instances = case(name)
    params = module.init(jax.random.key(2), 6)
    compiled = amp.compile(model, params, module.SPEC)
    found = amp.Trainer(compiled.graph, max_dispatch_size=1).evaluate(compiled.data(instances))
    own = float(compiled.loss(params, instances))
    assert found["loss"] == pytest.approx(own / N_INSTANCES, rel=1e-5)
    with amp.training(KEY):
        assert float(compiled.loss(params, instances)) != pytest.approx(own, rel=1e-3)


@pytest.mark.users
@pytest.mark.slow
def test_a_layer_that_is_skipped_does_not_run() -> None:
    instances = spirals.generate(40, seed=1)
    params = stochastic_depth.init(KEY, 4, layers=2)
    model = partial(
        stochastic_depth.stochastic_depth, last=0.0
    )  # the first layer runs for a half, the last for none
    compiled = amp.compile(model, params, stochastic_depth.SPEC)
    trainer = amp.Trainer(compiled.graph, min_update_interval=1 << 40, max_dispatch_size=1)
    data = compiled.data(instances)
    trainer.accumulate(data)
    rows = {}
    for node, (_, n) in trainer.gradients.items():
        rows[node] = n
    assert rows["enter"] == rows["classify"] == 40
    assert (
        8 <= rows["layer1"] <= 32
    )  # 5 standard deviations around 20: wrong once in a million seeds
    assert rows.get("layer2", 0) == 0
    told = trainer.evaluate(data)
    assert told["loss"] == pytest.approx(
        float(compiled.loss(params, instances)) / 40,
        rel=1e-5,
    )


@pytest.mark.nightly
def test_the_attention_of_a_fresh_memory_network_is_spread() -> None:
    p = memory_network.init(KEY)
    weights = jax.nn.softmax(
        p["source"] @ p["start"].T, axis=0
    )  # of a place's facts, by the place where one starts
    assert weights.max() < 0.25, "attention that starts sharp seldom finds another fact"


@EVERY_MODEL
def test_a_model_runs_as_it_is_and_is_short(name: str) -> None:
    module, model, instances = case(name)
    params = module.init(KEY, 4)
    loss, metrics = model(params, instances[0])
    assert np.isfinite(loss) and loss > 0 and set(metrics) == {"accuracy"}
    assert set(amp.compile(model, params, module.SPEC).graph.parameterised) == set(params)
    source = inspect.getsource(getattr(module, name.replace("-", "_")))
    statements = [each for each in ast.walk(ast.parse(source)) if isinstance(each, ast.stmt)]
    assert len(statements) <= 25, "the function, its docstring and its statements"
