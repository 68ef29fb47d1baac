"""Programs of small arrays in one kernel of XLA: the same numbers, even where XLA knows the arguments; programs with other operations are left alone."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from ampjax.lanes.rewriting.one_kernel import SWITCH, in_one_kernel

XS = np.linspace(-1.0, 1.0, 12, dtype=np.float32)
KS = np.arange(12, dtype=np.int32)


def one_by_one(body, *args):
    return lax.map(lambda own: body(*own), args)


def loop(x, k):
    """A loop of as many trips as the element says."""
    return lax.fori_loop(
        0,
        k,
        lambda i, y: jnp.sin(y) + 0.1 * i,
        x,
    )


def products(x, k):
    """Small products, of vectors and of batches of matrices."""
    a = jnp.arange(6.0).reshape(2, 3) * x
    b = jnp.arange(12.0).reshape(2, 3, 2) + k
    return jnp.einsum("ij,ijk->ik", a, b) @ jnp.ones(2)


def squares(x, k):
    """A product of matrices whose sides are all short."""
    a = jnp.linspace(-x, x, 256).reshape(16, 16)
    return a @ (a.T + k) / 16


def draws(x, k):
    key = jax.random.fold_in(jax.random.key(3), k)
    return x + jax.random.normal(key, (3,))


def ignores(x, k):
    """Needs neither number, which XLA finds out and JAX does not."""
    return lax.fori_loop(
        0,
        3,
        lambda i, y: y + 1.0,
        jnp.where(k * 0 == 0, 1.0, x * 0),
    )


BODIES = [loop, products, squares, draws, ignores]


@pytest.mark.parametrize("body", BODIES)
def test_numbers_are_those_of_the_function(body):
    run = partial(one_by_one, body)
    expected = jax.jit(run)(XS, KS)
    found = jax.jit(lambda *args: in_one_kernel(run, *args))(XS, KS)
    assert found is not None
    np.testing.assert_allclose(found, expected, rtol=2e-6, atol=1e-6)
    known = jax.jit(
        lambda: in_one_kernel(
            run,
            jnp.asarray(XS),
            jnp.asarray(KS),
        )
    )()
    np.testing.assert_allclose(known, expected, rtol=2e-6, atol=1e-6)


def test_writes_go_row_by_row():
    def only_writes(x, k):
        return jnp.zeros(5).at[k % 5].set(x).at[k].add(1.0).at[jnp.array([1, 1])].add(x)

    run = partial(one_by_one, only_writes)
    found = jax.jit(lambda *args: in_one_kernel(run, *args))(XS, KS)
    assert found is not None
    np.testing.assert_allclose(
        found,
        jax.jit(run)(XS, KS),
        rtol=1e-6,
    )


def test_constants_that_a_function_closes_over():
    weights = jnp.asarray(
        np.random.default_rng(0).normal(size=(8, 8)),
        jnp.float32,
    )

    def body(x, k):
        return lax.fori_loop(
            0,
            k,
            lambda _, y: jnp.tanh((y * weights).sum(0)),
            jnp.full(8, x),
        )

    run = partial(one_by_one, body)
    found = jax.jit(lambda *args: in_one_kernel(run, *args))(XS, KS)
    assert found is not None
    np.testing.assert_allclose(
        found,
        jax.jit(run)(XS, KS),
        rtol=1e-5,
        atol=1e-6,
    )


def updates(x, k):
    """Under `jax.vmap` its write becomes a `scatter`."""
    row = lax.dynamic_update_slice(
        jnp.zeros(16),
        x[None],
        (k,),
    )
    return lax.fori_loop(
        0,
        3,
        lambda i, row: row.at[k + i].add(1.0),
        row,
    )


def test_under_vmap_and_several_devices():
    run = partial(one_by_one, updates)
    kernel = jax.jit(lambda *args: in_one_kernel(run, *args))
    expected = jax.jit(run)(XS, KS)
    several = jax.vmap(kernel)(
        np.stack([XS, XS]),
        np.stack([KS, KS]),
    )
    np.testing.assert_allclose(
        several,
        jnp.stack([expected, expected]),
        rtol=1e-6,
    )
    mesh = jax.make_mesh(
        (2,),
        ("d",),
        axis_types=(AxisType.Auto,),
    )
    spec = PartitionSpec("d")
    parts = jax.shard_map(
        kernel,
        mesh=mesh,
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    np.testing.assert_allclose(
        jax.jit(parts)(XS, KS),
        expected,
        rtol=1e-6,
    )


@pytest.mark.parametrize(
    "body",
    [
        lambda x, k: jnp.sort(jnp.array([x, 0.0, 0.1])),
        lambda x, k: jnp.full((64, 64), x) @ jnp.ones((64, 64)),
        lambda x, k: jnp.full(16, x) @ jnp.ones((16, 256)),
        lambda x, k: jnp.tanh(jnp.full(20_000, x)) + k,
        lambda x, k: jnp.linalg.cholesky(jnp.eye(2) * (2 + x)),
        lambda x, k: jax.pure_callback(
            lambda x: x,
            jax.ShapeDtypeStruct((), np.float32),
            x,
        ),
    ],
    ids=["sort", "product", "long product", "large", "cholesky", "callback"],
)
def test_operations_that_were_not_tried_are_left_to_xla(body):
    assert (
        in_one_kernel(
            partial(one_by_one, body),
            jnp.asarray(XS),
            jnp.asarray(KS),
        )
        is None
    )


def test_a_switch_leaves_all_to_xla(monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    assert (
        in_one_kernel(
            partial(one_by_one, loop),
            jnp.asarray(XS),
            jnp.asarray(KS),
        )
        is None
    )


def test_functions_of_old_entries_are_no_writes():
    """`x.at[i].apply(f)` is a `scatter` too, of zeros that mean nothing."""

    def body(x, k):
        return jnp.full(5, x).at[k].apply(jnp.exp)

    assert in_one_kernel(partial(one_by_one, body), XS, KS) is None
