"""A compiled graph travels to another process, where its model is traced again."""

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.hosted import assert_same

import ampjax as amp


def summed():
    """A recurrent model with a ragged length, a metric and an optimizer of one node's own; and data."""

    def model(params, instance):
        def step(h, x):
            return (jnp.tanh(params["cell"] * h + x), None)

        h, _ = amp.scan(
            step,
            jnp.zeros(3),
            instance["x"],
        )
        y = amp.node(
            "head",
            tx=optax.sgd(0.01),
        )(lambda h: h @ params["head"])(h)
        amp.metric("size", abs(y))
        return (y - 1) ** 2

    params = {
        "cell": jnp.full(3, 0.5),
        "head": jnp.ones(3),
    }
    compiled = amp.compile(model, params, {"x": "float32[t,3]"})
    draw = np.random.default_rng(0)
    return compiled, compiled.data([{"x": draw.normal(size=(n, 3))} for n in (2, 0, 1, 3)])


def test_a_compiled_graph_is_the_same_after_its_journey():
    compiled, data = summed()
    graph = cloudpickle.loads(cloudpickle.dumps(compiled.graph))
    assert str(graph) == str(compiled.graph)
    assert list(graph.nodes) == list(compiled.graph.nodes)
    here, there = (
        amp.Trainer(g, optax.sgd(0.1), min_update_interval=2) for g in (compiled.graph, graph)
    )
    assert_same(there.params, here.params)
    assert there.evaluate(data, progress=False) == here.evaluate(data, progress=False)


@pytest.mark.nightly
@pytest.mark.slow
def test_a_compiled_graph_trains_on_two_processes_to_the_same_bits():
    compiled, data = summed()
    options = {"mode": "pipeline", "max_active_keys": 2, "workers": 2}
    here = amp.Trainer(
        compiled.graph,
        optax.sgd(0.1),
        devices=jax.devices()[:1] * 2,
        **options,
    )
    there = amp.Trainer(
        compiled.graph,
        optax.sgd(0.1),
        hosts=2,
        **options,
    )
    for trainer in (here, there):
        trainer.fit(data, epochs=2, progress=False)
    params = there.params
    there.close()
    assert_same(params, here.params)
