"""Rules with one number of state a row, against their published formulas, written down in NumPy row by row."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ampjax.errors import SettingsError
from ampjax.optim import rowwise_adagrad, rowwise_adam, rowwise_rmsprop
from ampjax.optim.split_by_rows import split_rows

RATE = 0.05
EPS = 1e-3
SHAPES = {
    "matrix": (5, 4),
    "cube": (3, 2, 4),
    "vector": (6,),
    "scalar": (),
    "one row": (1, 3),
}


class AdagradRow:
    """FBGEMM's `rowwise_adagrad` for one row."""

    def __init__(self):
        self.sum = 0.25

    def step(self, weights, grad):
        self.sum += np.sum(grad * grad) / grad.size
        multiplier = RATE / (np.sqrt(self.sum) + EPS)
        return weights - multiplier * grad


class AdamRow:
    """FBGEMM's `partial_rowwise_adam` for one row."""

    def __init__(self, b1):
        self.b1 = b1
        self.m = 0.0
        self.v = 0.0
        self.t = 0

    def step(self, weights, grad):
        self.t += 1
        self.v = 0.75 * self.v + 0.25 * np.sum(grad * grad) / grad.size
        self.m = self.b1 * self.m + (1 - self.b1) * grad
        v_hat = self.v / (1 - 0.75**self.t)
        m_hat = self.m / (1 - self.b1**self.t)
        return weights - RATE * m_hat / (np.sqrt(v_hat) + EPS)


class RmspropRow:
    """FBGEMM's `rowwise_rmsprop_ar` for one row, without regularization."""

    def __init__(self):
        self.v = 0.0

    def step(self, weights, grad):
        self.v = 0.75 * self.v + 0.25 * np.sum(grad * grad) / grad.size
        return weights - RATE / (np.sqrt(self.v) + EPS) * grad


RULES = {
    "adagrad": (rowwise_adagrad(RATE, 0.25, EPS), AdagradRow),
    "adam": (
        rowwise_adam(
            RATE,
            b2=0.75,
            eps=EPS,
        ),
        lambda: AdamRow(0.0),
    ),
    "adam with a first moment": (
        rowwise_adam(
            RATE,
            0.5,
            0.75,
            EPS,
        ),
        lambda: AdamRow(0.5),
    ),
    "rmsprop": (rowwise_rmsprop(RATE, 0.75, EPS), RmspropRow),
    "a rate that changes": (
        optax.inject_hyperparams(rowwise_adam)(
            lambda count: RATE,
            b1=0.5,
            b2=0.75,
            eps=EPS,
        ),
        lambda: AdamRow(0.5),
    ),
}


def by_hand(make_row, values, grads):
    """Trains each row of a leaf alone, in float64; a vector's rows are its elements, a scalar is one."""
    rows = np.atleast_1d(np.asarray(values, np.float64))
    result = []
    for i, weights in enumerate(rows):
        row = make_row()
        for grad in grads:
            weights = row.step(
                weights,
                np.atleast_1d(np.asarray(grad, np.float64))[i],
            )
        result.append(weights)
    return np.reshape(result, np.shape(values))


@pytest.mark.parametrize("name", RULES)
def test_each_row_follows_the_published_formula(name):
    tx, make_row = RULES[name]
    rng = np.random.default_rng(0)
    params = {leaf: np.float32(rng.normal(size=shape)) for leaf, shape in SHAPES.items()}
    grads = []
    for _ in range(4):
        grads.append({leaf: np.float32(rng.normal(size=shape)) for leaf, shape in SHAPES.items()})
    grads[2]["matrix"][1] = 0

    @jax.jit
    def step(params, state, grads):
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    trained = params
    state = tx.init(params)
    for each in grads:
        trained, state = step(trained, state, each)
    for leaf in SHAPES:
        wanted = by_hand(
            make_row,
            params[leaf],
            [each[leaf] for each in grads],
        )
        np.testing.assert_allclose(
            trained[leaf],
            wanted,
            rtol=1e-5,
            atol=1e-6,
        )


def state_numbers(tx, params):
    """Numbers of state that a transform keeps, without its counts of updates."""
    shapes = []
    for leaf in jax.tree.leaves(jax.eval_shape(tx.init, params)):
        shapes.append(leaf.shape)
    return sum(math.prod(shape) for shape in shapes if shape)


@pytest.mark.parametrize("width", [8, 16, 32])
def test_state_is_a_sixteenth_of_two_moments(width):
    params = jax.ShapeDtypeStruct((1000, width), jnp.float32)
    two_moments = state_numbers(optax.adam(RATE), params)
    assert two_moments == 2 * 1000 * width
    for tx in (rowwise_adagrad(RATE), rowwise_adam(RATE), rowwise_rmsprop(RATE)):
        assert state_numbers(tx, params) == 1000 <= two_moments / 16
    assert state_numbers(rowwise_adam(RATE, b1=0.9), params) == 1000 * (1 + width)


def test_a_server_keeps_one_float32_a_row():
    params = {"table": jax.ShapeDtypeStruct((100, 32), jnp.float16)}
    for tx in (rowwise_adagrad(RATE), rowwise_adam(RATE), rowwise_rmsprop(RATE)):
        (state,) = (
            split_rows(
                tx,
                params,
                ["['table']"],
            )
            .rules["['table']"]
            .state
        )
        assert (state.shape, state.dtype) == ((), np.float32)


def test_half_precision_has_its_squares_in_float32():
    tx = rowwise_adagrad(1.0)
    params = jnp.ones((2, 3), jnp.float16)
    grads = jnp.full((2, 3), 300, jnp.float16)  # whose square float16 does not hold
    updates, state = tx.update(grads, tx.init(params))
    assert updates.dtype == jnp.float16 and np.allclose(updates, -1)
    assert state[0].sum_of_squares.tolist() == [90_000, 90_000]


def test_complex_rows_have_real_state():
    tx = rowwise_rmsprop(1.0, decay=0.0)
    grads = jnp.array(
        [[3 + 4j, 0], [0, 0]],
        jnp.complex64,
    )
    updates, state = tx.update(grads, tx.init(grads))
    assert state[0].nu.dtype == jnp.float32
    np.testing.assert_allclose(state[0].nu, [12.5, 0])
    np.testing.assert_allclose(
        updates[0],
        -grads[0] / np.sqrt(12.5),
        rtol=1e-6,
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "shape",
    [(0, 3), (3, 0)],
)
def test_empty_leaves(shape):
    for tx, _ in RULES.values():
        grads = jnp.zeros(shape)
        updates, state = tx.update(
            grads,
            tx.init(grads),
            grads,
        )
        assert updates.shape == shape
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: rowwise_adagrad(RATE, -1.0), "rowwise_adagrad, `initial_accumulator_value`: exp"),
        (lambda: rowwise_adagrad(RATE, eps=0.0), "rowwise_adagrad, `eps`: expected above 0, got 0"),
        (lambda: rowwise_adam(RATE, b1=1.0), r"rowwise_adam, `b1`: expected in \[0, 1\), got 1"),
        (lambda: rowwise_adam(RATE, b2=-0.1), r"rowwise_adam, `b2`: expected in \[0, 1\)"),
        (lambda: rowwise_adam(RATE, eps=-1.0), "rowwise_adam, `eps`: expected above 0"),
        (lambda: rowwise_rmsprop(RATE, 1.5), r"rowwise_rmsprop, `decay`: expected in \[0, 1\)"),
        (lambda: rowwise_rmsprop(RATE, eps=0.0), "rowwise_rmsprop, `eps`: expected above 0"),
    ],
)
def test_settings_out_of_their_range(make, text):
    with pytest.raises(SettingsError, match=text):
        make()
