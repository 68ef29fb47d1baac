"""Loops and checks that look at a whole batch of `jax.vmap`, as in equinox: each element in lanes ends, and raises, alone."""

from functools import partial

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters import batching, mlir

import ampjax as amp

NS = jnp.asarray(
    [3, 1, 9, 2, 5, 4],
    jnp.int32,
)


def like_equinox(name, batched):
    """A primitive with equinox's name, which is `jnp.any` or the identity for one element."""
    primitive = jex.Primitive(name)
    compute = jnp.any if name == "unvmap_any" else lambda x: x
    primitive.def_impl(compute)
    primitive.def_abstract_eval(lambda x: jax.core.ShapedArray((), x.dtype))
    mlir.register_lowering(primitive, mlir.lower_fun(compute, multiple_results=False))
    batching.primitive_batchers[primitive] = batched
    return primitive


def refused(values, axes):
    raise ValueError("cannot be batched")


unvmap_any = like_equinox(
    "unvmap_any",
    lambda values, axes: (unvmap_any.bind(*values), None),
)
nonbatchable = like_equinox("nonbatchable", refused)


def halved(n):
    """A loop that goes on for all under `jax.vmap`, with values that then do not change."""

    def trip(carry):
        k, count = carry
        return jnp.where(
            k < n,
            k + 1,
            k,
        ), nonbatchable.bind(count) + 1

    goes_on = lambda carry: unvmap_any.bind(carry[0] < n)
    k, count = lax.while_loop(
        goes_on,
        trip,
        (jnp.int32(0), jnp.int32(0)),
    )
    return k * 2, count


def checked(n, most):
    """A loop, and a call of the host once for all if one element is wrong."""

    def wrong(k):
        raise ValueError("a wrong element")

    k = lax.fori_loop(
        0,
        n,
        lambda _, k: k + 1,
        jnp.int32(1),
    )
    of_host = jax.ShapeDtypeStruct((), np.int32)
    is_wrong = unvmap_any.bind((k < 2) | (k > most))
    return lax.cond(
        is_wrong,
        lambda: jax.pure_callback(wrong, of_host, jnp.int32(0)),
        lambda: k,
    )


@pytest.mark.parametrize("lanes", [1, 3])
def test_each_element_ends_by_itself(lanes):
    function = amp.vmap(halved, lanes=lanes, trips=2)
    doubled, counts = function(NS)
    assert doubled.tolist() == [2 * n for n in NS.tolist()]
    assert counts.tolist() == NS.tolist()
    assert function.explain(NS).trips.tolist() == NS.tolist()


@pytest.mark.parametrize("lanes", [1, 3])
def test_checks_see_elements_alone(lanes):
    function = amp.vmap(
        checked,
        in_axes=(0, None),
        lanes=lanes,
        trips=2,
    )
    assert function(NS, 10).tolist() == [n + 1 for n in NS.tolist()]
    with pytest.raises((ValueError, RuntimeError), match="a wrong element"):
        jax.block_until_ready(function(NS, 9))


def test_one_after_another():
    """The form that is chosen where bodies are small."""
    function = partial(amp.vmap(halved)._jitted, "map")
    leaves, structure = jax.tree.flatten((NS,))
    (_, counts), _ = function((True,), structure, *leaves)
    assert counts.tolist() == NS.tolist()
