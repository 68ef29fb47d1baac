"""Draws are those of `jax.random`, whatever the key."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.models.layers.bernoulli import bernoulli
from experiments.models.layers.dropout import Dropout, dropout

pytestmark = [pytest.mark.slow, pytest.mark.users]

SHAPES = st.sampled_from(
    [
        (),
        (1,),
        (2,),
        (7,),
        (150,),
        (3, 5),
        (2, 1, 4),
        (0,),
        (3, 0),
    ]
)


@given(
    st.integers(0, 2**32 - 1),
    st.floats(0, 1, width=32),
    SHAPES,
)
def test_the_same_draws(seed, p, shape):
    key = jax.random.fold_in(jax.random.key(0), seed)
    np.testing.assert_array_equal(
        bernoulli(key, p, shape),
        jax.random.bernoulli(key, p, shape),
    )


@pytest.mark.parametrize(
    "key",
    [
        jax.random.PRNGKey(3),
        jax.random.key(
            3,
            impl="rbg",
        ),
    ],
    ids=["raw", "rbg"],
)
def test_other_keys(key):
    np.testing.assert_array_equal(
        bernoulli(key, 0.3, (40,)),
        jax.random.bernoulli(key, 0.3, (40,)),
    )


@pytest.mark.parametrize("setting", ["jax_enable_x64", "jax_threefry_partitionable"])
def test_other_settings(setting):
    before = getattr(jax.config, setting)
    jax.config.update(setting, not before)
    try:
        key = jax.random.key(3)
        np.testing.assert_array_equal(
            bernoulli(key, 0.3, (40,)),
            jax.random.bernoulli(key, 0.3, (40,)),
        )
    finally:
        jax.config.update(setting, before)


@pytest.mark.parametrize(
    "p",
    [
        jnp.bfloat16(0.3),
        np.float16(0.3),
        np.full(40, 0.3),
        -0.1,
        600.0,
        float("nan"),
    ],
)
def test_other_probabilities(p):
    key = jax.random.key(3)
    np.testing.assert_array_equal(
        bernoulli(key, p, (40,)),
        jax.random.bernoulli(key, p, (40,)),
    )


def test_probabilities_that_are_traced():
    key = jax.random.key(3)
    draws = jax.jit(
        lambda p: bernoulli(
            key,
            p,
            (40,),
        )
    )(0.3)
    np.testing.assert_array_equal(
        draws,
        jax.random.bernoulli(key, 0.3, (40,)),
    )


@pytest.mark.parametrize(
    "keys",
    [
        jax.random.split(jax.random.key(1), 3),
        jax.random.split(
            jax.random.PRNGKey(1),
            2,
        ),
    ],
)
def test_several_keys_are_refused_as_jax_does(keys):
    with pytest.raises((TypeError, ValueError), match="single key"):
        bernoulli(keys, 0.5, (4,))


def test_a_compiled_loop_over_rows_draws_the_same():
    keys = jax.random.split(jax.random.key(1), 9)
    ours = jax.jit(
        jax.vmap(
            lambda key: bernoulli(
                key,
                0.7,
                (5,),
            )
        )
    )(keys)
    np.testing.assert_array_equal(
        ours,
        jax.vmap(
            lambda key: jax.random.bernoulli(
                key,
                0.7,
                (5,),
            )
        )(keys),
    )


def test_what_is_kept_is_divided_by_how_likely_that_is():
    key = jax.random.key(5)
    x = jnp.arange(1.0, 2001.0)
    kept = dropout(key, x, 0.25)
    np.testing.assert_array_equal(
        kept,
        jnp.where(
            jax.random.bernoulli(key, 0.25, x.shape),
            4 * x,
            0,
        ),
    )
    assert dropout(None, x, 0.25) is x
    assert dropout(key, x, 1) is x
    np.testing.assert_array_equal(
        jax.grad(lambda x: dropout(key, x, 0.25).sum())(x),
        jnp.where(kept > 0, 4.0, 0.0),
    )


def test_a_part_of_a_batch_drops_what_the_whole_drops():
    keys = jax.random.split(jax.random.key(2), 6)
    x = jnp.ones((6, 30))
    whole = Dropout(keys, 0.4)(x, 3)
    np.testing.assert_array_equal(
        Dropout(keys[2:4], 0.4)(
            x[2:4],
            3,
        ),
        whole[2:4],
    )
    assert not np.array_equal(Dropout(keys, 0.4)(x, 4), whole)


def test_dropout_passes_through_transforms():
    drop = Dropout(
        jax.random.split(jax.random.key(2), 3),
        0.5,
    )
    x = jnp.ones((3, 4))
    np.testing.assert_array_equal(
        jax.jit(lambda d, x: d(x, 1))(
            drop,
            x,
        ),
        drop(x, 1),
    )
    _, seen = jax.lax.scan(
        lambda d, step: (
            d.at(step),
            d(x, 1),
        ),
        drop,
        jnp.arange(2),
    )
    np.testing.assert_array_equal(
        seen,
        [
            drop(x, 1),
            drop.at(0)(x, 1),
        ],
    )
