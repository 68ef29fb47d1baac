"""A node's update against plain optax."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ampjax.errors import ParameterError, SettingsError
from ampjax.optim import scale_by_staleness
from ampjax.optim.node_update import combine, make_update, trainable

TRANSFORMS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(1e-2),
    "adamw": optax.adamw(1e-2),
    "clipped": optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.adagrad(0.1),
    ),
    "schedule": optax.sgd(optax.cosine_decay_schedule(0.1, 3)),
}
PARAMS = {
    "w": jnp.linspace(-1.0, 1.0, 6).reshape(2, 3),
    "b": [jnp.ones(3)],
}


def rows(seed, n):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda p: rng.normal(size=(n, *p.shape)).astype(np.float32),
        PARAMS,
    )


@pytest.mark.first_case
@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("gradient", ["mean", "sum"])
def test_three_updates_as_optax_makes_them(name, gradient):
    tx = TRANSFORMS[name]
    update = jax.jit(
        make_update(tx, gradient),
        donate_argnums=(1, 2),
    )
    params = PARAMS
    state = tx.init(PARAMS)
    wanted = PARAMS
    wanted_state = tx.init(PARAMS)
    for step, n in enumerate((1, 4, 7)):
        grads = rows(step, n)
        params, state, zeros = update(
            params,
            state,
            jax.tree.map(
                lambda g: jnp.sum(g, 0),
                grads,
            ),
            jnp.float32(n),
        )
        updates, wanted_state = tx.update(
            jax.tree.map(
                lambda g, f=gradient: jnp.asarray(getattr(np, f)(g, axis=0)),
                grads,
            ),
            wanted_state,
            wanted,
        )
        wanted = optax.apply_updates(wanted, updates)
        assert all(not leaf.any() for leaf in jax.tree.leaves(zeros))
    # 1e-5: sums of rows in another order, then Adam's division by a small second moment
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        params,
        wanted,
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        state,
        wanted_state,
    )


@given(
    st.integers(1, 20),
    st.integers(-1000, 1000),
)
@settings(max_examples=30)
def test_mean_and_sum(n, value):
    for gradient, divisor in (("mean", n), ("sum", 1)):
        update = make_update(optax.sgd(1.0), gradient)
        params, _, _ = update(
            jnp.zeros(2),
            optax.sgd(1.0).init(jnp.zeros(2)),
            jnp.full(2, float(value)),
            float(n),
        )
        np.testing.assert_allclose(params, -value / divisor, rtol=1e-6)


def test_no_rows_are_a_zero_gradient():
    tx = optax.sgd(1.0)
    params, _, _ = make_update(tx)(
        PARAMS,
        tx.init(PARAMS),
        jax.tree.map(jnp.zeros_like, PARAMS),
        0.0,
    )
    jax.tree.map(np.testing.assert_array_equal, params, PARAMS)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_shapes_and_dtypes_stay_so_one_compilation_is_enough(name):
    tx = TRANSFORMS[name]
    params = jax.tree.map(
        lambda p: p.astype(jnp.bfloat16),
        PARAMS,
    )
    arguments = (
        params,
        tx.init(params),
        jax.tree.map(
            lambda p: jnp.ones(p.shape, jnp.float32),
            params,
        ),
    )
    results = jax.eval_shape(
        make_update(tx),
        *arguments,
        jnp.float32(1),
    )
    described = [
        jax.tree.map(
            lambda leaf: (leaf.shape, leaf.dtype, leaf.weak_type),
            jax.eval_shape(lambda t: t, tree),
        )
        for tree in (arguments, results)
    ]
    assert described[0] == described[1]


def test_integer_leaves_are_untouched():
    params = {
        "w": jnp.ones(2),
        "ids": jnp.arange(3),
        "flag": jnp.array(True),
        "key": jax.random.key(1),
    }
    tx = optax.adamw(0.1)
    assert trainable(params) == {"w": params["w"], "ids": None, "flag": None, "key": None}
    state = tx.init(trainable(params))
    accumulator = jax.tree.map(jnp.ones_like, trainable(params))
    new, _, zeros = jax.jit(make_update(tx))(
        params,
        state,
        accumulator,
        2.0,
    )
    assert new["ids"].tolist() == [0, 1, 2]
    assert bool(new["flag"])
    assert new["key"] == params["key"]
    assert new["w"].tolist() != [1.0, 1.0]
    assert zeros["ids"] is None


def test_combine_inverts_trainable():
    params = {
        "w": jnp.ones(2),
        "ids": jnp.arange(3),
        "none": None,
    }
    assert combine(params, trainable(params)) == params


@pytest.mark.parametrize(
    ("accumulator", "text"),
    [
        (
            {"w": jnp.zeros((2, 3))},
            "gradient accumulator, leaf `['b'][0]`: expected shape (3,), got none.",
        ),
        (
            {"w": jnp.zeros((2, 4)), "b": [jnp.zeros(3)]},
            "gradient accumulator, leaf `['w']`: expected shape (2, 3), got shape (2, 4).",
        ),
        (
            {**PARAMS, "c": jnp.zeros(1)},
            "gradient accumulator, leaf `['c']`: expected no such leaf, got shape (1,).",
        ),
    ],
)
def test_an_accumulator_that_does_not_fit(accumulator, text):
    tx = optax.sgd(0.1)
    with pytest.raises(ParameterError, match=re.escape(text)):
        jax.jit(make_update(tx))(
            PARAMS,
            tx.init(PARAMS),
            accumulator,
            1.0,
        )


def test_settings():
    with pytest.raises(SettingsError, match="gradient: expected `mean` or `sum`, got 'max'"):
        make_update(optax.sgd(0.1), "max")
    with pytest.raises(SettingsError, match="tx: expected an optax transform, got float"):
        make_update(0.1)


# ---- staleness -------------------------------------------------------------------------------------------------------


def test_staleness_divides_the_step():
    tx = optax.chain(optax.adam(0.1), scale_by_staleness())
    update = jax.jit(make_update(tx))
    accumulator = jax.tree.map(jnp.ones_like, PARAMS)
    fresh, _, _ = update(
        PARAMS,
        tx.init(PARAMS),
        accumulator,
        1.0,
        staleness=0.0,
    )
    stale, _, _ = update(
        PARAMS,
        tx.init(PARAMS),
        accumulator,
        1.0,
        staleness=3.0,
    )
    jax.tree.map(
        lambda f, s, p: np.testing.assert_allclose(
            (f - p) / 4,
            s - p,
            rtol=1e-4,
            atol=1e-6,
        ),
        fresh,
        stale,
        PARAMS,
    )


def test_staleness_keeps_the_dtype():
    updates, _ = scale_by_staleness().update(
        jnp.ones(2, jnp.bfloat16),
        optax.EmptyState(),
        staleness=jnp.float32(1),
    )
    assert updates.dtype == jnp.bfloat16 and updates.tolist() == [0.5, 0.5]


def test_staleness_is_dropped_by_transforms_that_take_none():
    tx = optax.sgd(1.0)
    params, _, _ = make_update(tx)(
        jnp.zeros(1),
        tx.init(jnp.zeros(1)),
        jnp.ones(1),
        1.0,
        staleness=5.0,
    )
    assert params.tolist() == [-1.0]


def test_staleness_must_be_given():
    with pytest.raises(SettingsError, match="expected the extra argument `staleness`"):
        scale_by_staleness().update(1.0, optax.EmptyState())


@pytest.mark.parametrize("gradient", ["mean", "sum"])
def test_an_accumulator_is_emptied_whatever_it_held(gradient):
    held = {
        "w": jnp.array([jnp.nan, jnp.inf, -1.0]),
    }
    tx = optax.set_to_zero()
    for count in (0.0, 3.0):
        _, _, empty = jax.jit(make_update(tx, gradient))(
            {"w": jnp.ones(3)},
            tx.init(None),
            held,
            count,
        )
        np.testing.assert_array_equal(empty["w"], np.zeros(3))


@pytest.mark.parametrize(
    "tx",
    [
        optax.sgd(0.1),
        optax.adagrad(0.1),
        optax.adam(0.1),
    ],
    ids=["sgd", "adagrad", "adam"],
)
def test_an_update_copies_nothing(tx):
    """All that it changes may be donated; a copy of a large table would cost as much as its update."""
    table = jnp.ones((211, 8))
    compiled = (
        jax.jit(make_update(tx), donate_argnums=(0, 1, 2))
        .lower(table, tx.init(table), table, 4.0)
        .compile()
    )
    assert "f32[211,8]" in compiled.as_text() and not re.search(
        r"f32\[211,8\]\S* copy\(", compiled.as_text()
    )
