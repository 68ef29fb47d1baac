"""The law of the rewritten step: with any ids, it gives the loss and the gradients of the whole program, by the rule of each read."""

import functools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.effort import examples
from support.sparse_programs import COLUMNS, PARAMS, STACK, D, U, V, end, look
from support.sparse_steps import assert_equal, quick_jit, reference, step_on_host

from ampjax.sparse.rewrite.pulled_step import rewrite
from ampjax.sparse.rewrite.unique_ids import MARKED_IDS, MARKED_ROWS, pulled_size, unique_rows

pytestmark = pytest.mark.users

TABLES = PARAMS | {"U": U, "stack": STACK["T"], "columns": COLUMNS["T"]}
BATCH = jax.ShapeDtypeStruct((2, 3), jnp.int32)


def flat(read):
    """A loss with the table read by `read(table, ids)` and, with other ids, by plain indexing."""

    def loss(p, ids):
        rows = read(p["T"], ids)
        return end(
            p,
            jnp.nan_to_num(rows) * p["U"][ids // 3],
        ), rows

    return loss


def looped(p, ids):
    def step(carry, i):
        h, j = carry
        row = jax.lax.cond(
            i % 2 == 0,
            lambda: p["T"][i] + p["T"][j],
            lambda: p["U"].at[i].get(mode="fill", fill_value=1.0),
        )
        return (jnp.tanh(h + row), (j + i) % V), row.sum()

    (h, _), ys = jax.lax.scan(
        step,
        (jnp.zeros(D), ids[0, 0]),
        ids.ravel(),
    )
    return end(p, h), ys


def stacked(p, ids):
    """Tables by pairs, by each of JAX's rules for what is outside along either axis."""
    f = ids[0]
    i = ids[1]
    rows = p["stack"][f, i] + p["stack"].at[f // 50, i].get(mode="fill", fill_value=0.5)
    rows += p["stack"].at[f, i // 50].get(mode="clip") * jax.vmap(lambda t, j: t[j])(
        p["stack"], ids[0]
    )
    return end(p, rows), rows


def turned(p, ids):
    """Columns, and entries of some of them."""
    rows = p["columns"][:, ids] + jnp.take(p["columns"][::-1], ids, axis=1, mode="clip")
    return end(p, jnp.moveaxis(rows, 0, -1)), rows


def written(p, ids):
    """Rows that the batch names are overwritten, then others of two tables in one."""
    table = p["T"].at[ids[0, :2]].set(p["W"][0]).at[-1].set(0.0)
    both = jnp.concatenate([p["W"], table, p["U"][10:]])
    rows = both.at[5].set(0.25)[2 * ids] + jnp.take(both, ids, axis=0, mode="fill", fill_value=1.0)
    return end(p, rows) + end(p, table[ids] * jnp.stack([p["T"], p["U"]])[ids % 2, ids]), rows


def branching(p, ids):
    """A branch for each example, and for each id in it."""

    def one(i):
        rows = jax.vmap(
            lambda j: jax.lax.cond(
                j % 2 > 0,
                lambda: p["T"][j],
                lambda: p["U"].at[j].get(mode="clip"),
            )
        )(i)
        return jax.lax.cond(
            i.sum() % 3 > 0,
            lambda: rows,
            lambda: p["T"].at[i].get(mode="fill", fill_value=1.0),
        )

    rows = jax.vmap(one)(ids)
    return end(p, rows), rows


LOSSES = {
    "branching": branching,
    "stack": stacked,
    "columns": turned,
    "overwritten and joined": written,
    "indexing": flat(lambda t, i: t[i]),
    "clip": flat(lambda t, i: jnp.take(t, i, axis=0, mode="clip")),
    "wrap": flat(lambda t, i: jnp.take(t, i, axis=0, mode="wrap")),
    "fill with NaN": flat(lambda t, i: jnp.take(t, i, axis=0)),
    "fill with a number": flat(lambda t, i: t.at[i].get(mode="fill", fill_value=0.25)),
    "vmap": flat(lambda t, i: jax.vmap(jax.vmap(lambda j: t[j]))(i)),
    "half precision": flat(lambda t, i: t.astype(jnp.bfloat16)[i].astype(jnp.float32)),
    "custom_jvp": flat(lambda t, i: look(t, i, 2.0)),
    "scan with cond": looped,
}


@functools.cache
def built(name):
    program = rewrite(LOSSES[name], TABLES, BATCH)
    whole = quick_jit(functools.partial(reference, LOSSES[name], has_aux=True))
    return program, quick_jit(program.value_and_grad), quick_jit(program.ids), whole


ALIKE = "columns", "clip", "fill with a number", "custom_jvp"
"""Ways to read that ordinary runs leave to the run that compiles as users do; each has a neighbour that they try."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.users) if name in ALIKE else name for name in LOSSES],
)
@settings(max_examples=examples(20))
@given(
    ids=hnp.arrays(
        np.int32,
        (2, 3),
        elements=st.integers(-2 * V - 5, 2 * V + 5) | st.sampled_from([0, 3, V - 1]),
    )
)
@example(
    ids=np.full(
        (2, 3),
        5,
        np.int32,
    )
)
@example(
    ids=np.array(
        [[-1, -V, -V - 1], [V, V - 1, 0]],
        np.int32,
    )
)
@example(
    ids=np.array(
        [[2**31 - 1, -(2**31), 4], [4, 4, 4]],
        np.int32,
    )
)
def test_the_step_on_rows_is_the_program(name, ids):
    program, step, ids_fn, whole = built(name)
    assert_equal(
        step_on_host(program, TABLES, ids, step, ids_fn),
        whole(TABLES, ids),
    )


@given(
    data=st.data(),
    n_rows=st.sampled_from([12, 5000]),
)
def test_unique_rows_keep_every_id_in_its_place(data, n_rows):
    ids = data.draw(
        st.lists(
            st.integers(0, 12) | st.integers(n_rows - 2, n_rows),
            max_size=30,
        )
    )
    rows = unique_rows(np.array(ids, np.int32), n_rows)
    assert sorted(set(ids) - {n_rows}) == rows.ids.tolist()
    assert rows.inverse.dtype == np.int32
    assert [[*rows.ids.tolist(), n_rows][place] for place in rows.inverse] == ids
    assert pulled_size(len(rows.ids)) >= len(rows.ids)


@given(
    seed=st.integers(0, 99),
    n_ids=st.integers(MARKED_IDS, 2 * MARKED_IDS),
    n_rows=st.sampled_from([1, 31, 32, 1000, MARKED_ROWS * MARKED_IDS]),
)
def test_rows_of_many_ids_are_those_of_numpy(seed, n_ids, n_rows):
    ids = np.random.default_rng(seed).integers(
        0,
        n_rows + 1,
        n_ids,
        np.int32,
    )
    rows = unique_rows(ids, n_rows)
    distinct, inverse = np.unique(ids, return_inverse=True)
    assert rows.ids.tolist() == [row for row in distinct if row < n_rows]
    assert rows.inverse.tolist() == inverse.tolist()
    assert rows.ids.dtype == np.int32
    assert rows.inverse.dtype == np.int32
