"""Updates of some rows of a table, against those of the whole table."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ampjax.optim import row_update, scale_by_staleness
from ampjax.optim.node_update import make_update
from ampjax.optim.row_update import make_row_update

pytestmark = pytest.mark.slow

SHAPE = (37, 3)
STILL = {
    "sgd": optax.sgd(0.1),
    "schedule": optax.sgd(optax.cosine_decay_schedule(0.1, 3)),
    "adagrad": optax.adagrad(0.1),
    "clipped": optax.chain(
        optax.clip(0.5),
        optax.adagrad(0.1),
    ),
}
OTHERS = {
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(1e-2),
    "decay": optax.chain(
        optax.add_decayed_weights(0.1),
        optax.sgd(0.1),
    ),
    "norm": optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.sgd(0.1),
    ),
    "staleness": optax.chain(optax.sgd(0.1), scale_by_staleness()),
}


def table(seed, dtype=np.float32):
    return jnp.asarray(
        np.random.default_rng(seed).normal(size=SHAPE),
        dtype,
    )


@pytest.fixture
def small_calls(monkeypatch):
    monkeypatch.setattr(row_update, "CHUNK", 4)
    make_row_update.cache_clear()
    yield
    make_row_update.cache_clear()


@pytest.mark.first_case
@pytest.mark.parametrize("name", STILL)
@pytest.mark.parametrize("gradient", ["mean", "sum"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.usefixtures("small_calls")
def test_three_updates_are_those_of_the_whole_table(name, gradient, dtype):
    tx = STILL[name]
    rng = np.random.default_rng(0)
    update = make_row_update(tx, gradient, SHAPE, np.dtype(dtype))
    whole = make_update(tx, gradient)
    params = wanted = table(0, dtype)
    state = wanted_state = tx.init(params)
    for n in (3, 4, 11):
        rows = rng.integers(0, SHAPE[0], n)
        sums = np.zeros(SHAPE, dtype)
        np.add.at(
            sums,
            rows,
            rng.normal(size=(n, SHAPE[1])).astype(dtype),
        )
        wanted, wanted_state, _ = whole(
            wanted,
            wanted_state,
            jnp.asarray(sums),
            float(n),
        )
        held = (
            jnp.copy(params),
            jax.tree.map(
                jnp.copy,
                state,
            ),
            jnp.asarray(sums),
        )
        *_, (params, state, zeros) = update(
            *held,
            rows,
            np.float32(n),
        )
        assert not zeros.any()
    assert jax.tree.structure(state) == jax.tree.structure(wanted_state)
    if dtype == np.float32:
        tight = {"rtol": 1e-6}
    else:
        tight = {"rtol": 2e-3, "atol": 1e-3}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **tight),
        (params, state),
        (wanted, wanted_state),
    )
    assert params.dtype == dtype


@pytest.mark.nightly
@given(
    rows=st.lists(
        st.integers(0, SHAPE[0] - 1),
        max_size=40,
    ),
    again=st.lists(st.integers(0, SHAPE[0] - 1)),
)
@example(rows=[15], again=[])  # an entry of 0.095 goes to 0.00014
@settings(max_examples=25, deadline=None)
def test_rows_that_come_again_or_have_no_gradient_stay_as_they_are(rows, again):
    tx = STILL["adagrad"]
    update = make_row_update(tx, "sum", SHAPE, np.dtype(np.float32))
    sums = np.zeros(SHAPE, np.float32)
    np.add.at(sums, np.array(rows, int), 1.0)
    wanted, *_ = make_update(tx, "sum")(
        table(1),
        tx.init(table(1)),
        jnp.asarray(sums),
        1.0,
    )
    *_, (params, *_) = update(
        table(1),
        tx.init(table(1)),
        jnp.asarray(sums),
        np.array(rows + again, int),
        1.0,
    )
    # Where a step ends near zero, it rounds as what it started from.
    operands = np.maximum(
        np.abs(wanted),
        np.abs(table(1)),
    )
    assert (np.abs(params - wanted) <= 1e-6 * operands).all()
    untouched = np.setdiff1d(np.arange(SHAPE[0]), rows)
    np.testing.assert_array_equal(params[untouched], table(1)[untouched])


@pytest.mark.usefixtures("small_calls")
def test_no_rows_at_all_are_a_step_too():
    tx = STILL["schedule"]
    update = make_row_update(tx, "mean", SHAPE, np.dtype(np.float32))
    state = tx.init(table(0))
    *_, (params, after, _) = update(
        table(0),
        state,
        jnp.zeros(SHAPE),
        np.zeros(0, int),
        np.float32(0),
    )
    np.testing.assert_array_equal(params, table(0))
    assert [int(leaf) for leaf in jax.tree.leaves(after)] == [
        1 + int(leaf) for leaf in jax.tree.leaves(state)
    ]


@pytest.mark.usefixtures("small_calls")
def test_interrupted_between_calls_it_goes_on_from_what_is_there():
    tx = STILL["schedule"]
    rows = np.arange(10)
    update = make_row_update(tx, "sum", SHAPE, np.dtype(np.float32))
    sums = jnp.zeros(SHAPE).at[rows].set(1.0)
    held = next(
        update(
            table(0),
            tx.init(table(0)),
            jnp.copy(sums),
            rows,
            1.0,
        )
    )
    *_, held = update(*held, rows, 1.0)
    params, state, _ = make_update(tx, "sum")(
        table(0),
        tx.init(table(0)),
        sums,
        1.0,
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6),
        held[:2],
        (params, state),
    )


@pytest.mark.parametrize("name", OTHERS)
def test_transforms_that_do_more_are_left_alone(name):
    assert (
        make_row_update(
            OTHERS[name],
            "mean",
            SHAPE,
            np.dtype(np.float32),
        )
        is None
    )


def test_a_transform_that_uses_staleness_where_it_is_told_is_left_alone():
    """It works without, so that a trace without it finds nothing."""

    def scale(
        updates,
        state,
        params=None,
        *,
        staleness=0.0,
        **extra,
    ):
        return jax.tree.map(
            lambda u: -0.1 * u / (1 + staleness),
            updates,
        ), state

    tx = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), scale)
    assert make_row_update(tx, "mean", SHAPE, np.dtype(np.float32)) is None


def test_a_transform_that_cannot_be_traced_is_left_alone():
    def scale(updates, state, params=None):
        return jax.tree.map(
            lambda u: -u if float(u.sum()) > 0 else u,
            updates,
        ), state

    tx = optax.GradientTransformation(lambda params: optax.EmptyState(), scale)
    assert make_row_update(tx, "mean", SHAPE, np.dtype(np.float32)) is None


def test_a_table_of_bfloat16_is_left_alone():
    assert (
        make_row_update(
            STILL["sgd"],
            "mean",
            SHAPE,
            jnp.dtype(jnp.bfloat16),
        )
        is None
    )


@pytest.mark.parametrize("name", ["sgd", "adagrad"])
def test_it_copies_no_table(name):
    update = make_row_update(
        STILL[name],
        "mean",
        (5_000, 64),
        np.dtype(np.float32),
    )
    params = jnp.ones((5_000, 64))
    shared, own = update._split.state.split(STILL[name].init(params))
    args = (
        params,
        own.get("", []),
        params,
        shared,
        np.zeros(
            row_update.CHUNK,
            np.int32,
        ),
        1.0,
    )
    assert "f32[5000,64]{1,0} copy(" not in update._step.lower(*args).compile().as_text()
