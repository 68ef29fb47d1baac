"""Products of rows by matrices that a number chooses: rows of one number share the read of their matrix."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.jaxpr_walks import equations_in

import ampjax as amp
from ampjax.errors import DataError
from ampjax.frontend.loops.grouped_rows import Blocks, size_of_block

RNG = np.random.default_rng(0)
WIDTH = 32
KINDS = 4
SPEC = {"x": f"float32[n,{WIDTH}]", "kind": "int32[n]"}


def example(n):
    return {
        "x": RNG.normal(size=(n, WIDTH)).astype(np.float32),
        "kind": RNG.integers(
            -KINDS,
            KINDS,
            n,
        ).astype(np.int32),
    }


EXAMPLES = [example(n) for n in (70, 0, 150)]
PARAMS = {
    "rel": RNG.normal(size=(KINDS, WIDTH, WIDTH)).astype(np.float32) / 6,
    "bias": RNG.normal(size=(KINDS, WIDTH)).astype(np.float32),
}


def message(p, x, kind):
    w = p["rel"][kind]
    return jnp.tanh(w @ jnp.tanh(x @ w + p["bias"][kind])).sum()


def of_computed_kind(p, x, _):
    kind = jnp.argmax(x[: KINDS + 1])
    return jnp.tanh(
        p["rel"]
        .at[kind]
        .get(
            mode="fill",
            fill_value=0,
        )
        @ x
    ).sum()


def known(p, s):
    return amp.sum(
        amp.map(
            lambda x, kind: message(p, x, kind),
            s["x"],
            s["kind"],
        )
    )


def computed(p, s):
    return amp.sum(
        amp.map(
            lambda x, kind: of_computed_kind(p, x, kind),
            s["x"],
            s["kind"],
        )
    )


def whole(p, s):
    matrices = p["rel"][s["kind"]].astype(jnp.bfloat16)
    products = jnp.einsum(
        "nd,nde->ne",
        s["x"].astype(jnp.bfloat16),
        matrices,
        preferred_element_type=jnp.float32,
    )
    return jnp.tanh(products).sum()


def loop(p, s):
    step = lambda h, e: (
        jnp.tanh(e[0] + h @ p["rel"][e[1]]),
        None,
    )
    return amp.scan(
        step,
        jnp.zeros(WIDTH),
        (s["x"], s["kind"]),
    )[0].sum()


def of_batch(model, params, examples):
    batched = amp.vmap(model, SPEC, params=params)
    batch = batched.pack(examples)
    return lambda p: batched(p, batch).sum()


def matrices_in(program):
    """The largest number of matrices in an array of a program."""
    found = [0]
    for equation in equations_in(program.jaxpr):
        for variable in equation.outvars:
            shape = variable.aval.shape
            if shape[-2:] == (WIDTH, WIDTH) and len(shape) == 3:
                found.append(shape[0])
    return max(found)


def by_hand(function):
    return lambda p, s: jax.vmap(function, in_axes=(None, 0, 0))(
        p,
        s["x"],
        s["kind"],
    ).sum()


@pytest.mark.parametrize(
    ("model", "same", "lengths", "tolerance"),
    [
        (known, by_hand(message), (70, 0, 150), 1e-4),
        (computed, by_hand(of_computed_kind), (70, 0, 150), 1e-4),
        (
            whole,
            whole,
            (70, 0, 150),
            1e-1,
        ),  # plain JAX rounds each row's part of sums of 20 to bfloat16
        (loop, loop, (5, 3), 1e-4),
    ],
)
def test_values_and_gradients_are_those_of_each_example(model, same, lengths, tolerance):
    examples = [example(n) for n in lengths]

    @jax.jit
    @jax.value_and_grad
    def of_each(p):
        return sum(same(p, s) for s in examples)

    found = jax.jit(
        jax.value_and_grad(
            of_batch(
                model,
                PARAMS,
                examples,
            )
        )
    )(PARAMS)
    leaves = zip(
        jax.tree.leaves(found),
        jax.tree.leaves(of_each(PARAMS)),
        strict=True,
    )
    for one, other in leaves:
        np.testing.assert_allclose(
            one,
            other,
            rtol=tolerance,
            atol=tolerance,
        )


@pytest.mark.parametrize(
    "model",
    [known, computed, whole],
)
def test_no_row_has_a_matrix_of_its_own(model):
    function = jax.grad(
        of_batch(
            model,
            PARAMS,
            EXAMPLES,
        )
    )
    assert matrices_in(jax.make_jaxpr(function)(PARAMS)) <= KINDS
    rows = sum(len(s["x"]) for s in EXAMPLES)
    text = jax.jit(function).lower(PARAMS).as_text()
    sizes = [int(n) for n in re.findall(rf"tensor<(\d+)x(?:1x)?{WIDTH}x{WIDTH}x", text)]
    assert KINDS < max(sizes) < rows / 4


@pytest.mark.parametrize("model", [known, whole])
def test_numbers_of_no_matrix_are_an_error(model):
    one = {
        **example(3),
        "kind": np.array(
            [0, KINDS, 1],
            np.int32,
        ),
    }
    with pytest.raises(
        DataError,
        match="to 3, of one of 4 entries, got 4",
    ):
        amp.vmap(model, SPEC, params=PARAMS).pack([one])


def test_a_matrix_that_is_used_otherwise_too_is_read_by_each_row():
    def model(p, s):
        def message(x, kind):
            w = p["rel"][kind]
            return (x @ w).sum() + jnp.tanh(w).sum()

        return amp.sum(
            amp.map(
                message,
                s["x"],
                s["kind"],
            )
        )

    program = jax.make_jaxpr(
        of_batch(
            model,
            PARAMS,
            EXAMPLES,
        )
    )(PARAMS)
    assert matrices_in(program) > KINDS
    assert "product_by_number" not in str(program)


def test_numbers_in_matrices_that_no_row_reads_do_not_show():
    params = {**PARAMS, "rel": PARAMS["rel"].copy()}
    params["rel"][1] = np.nan
    params["rel"][3] = np.inf
    examples = [
        {
            **s,
            "kind": np.where(
                s["kind"] % 2,
                0,
                2,
            ).astype(np.int32),
        }
        for s in EXAMPLES
    ]
    value, grads = jax.jit(
        jax.value_and_grad(
            of_batch(
                known,
                params,
                examples,
            )
        )
    )(params)
    assert np.isfinite(value)
    assert np.isfinite(grads["rel"]).all()


def test_a_matrix_of_a_fill_value_does_not_change_with_the_table():
    table = jnp.asarray(PARAMS["rel"])
    x = jnp.asarray(EXAMPLES[0]["x"])
    rows = {
        "x": EXAMPLES[0]["x"],
        "kind": np.full(
            len(x),
            KINDS,
            np.int32,
        ),
    }

    def model(p, s):
        kind = s["kind"] + jnp.argmax(s["x"], axis=1).astype(np.int32)
        matrices = p.at[kind].get(
            mode="fill",
            fill_value=0.5,
        )
        return jnp.einsum(
            "nd,nde->ne",
            s["x"],
            matrices,
        ).sum()

    batched = amp.vmap(model, SPEC, params=table)
    batch = batched.pack([rows])
    value, change = jax.jvp(
        lambda p: batched(p, batch).sum(),
        (table,),
        (table,),
    )
    np.testing.assert_allclose(
        value,
        0.5 * WIDTH * x.sum(),
        rtol=1e-4,
    )
    assert change == 0


def test_a_matrix_of_few_rows_does_not_spoil_others():
    params = {**PARAMS, "rel": PARAMS["rel"].copy()}
    params["rel"][1] = np.nan
    found = jax.jit(
        jax.grad(
            of_batch(
                known,
                params,
                EXAMPLES,
            )
        )
    )(params)
    grads = np.asarray(found["rel"])
    assert np.isfinite(grads[[0, 2, 3]]).all()
    assert np.isnan(grads[1]).any()


def test_blocks_have_rows_of_one_group():
    groups = RNG.choice(
        [0, 1, 4, 5],
        37,
    ).astype(np.int32)
    values = np.arange(1, 38)

    @jax.jit
    def cut(groups):
        blocks = Blocks.of(groups, 7, 8)
        inside = blocks.cut(jnp.asarray(values))
        return inside, blocks.first, blocks.rows(inside)

    blocks, firsts, again = map(
        np.asarray,
        cut(groups),
    )
    np.testing.assert_array_equal(again, values)
    for own, first in zip(
        blocks,
        firsts,
        strict=True,
    ):
        there = own[own > 0] - 1
        assert (groups[there] == groups[first]).all()


@pytest.mark.parametrize(
    ("sizes", "is_in_blocks"),
    [
        ((4000, 8, 64 * 64, 128), True),
        ((4000, 512, 32 * 32, 64), True),
        ((32, 8, 64 * 64, 128), True),
        ((100_000, 3, 16 * 16, 32), True),
        ((512, 512, 128 * 128, 256), False),
        ((4000, 8, 8 * 8, 16), False),
        ((8, 64, 64 * 64, 128), False),
        ((0, 8, 64 * 64, 128), False),
    ],
)
def test_blocks_are_made_where_they_cost_less(sizes, is_in_blocks):
    assert (size_of_block(*sizes) > 0) == is_in_blocks
