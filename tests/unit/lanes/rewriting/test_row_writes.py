"""Writes as loops over rows: the results of `lax.scatter`, for any axes and modes."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from support.effort import examples

from ampjax.lanes.rewriting.replaced_equations import with_replaced
from ampjax.lanes.rewriting.row_writes import COMBINED, write_rows

MODES = [
    lax.GatherScatterMode.CLIP,
    lax.GatherScatterMode.FILL_OR_DROP,
]


def by_rows(function, *args):
    """Computes a function with its writes row by row; there is one at least."""
    written = []

    def rule(eqn, values, run):
        written.append(eqn)
        return [write_rows(eqn, values)]

    traced = jax.make_jaxpr(function)(*args)
    rules = dict.fromkeys(COMBINED, rule)
    result = with_replaced(
        traced.jaxpr,
        traced.consts,
        [jnp.asarray(x) for x in args],
        rules,
    )
    assert written
    return result[0]


@settings(max_examples=examples(200))
@given(
    st.sampled_from([lax.scatter, lax.scatter_add]),
    st.sampled_from(MODES),
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(0, 1 << 16),
)
def test_rows_at_places_of_one_axis(scatter, mode, n, width, seed):
    """Places beyond both ends, too; no place twice where rows are not added."""
    rng = np.random.default_rng(seed)
    array = rng.normal(size=(6, 4)).astype(np.float32)
    places = rng.permutation(np.arange(-2, 9))[:n].astype(np.int32)[:, None]
    if mode == lax.GatherScatterMode.CLIP and scatter is lax.scatter:
        places = np.clip(places, 0, 6 - width)
        places = np.unique(places)[:, None]
    rows = rng.normal(size=(len(places), width, 4)).astype(np.float32)
    numbers = lax.ScatterDimensionNumbers((1, 2), (), (0,))
    write = lambda *args: scatter(*args, numbers, mode=mode)
    if scatter is lax.scatter and width > 1:
        # windows that overlap have no order
        places, rows = places[:1], rows[:1]
    given = [jnp.asarray(x) for x in (array, places, rows)]
    np.testing.assert_allclose(
        by_rows(write, *given),
        write(*given),
        1e-6,
    )


@settings(max_examples=examples(100))
@given(
    st.booleans(),
    st.sampled_from(MODES),
    st.integers(0, 1 << 16),
)
def test_a_batch_of_writes(adds, mode, seed):
    """Each row of a batch writes into its own array, as under `jax.vmap`."""
    rng = np.random.default_rng(seed)
    arrays = rng.normal(size=(3, 5, 2)).astype(np.float32)
    places = rng.integers(
        -2,
        8,
        (3, 1),
    ).astype(np.int32)
    rows = rng.normal(size=(3, 2)).astype(np.float32)
    numbers = lax.ScatterDimensionNumbers(
        (0,),
        (0,),
        (0,),
    )
    scatter = lax.scatter_add if adds else lax.scatter
    write = jax.vmap(lambda *args: scatter(*args, numbers, mode=mode))
    given = [jnp.asarray(x) for x in (arrays, places, rows)]
    np.testing.assert_allclose(
        by_rows(write, *given),
        write(*given),
        1e-6,
    )
