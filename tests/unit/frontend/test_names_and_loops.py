"""What models once stumbled over: names that nodes took from one another, loops that read a value, and what is constant in them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.parity import assert_equal, ours

import ampjax as amp


def test_a_function_that_is_called_like_a_key_of_the_params_leaves_the_name_to_the_node_with_parameters() -> (
    None
):
    def cell(x: jax.Array) -> jax.Array:
        return x * x

    def model(p: Any, s: Any) -> jax.Array:
        scaled = amp.map(
            lambda x: x * p["scale"]["w"],
            s["x"],
        )
        return amp.sum(amp.map(cell, scaled)) * p["cell"]["w"]

    params = {
        "scale": {"w": jnp.float32(2)},
        "cell": {"w": jnp.float32(3)},
    }
    compiled = amp.compile(model, params, {"x": "float32[t]"})
    assert set(compiled.graph.parameterised) == {"scale", "cell"}


@pytest.mark.nightly
@pytest.mark.slow
def test_a_loop_in_a_choice_in_a_loop_all_by_values_that_are_read() -> None:
    def model(p: Any, s: Any) -> jax.Array:
        def body(carry: Any) -> Any:
            h, _ = carry
            h = h * p["scale"]["w"]

            def grow():
                return amp.while_loop(
                    lambda y: amp.read(y < 2),
                    lambda y: y * y + 1,
                    h,
                    most=2,
                )

            h = amp.switch(
                amp.read(jnp.int32(h > 2)),
                [grow, lambda: h - 1],
            )
            return h, jnp.int32(h < 5)

        return amp.while_loop(
            lambda carry: amp.read(carry[1]) == 1,
            body,
            (s["x"], jnp.int32(1)),
            most=4,
        )[0]

    params = {"scale": {"w": jnp.float32(1.5)}}
    compiled = amp.compile(model, params, {"x": "float32[]"})
    instances = []
    for x in (0.3, 1.0, 3.0, 7.0):
        instances.append({"x": np.float32(x)})
    _, loss, grads = ours(compiled.graph, compiled.data(instances))
    assert_equal(
        (loss, grads),
        jax.value_and_grad(lambda p: compiled.loss(p, instances))(params),
    )


@pytest.mark.nightly
@pytest.mark.slow
def test_what_needs_no_value_is_computed_where_a_value_that_was_read_decides() -> None:
    def model(p: Any, s: Any) -> jax.Array:
        choices = [
            lambda: jnp.float32(3),
            lambda: p["other"]["w"],
            lambda: s["x"],
        ]
        y = amp.switch(
            amp.read(jnp.int32(s["x"] * p["scale"]["w"])),
            choices,
        )
        z = amp.while_loop(
            lambda c: amp.read(c < 4),
            lambda _: p["other"]["w"],
            y,
            most=2,
        )
        return y * z * p["scale"]["w"]

    params = {
        "scale": {"w": jnp.float32(1)},
        "other": {"w": jnp.float32(5)},
    }
    compiled = amp.compile(model, params, {"x": "float32[]"})
    instances = []
    for x in (0.5, 1.5, 2.5):
        instances.append({"x": np.float32(x)})
    _, loss, grads = ours(compiled.graph, compiled.data(instances))
    assert_equal(
        (loss, grads),
        jax.value_and_grad(lambda p: compiled.loss(p, instances))(params),
    )
