"""Metrics and outputs of a compiled model."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.errors import GraphError

PARAMS, SPEC = {"a": jnp.ones((2, 3))}, {"x": "float32[2]"}


def test_an_output_keeps_its_name_where_a_function_or_a_part_of_a_payload_has_it_too():
    def model(params, example):
        def hidden(x):
            return x @ params["a"]

        h = hidden(example["x"])
        half, whole = amp.cond(example["x"][0] > 0, lambda: (h / 2, h), lambda: (h, h))
        amp.output("hidden", half)
        amp.output("cond", whole)
        return jnp.sum(half + whole)

    graph = amp.compile(model, PARAMS, SPEC).graph
    assert {name for name, node in graph.nodes.items() if node.kind == "Sink"} == {"hidden", "cond"}


@pytest.mark.parametrize(("names", "as_what"), [("yy", "an output"), ("ya", "a key of the parameters")])
def test_outputs_have_names_of_their_own(names, as_what):
    def model(params, example):
        for name in names:
            amp.output(name, example["x"] @ params["a"])
        return params["a"].sum()

    with pytest.raises(
        GraphError, match=f"a name of its own for each output, got `{names[-1]}`, as {as_what} is called"
    ):
        amp.compile(model, PARAMS, SPEC)


def test_the_loss_computes_metrics_that_the_model_returns():
    def model(p, s):
        scores = amp.map(lambda x: x @ p["w"], s["x"])
        best, total = amp.max(scores), amp.sum(scores)
        return total**2, {"margin": best - total, "hit": best > s["least"], "least": s["least"] * 2.0}

    compiled = amp.compile(model, {"w": jnp.ones(2)}, {"x": "float32[t,2]", "least": "float32[]"})
    assert [name for name, node in compiled.graph.nodes.items() if node.kind == "NPT"] == []
    data = [{"x": np.full((n, 2), 0.5 * n, np.float32), "least": np.float32(n)} for n in (1, 2, 3)]
    metrics = amp.Trainer(compiled.graph, optax.sgd(0.0)).evaluate(compiled.data(data), progress=False)
    each = [model({"w": jnp.ones(2)}, one)[1] for one in data]
    for name in ("margin", "hit", "least"):
        assert metrics[name] == pytest.approx(np.mean([float(told[name]) for told in each]))
