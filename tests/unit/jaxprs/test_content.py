"""What a jaxpr computes, compared by value."""

from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest

from ampjax.jaxprs.content import content

TABLE = np.arange(100.0, dtype=np.float32)


@jax.custom_jvp
def clipped(x: jax.Array) -> jax.Array:
    return jnp.clip(x, -1, 1)


def with_rule(slope: float) -> Any:
    f = jax.custom_jvp(lambda x: x * 2)
    f.defjvp(
        lambda primals, tangents: (
            f(*primals),
            slope * tangents[0],
        )
    )
    return f


clipped.defjvp(lambda primals, tangents: (clipped(*primals), tangents[0]))


def of(function: Any, *types: Any) -> Any:
    closed = jax.make_jaxpr(function)(
        *(
            types
            or (
                jax.ShapeDtypeStruct(
                    (3,),
                    np.float32,
                ),
            )
        )
    )
    return content(closed.jaxpr, closed.consts)


def loop(n: int) -> Any:
    return lambda x: jax.lax.fori_loop(
        0,
        n,
        lambda i, y: y * 2 + i,
        x,
    )


SAME = {
    "operations": lambda: lambda x: jnp.tanh(x) * 2,
    "an array that it closes over": lambda: lambda x: x + TABLE[:3].copy(),
    "a long array": lambda: lambda x: x[0] + TABLE.copy(),
    "a loop": lambda: loop(3),
    "a jit": lambda: jax.jit(lambda x: x + 1),
    "a rule for tangents that calls its function": lambda: jax.nn.softplus,
    "relu": lambda: lambda x: jax.nn.relu(x),
    "the user's rule": lambda: with_rule(3.0),
    "a rule under another": lambda: lambda x: clipped(jax.nn.silu(x)),
    "a gather": lambda: lambda x: x[jnp.array([2, 0])],
    "a product": lambda: lambda x: x @ TABLE[:3],
}


@pytest.mark.parametrize("name", SAME)
def test_two_traces_of_one_function_are_equal(name: str) -> None:
    one = of(SAME[name]())
    other = of(SAME[name]())
    assert one == other and hash(one) == hash(other)


LONG = TABLE.copy()
LONG[77] = -1
DIFFERENT = {
    "operation": (jnp.sin, jnp.cos),
    "number": (lambda x: x * 2.0, lambda x: x * 3.0),
    "sign of zero": (lambda x: x + 0.0, lambda x: x + -0.0),
    "order of operands": (
        lambda x: x - jnp.sin(x),
        lambda x: jnp.sin(x) - x,
    ),
    "result": (
        lambda x: (jnp.sin(x), jnp.cos(x)),
        lambda x: (jnp.cos(x), jnp.sin(x)),
    ),
    "array": (
        lambda x: x + TABLE[:3],
        lambda x: x + TABLE[1:4],
    ),
    "long array": (
        lambda x: x[0] + TABLE,
        lambda x: x[0] + LONG,
    ),
    "dtype of a constant": (
        lambda x: (x[0] > 0) * np.int32(2),
        lambda x: (x[0] > 0) * np.int16(2),
    ),
    "setting": (
        lambda x: jnp.sum(x, keepdims=True),
        lambda x: jnp.max(x, keepdims=True),
    ),
    "loop": (loop(3), loop(4)),
    "rule for tangents": (with_rule(3.0), with_rule(4.0)),
    "with a rule and without": (with_rule(2.0), lambda x: x * 2),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_functions_are_not(name: str) -> None:
    one, other = map(of, DIFFERENT[name])
    assert one != other


def test_other_types_are_not() -> None:
    narrow = jax.ShapeDtypeStruct((3,), np.float32)
    wide = jax.ShapeDtypeStruct((4,), np.float32)
    assert of(jnp.sin, narrow) != of(jnp.sin, wide)
    assert of(jnp.sin, narrow) != of(
        jnp.sin,
        jax.ShapeDtypeStruct((3,), np.float16),
    )


def test_functions_that_are_called_back_are_compared_by_identity() -> None:
    seen = lambda x: jax.debug.callback(print, x)
    assert of(seen) == of(seen)
    assert of(seen) != of(
        lambda x: jax.debug.callback(
            lambda y: print(y),
            x,
        )
    )


def test_keys_are_compared_by_their_bits() -> None:
    def draw(seed):
        return lambda x: x + jax.random.normal(jax.random.wrap_key_data(np.uint32([0, seed])), (3,))

    assert of(draw(1)) == of(draw(1)) != of(draw(2))


def test_settings_that_happen_to_have_contents_are_compared_as_they_are() -> None:
    """Only what says so (`HasContent`) is compared by what it returns."""

    class Page:
        content = "a text"

    kept = jex.Primitive("kept")
    kept.def_abstract_eval(lambda x, page: x)
    one = Page()
    other = Page()

    def function(page):
        return lambda x: kept.bind(x, page=page)

    assert of(function(one)) == of(function(one)) != of(function(other))
