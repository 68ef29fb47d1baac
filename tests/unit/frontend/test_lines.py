"""A compiled model, and an error, name the user's lines: no line of a library, and in a notebook the line itself."""

import linecache

import jax
import jax.numpy as jnp
import optax
import pytest

import ampjax as amp
from ampjax.errors import GraphError

LAYER = amp.nn.Linear(2, 2)
PARAMS = {"a": LAYER.init(jax.random.key(0))}
SPEC = {"x": "float32[t,2]"}


def test_what_a_layer_of_ours_computes_comes_from_the_line_that_calls_it():
    def model(params, example):
        return amp.sum(amp.map(lambda x: LAYER(params["a"], x).sum(), example["x"]))

    (line,) = [
        line
        for name, kind, _, line in amp.compile(model, PARAMS, SPEC).explain().nodes
        if name == "a"
    ]
    assert line.startswith("test_lines.py:")


CELL = """\
def model(params, example):
    return amp.scan(lambda carry, x: (x[0], None), x0, example["x"])[0].sum()
"""


def test_a_line_of_a_notebook_is_told_itself(tmp_path):
    file = str(tmp_path / "ipykernel_1" / "123.py")
    linecache.cache[file] = (
        len(CELL),
        None,
        CELL.splitlines(keepends=True),
        file,
    )
    names = {"amp": amp, "x0": jax.numpy.zeros(2)}
    exec(compile(CELL, file, "exec"), names)
    with pytest.raises(
        GraphError,
        match=r'`return amp.scan\(.*example\["x"\]\)\[0\].sum\(\)`, `model`: expected a carry',
    ):
        amp.compile(names["model"], PARAMS, SPEC)


def linear(p, x):
    return x @ p


XENT = optax.softmax_cross_entropy_with_integer_labels
TWO = {
    "a": jnp.ones(2),
    "b": jnp.ones((2, 3)),
}


def test_a_mistake_in_what_a_librarys_function_is_given_names_the_line_that_calls_it():
    # Optax's function calls functions under `jax.jit`, inside of which JAX keeps no line of the caller's.
    def two_keys(p, s):
        return XENT(
            linear(p["b"], p["a"]),
            s["y"],
        )  # <-

    def whole_sequence(p, s):
        return XENT(s["x"], 0) * p["a"].sum()  # <-

    for model in (two_keys, whole_sequence):
        with pytest.raises(GraphError) as caught:
            amp.compile(model, TWO, {"y": "int32[]", "x": "float32[t]"})
        assert str(caught.value).startswith(
            f"test_lines.py:{model.__code__.co_firstlineno + 1}: expected "
        )


def test_a_function_under_jit_keeps_its_own_lines():
    @jax.jit
    def mine(x):
        return jnp.sum(x) + jax.nn.relu(x)[0]  # <-

    with pytest.raises(
        GraphError, match=f"test_lines.py:{mine.__wrapped__.__code__.co_firstlineno + 2}: expected"
    ):
        amp.compile(
            lambda p, s: mine(s["x"]) * p["a"].sum(),
            TWO,
            {"x": "float32[t]"},
        )


def test_a_node_comes_from_the_lines_that_lead_to_it():
    def model(p, s):
        weights = amp.softmax(amp.map(lambda x: x * p["a"][0], s["x"]))
        return XENT(
            linear(
                p["b"],
                jnp.ones(2) * amp.sum(weights),
            ),
            1,
        )

    first = model.__code__.co_firstlineno
    helper = linear.__code__.co_firstlineno
    origins = {}
    for name, *_, line in amp.compile(model, TWO, {"x": "float32[t]"}).explain().nodes:
        origins[name] = line
    assert origins["b"] == f"test_lines.py:{first + 3} > test_lines.py:{helper + 1}"
    assert origins["a"] == f"test_lines.py:{first + 1}"
    assert "the model" not in origins.values()
