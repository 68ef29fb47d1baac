import jax
import jax.numpy as jnp
import numpy as np

from ampjax.jaxprs.inlining import MOST_EQUATIONS, inline_calls
from ampjax.jaxprs.primitives import opened


@jax.jit
def small(x, y):
    return jnp.where(x > 0, x * y, y), x


def large(x):
    for _ in range(MOST_EQUATIONS + 1):
        x = jnp.sin(x)
    return x


def checked(function, *args):
    """The names of the primitives in a function's inlined jaxpr, which is checked to compute the same."""
    jaxpr, constants = opened(jax.make_jaxpr(function)(*args))
    short = inline_calls(jaxpr)
    got = jax.core.eval_jaxpr(short, constants, *args)
    jax.tree.map(
        np.testing.assert_array_equal,
        got,
        jax.core.eval_jaxpr(jaxpr, constants, *args),
    )
    return [eqn.primitive.name for eqn in short.eqns]


X = jnp.linspace(-1, 1, 5)
Y = jnp.arange(5.0)


def test_small_calls_and_those_in_them_are_gone():
    names = checked(
        lambda x, y: (
            small(x, y)[0] + small(y, x)[1],
            jnp.take(x, jnp.array([1, -1])),
        ),
        X,
        Y,
    )
    assert "gather" in names and "select_n" in names and not {"jit", "pjit"} & {*names}


def test_large_calls_stay():
    names = checked(
        lambda x: jax.jit(large)(x) + jax.jit(large)(x * 2),
        X,
    )
    assert names.count("jit") + names.count("pjit") == 2
    assert "sin" not in names


def test_calls_that_say_where_arrays_are_stay():
    placed = jax.jit(
        lambda x: x + 1,
        out_shardings=jax.sharding.SingleDeviceSharding(jax.devices()[0]),
    )
    assert checked(lambda x: placed(x) * 2, X) in (["jit", "mul"], ["pjit", "mul"])


def test_outputs_that_are_inputs_or_numbers():
    assert (
        checked(
            lambda x: jax.jit(lambda x: (x, 3.0, x))(x),
            X,
        )
        == []
    )


def test_nothing_to_do():
    jaxpr, _ = opened(jax.make_jaxpr(lambda x: x + 1)(X))
    assert inline_calls(jaxpr) is jaxpr


def test_a_number_that_a_call_casts_is_cast():
    closed = jax.make_jaxpr(lambda x: jnp.clip(x, -0.1, 0.1))(jnp.ones(3))
    flat = inline_calls(closed.jaxpr)
    assert [eqn.primitive.name for eqn in flat.eqns] == ["max", "min"]
    x = jnp.array([-1.0, 0.05, 1.0])
    np.testing.assert_array_equal(
        jax.core.eval_jaxpr(flat, closed.consts, x)[0],
        jnp.clip(x, -0.1, 0.1),
    )
