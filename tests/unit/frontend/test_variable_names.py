"""Names of nodes: those of the user's variables and functions."""

import sys
from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from ampjax.frontend.combinators.variable_names import assigned_name


def name_here() -> str:
    """The variable to which the caller assigns what this function returns."""
    return assigned_name(sys._getframe(1))


def pair() -> Any:
    return assigned_name(sys._getframe(1)), 0


def test_the_variable_that_a_call_is_assigned_to() -> None:
    plain = name_here()
    first, second = pair()
    _, third = pair()
    assert (plain, first, second) == ("plain", "first", 0)
    assert (_, third) == ("third", 0), "names that begin with `_` are passed over"
    assert name_here() == ""
    captured = name_here()
    assert (lambda: captured)() == "captured"


def test_outside_of_a_function() -> None:
    space: dict[str, Any] = {"name_here": name_here}
    exec("somewhere = name_here()", space)
    assert space["somewhere"] == "somewhere"


def test_nodes_of_lambdas_are_called_like_what_they_give() -> None:
    def model(p: Any, s: Any) -> jax.Array:
        scores = amp.map(
            lambda x: x @ p["w"],
            s["x"],
        )
        doubled = amp.map(lambda score: jnp.sin(score) * 2, scores)
        shifted, _ = amp.map(
            lambda score: (jnp.cos(score), score),
            doubled,
        )
        return jnp.tanh(amp.sum(shifted) + amp.sum(amp.map(jnp.exp, scores)))

    compiled = amp.compile(
        model,
        {"w": jnp.ones(2)},
        {"x": "float32[t,2]"},
    )
    assert {"doubled", "shifted", "exp"} <= set(compiled.graph.nodes)
    assert not any(name.startswith("t_") or name == "t" for name in compiled.graph.nodes)
