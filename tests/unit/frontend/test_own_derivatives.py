"""Functions with derivatives of their own, `jax.custom_vjp` and `jax.custom_jvp`, of whole sequences in a batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.model_laws import check_batch

import ampjax as amp
from ampjax.errors import GraphError

RNG = np.random.default_rng(0)
PARAMS = {"w": RNG.normal(size=(3, 3)), "b": RNG.normal(size=3)}
SPEC = {"x": "float64[n,3]", "i": "int32[n]"}


def example(n):
    return {"x": RNG.normal(size=(n, 3)), "i": RNG.integers(0, 9, n).astype(np.int32)}


EXAMPLES = [example(n) for n in (3, 0, 1, 5)]


@jax.custom_vjp
def rounded(x):
    return jnp.round(x)


# a rule calls its own function, as in JAX's documentation
rounded.defvjp(lambda x: (rounded(x), x), lambda x, g: (jnp.where(abs(x) < 1, g, 0),))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def moved(x, s):
    return x


# elements that are not there would move parameters
moved.defvjp(lambda x, s: (x, x), lambda s, x, g: (s * g + jnp.cos(x),))


@jax.custom_vjp
def in_steps(x, size):
    return jnp.round(x / size) * size


def back_in_steps(kept, g):
    x, size = kept
    off = jnp.round(x / size) - x / size
    return jnp.where(abs(x / size) < 2, g, 0), jnp.sum(g * off)


in_steps.defvjp(lambda x, size: (in_steps(x, size), (x, size)), back_in_steps)


@jax.custom_vjp
def clipped(x, most):
    return x


clipped.defvjp(lambda x, m: (x, m), lambda m, g: (jnp.clip(g, -m, m), None))


@jax.custom_vjp
def several(x, i):
    return x * i[:, None], i + 1, jnp.tanh(x).sum(-1)


def back_several(kept, changes):
    _, i = kept
    return jnp.clip(changes[0], -0.1, 0.1) + changes[2][:, None] * i[:, None], None


several.defvjp(lambda x, i: (several(x, i), (x, i)), back_several)


@jax.custom_jvp
def sign(x):
    return jnp.sign(x)


@sign.defjvp
def change_of_sign(primals, tangents):
    return sign(primals[0]), tangents[0] * jnp.exp(-(primals[0] ** 2))


def test_derivatives_of_their_own_are_kept_in_each_element():
    def model(p, s):
        xs = s["x"] @ p["w"]
        turned = clipped(xs.T, 0.3).T
        pairs = jax.jit(lambda x: rounded(x) + sign(x))(xs @ s["x"].T)
        first, second, third = several(jnp.cos(xs), s["i"])
        all_ = rounded(xs) + moved(xs, 2.0) + in_steps(jnp.sin(xs), p["b"][0]) + turned + first
        return jnp.sum(jnp.sin(all_ @ p["w"])) + jnp.sum(pairs @ xs) + jnp.sum(second * third)

    with jax.enable_x64(True):
        check_batch(model, PARAMS, SPEC, EXAMPLES, is_traced=True)


def test_derivatives_of_all_elements_together_are_refused():
    @jax.custom_vjp
    def normed(x):
        return x

    normed.defvjp(lambda x: (x, None), lambda _, g: (g / jnp.sqrt(jnp.sum(g**2) + 1),))

    @jax.custom_jvp
    def divided(x):
        return x

    divided.defjvp(lambda x, dx: (x[0], dx[0] / x[0].shape[0]))

    def refused(function):
        def model(p, s):
            return jnp.sum(function(s["x"] @ p["w"]))

        text = (
            r"test_own_derivatives.py:\d+.*got `custom_.* for one element, and call it by `amp.map"
        )
        with pytest.raises(GraphError, match=text):
            amp.vmap(model, {"x": "float32[n,3]"})(PARAMS, EXAMPLES)

    refused(normed)
    refused(divided)
