"""Metrics and outputs of a compiled model."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.errors import GraphError
from ampjax.testing.reference import reference

PARAMS = {"a": jnp.ones((2, 3))}
SPEC = {"x": "float32[2]"}


def test_an_output_keeps_its_name_where_a_function_or_a_part_of_a_payload_has_it_too():
    def model(params, example):
        def hidden(x):
            return x @ params["a"]

        h = hidden(example["x"])
        half, whole = amp.cond(
            example["x"][0] > 0,
            lambda: (h / 2, h),
            lambda: (h, h),
        )
        amp.output("hidden", half)
        amp.output("cond", whole)
        return jnp.sum(half + whole)

    graph = amp.compile(model, PARAMS, SPEC).graph
    assert {name for name, node in graph.nodes.items() if node.kind == "Sink"} == {"hidden", "cond"}


@pytest.mark.parametrize(
    ("names", "as_what"), [("yy", "an output"), ("ya", "a key of the parameters")]
)
def test_outputs_have_names_of_their_own(names, as_what):
    def model(params, example):
        for name in names:
            amp.output(name, example["x"] @ params["a"])
        return params["a"].sum()

    with pytest.raises(
        GraphError,
        match=f"a name of its own for each output, got `{names[-1]}`, as {as_what} is called",
    ):
        amp.compile(model, PARAMS, SPEC)


def test_the_loss_computes_metrics_that_the_model_returns():
    def model(p, s):
        scores = amp.map(
            lambda x: x @ p["w"],
            s["x"],
        )
        best = amp.max(scores)
        total = amp.sum(scores)
        return total**2, {
            "margin": best - total,
            "hit": best > s["least"],
            "least": s["least"] * 2.0,
        }

    compiled = amp.compile(
        model,
        {"w": jnp.ones(2)},
        {"x": "float32[t,2]", "least": "float32[]"},
    )
    assert [name for name, node in compiled.graph.nodes.items() if node.kind == "NPT"] == []
    data = []
    for n in (1, 2, 3):
        data.append(
            {
                "x": np.full(
                    (n, 2),
                    0.5 * n,
                    np.float32,
                ),
                "least": np.float32(n),
            }
        )
    metrics = amp.Trainer(compiled.graph, optax.sgd(0.0)).evaluate(
        compiled.data(data), progress=False
    )
    each = []
    for one in data:
        each.append(model({"w": jnp.ones(2)}, one)[1])
    for name in ("margin", "hit", "least"):
        assert metrics[name] == pytest.approx(np.mean([float(told[name]) for told in each]))


@pytest.mark.nightly
def test_metrics_of_every_kind():
    """The loss itself, what needs parameters of its own, what follows from parameters, constants or the instance alone, truth values."""

    def model(p, s):
        h = s["x"] @ p["a"]["w"]
        loss = jnp.sum(h**2)
        metrics = {
            "same": loss,
            "after": jnp.sin(loss),
            "node": jnp.sum(jnp.tanh(h) @ p["b"]["w"]),
            "params": jnp.sum(p["b"]["w"]),
            "constant": jnp.float32(3),
            "instance": s["x"][0],
            "holds": h[0] > 0,
        }
        return loss, metrics

    params = {
        "a": {"w": jnp.array([[0.6, -0.8], [0.8, 0.6]])},
        "b": {"w": jnp.array([[1.0, 2.0], [-0.5, 0.3]])},
    }
    data = []
    for x in ([1, -2], [0.5, 0.3], [-1, 0.2]):
        data.append({"x": np.array(x, np.float32)})
    compiled = amp.compile(model, params, SPEC)
    told = reference(
        compiled.graph,
        compiled.node_params(params),
        compiled.data(data),
        gradients=False,
        oracle="eager",
    )
    each = [model(params, one)[1] for one in data]
    assert told.metrics == pytest.approx(
        {name: np.mean([float(own[name]) for own in each]) for name in each[0]}
    )


@pytest.mark.first_case
@pytest.mark.parametrize("dimension", ["v", "t"])
def test_every_sequence_is_predicted_as_rows(dimension):
    """Over the nodes of a graph, which travel in one message, as over any other sequence, of data or computed, of loops or reductions."""
    spec = {"g": amp.Edges("v"), "v": "float32[v,2]", "t": "float32[t,2]"}

    def model(p, e):
        xs = e[dimension]
        h = amp.map(lambda x: x * p["w"], xs)
        if dimension == "v":
            h = amp.fori_loop(
                2,
                lambda _, h: amp.propagate(
                    lambda h: h * 2,
                    e["g"],
                    h,
                ),
                h,
            )
        amp.output("given", xs)
        amp.output("computed", h)
        amp.map(
            lambda h: amp.output("inside", h[0]),
            h,
        )
        amp.output("whole", amp.sum(h))
        return jnp.sum(amp.sum(h))

    params = {"w": jnp.array([2.0, 3.0])}
    edges = amp.Edges([0, 1], [1, 0])
    rows = [
        np.arange(4.0).reshape(2, 2),
        np.zeros((0, 2)),
        np.ones((1, 2)),
    ]
    examples = []
    for x in rows:
        examples.append(
            {
                "g": edges if len(x) > 1 else amp.Edges([], []),
                "v": x,
                "t": x,
            }
        )
    compiled = amp.compile(model, params, spec)
    predicted = amp.Trainer(compiled.graph).predict(compiled.data(examples, labels=False))
    each = np.concatenate(rows)
    if dimension == "t":
        wanted = each * [2, 3]
    else:
        wanted = np.concatenate(
            [
                4 * rows[0],
                0 * rows[2],
            ]
        ) * [2, 3]
    for name, values in {
        "given": each,
        "computed": wanted,
        "inside": wanted[:, 0],
    }.items():
        found = predicted[name]
        np.testing.assert_array_equal(found.payload, values)
        assert found.instance.tolist() == [0, 0, 2]
        assert found.fields[f"{dimension}_i"].tolist() == [0, 1, 0]
    np.testing.assert_array_equal(
        predicted["whole"].payload,
        [
            wanted[:2].sum(0),
            [0, 0],
            wanted[2],
        ],
    )
