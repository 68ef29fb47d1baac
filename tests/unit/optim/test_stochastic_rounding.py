"""Parameters in 16 bits: rounded to a neighbour, right in the mean, and the same bits in tables as in plain optax."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.errors import SettingsError
from ampjax.optim import rowwise_adagrad, stochastic_rounding
from ampjax.sparse import Table

DTYPES = ("bfloat16", "float16")


def wide(array):
    return np.asarray(array, np.float64)


def step_once(tx, params, gradients):
    updates, _ = tx.update(gradients, tx.init(params), params)
    return optax.apply_updates(params, updates)


@pytest.mark.parametrize("dtype", DTYPES)
@given(
    st.floats(2.0**-6, 2.0**6),
    st.floats(-1.0, 1.0),
    st.integers(0, 2**32 - 1),
)
def test_each_result_is_a_neighbour_of_the_new_value(dtype, size, share, seed):
    rng = np.random.default_rng(seed)
    params = jnp.asarray(
        size * rng.normal(size=(20, 4)),
        dtype,
    )
    gradients = jnp.asarray(
        share * size * rng.normal(size=(20, 4)),
        jnp.float32,
    )
    new = step_once(stochastic_rounding(optax.sgd(1.0), seed), params, gradients)
    assert new.dtype == params.dtype
    wanted = params.astype(jnp.float32) - gradients
    nearest = wanted.astype(dtype)
    up = jnp.nextafter(nearest, jnp.asarray(jnp.inf, dtype))
    down = jnp.nextafter(nearest, jnp.asarray(-jnp.inf, dtype))
    is_exact = nearest.astype(jnp.float32) == wanted
    is_above = wanted > nearest.astype(jnp.float32)
    other = jnp.where(is_above, up, down)
    assert bool(((new == nearest) | (~is_exact & (new == other))).all())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mean_is_right(dtype):
    """Over many turns and elements: within five standard deviations of the step."""
    rng = np.random.default_rng(0)
    params = jnp.asarray(
        1 + 0.9 * rng.uniform(size=(400, 8)),
        dtype,
    )
    gap = float(jnp.finfo(dtype).eps)
    tx = stochastic_rounding(optax.sgd(1.0))
    for share in (0.05, 0.3, 0.7):
        state = tx.init(params)
        moved = []
        for _ in range(20):
            gradients = jnp.full(params.shape, -share * gap)
            updates, state = tx.update(gradients, state, params)
            moved.append(wide(optax.apply_updates(params, updates)) - wide(params))
        deviation = gap * np.sqrt(share * (1 - share) / (20 * params.size))
        assert abs(np.mean(moved) - share * gap) < 5 * deviation
        assert set(np.unique(moved)) == {0.0, gap}


def test_small_steps_add_up_where_the_nearest_number_forgets_them():
    target = jnp.linspace(0.2, 0.8, 64).reshape(16, 4)
    ends = {}
    for name, tx in {
        "nearest": optax.sgd(1e-3),
        "stochastic": stochastic_rounding(optax.sgd(1e-3)),
    }.items():
        params = jnp.ones((16, 4), jnp.bfloat16)
        state = tx.init(params)

        @jax.jit
        def step(params, state, tx=tx):
            gradients = params.astype(jnp.float32) - target
            updates, state = tx.update(
                gradients.astype(params.dtype),
                state,
                params,
            )
            return optax.apply_updates(params, updates), state

        for _ in range(4000):
            params, state = step(params, state)
        ends[name] = float(jnp.abs(params.astype(jnp.float32) - target).mean())
    assert ends["nearest"] > 0.3
    assert ends["stochastic"] < 0.03


def test_other_dtypes_are_left_to_the_transform():
    params = {
        "narrow": jnp.ones(3, jnp.bfloat16),
        "wide": jnp.ones(3),
        "none": None,
    }
    gradients = {
        "narrow": jnp.ones(3, jnp.bfloat16),
        "wide": 0.1 * jnp.ones(3),
        "none": None,
    }
    inner = optax.adam(0.1)
    new = step_once(stochastic_rounding(inner), params, gradients)
    assert new["narrow"].dtype == jnp.bfloat16
    alone = {"wide": params["wide"]}
    wanted = step_once(inner, alone, {"wide": gradients["wide"]})
    np.testing.assert_array_equal(new["wide"], wanted["wide"])


def test_seeds_and_turns_draw_other_numbers():
    params = jnp.asarray(
        np.random.default_rng(0).normal(size=(50, 8)),
        jnp.bfloat16,
    )
    gradients = jnp.full((50, 8), 1e-3)
    first = stochastic_rounding(optax.sgd(1.0), 1)
    again = step_once(stochastic_rounding(optax.sgd(1.0), 1), params, gradients)
    np.testing.assert_array_equal(step_once(first, params, gradients), again)
    other = step_once(stochastic_rounding(optax.sgd(1.0), 2), params, gradients)
    assert (again != other).any()
    _, state = first.update(gradients, first.init(params), params)
    updates, _ = first.update(gradients, state, params)
    assert (optax.apply_updates(params, updates) != again).any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["lazy", "faithful"])
@pytest.mark.parametrize(
    "inner",
    [
        optax.sgd(0.01),
        rowwise_adagrad(0.01),
        optax.adam(0.01),
    ],
    ids=["sgd", "rowwise_adagrad", "adam"],
)
def test_a_table_has_the_bits_of_plain_optax(inner, mode, dtype):
    rng = np.random.default_rng(0)
    tx = stochastic_rounding(inner, 7)
    params = jnp.asarray(
        rng.normal(size=(30, 4)),
        dtype,
    )
    table = Table(
        np.asarray(params),
        tx,
        partitions=3,
        mode=mode,
    )
    state = tx.init(params)
    for _ in range(6):
        if mode == "lazy" and not table.rule.zero_gradient_is_noop:
            ids = np.arange(30)  # so that no row misses an update
        else:
            ids = rng.choice(30, 5, replace=False)
        gradients = jnp.asarray(
            0.01 * rng.normal(size=(len(ids), 4)),
            dtype,
        )
        table.push(ids, np.asarray(gradients))
        dense = jnp.zeros_like(params).at[ids].set(gradients)
        updates, state = tx.update(dense, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_array_equal(wide(table.dense()), wide(params))


def test_rows_without_gradients_stay_where_the_transform_lets_them():
    for inner, stays in (
        (optax.sgd(0.1), True),
        (optax.adagrad(0.1), True),
        (optax.adam(0.1), False),
    ):
        table = Table(
            np.ones((4, 2), jnp.bfloat16),
            stochastic_rounding(inner),
            mode="faithful",
        )
        assert table.untouched_rows_stay == stays


@pytest.mark.parametrize(
    "seed",
    [-1, 2**32, 1.5, True, None],
)
def test_seeds_that_are_none(seed):
    with pytest.raises(SettingsError, match="`seed`: expected an integer from 0"):
        stochastic_rounding(optax.sgd(0.1), seed)


def test_parameters_are_needed():
    tx = stochastic_rounding(optax.sgd(0.1))
    with pytest.raises(SettingsError, match="expected parameters beside the gradients"):
        tx.update(
            jnp.ones(2),
            tx.init(jnp.ones(2)),
        )
