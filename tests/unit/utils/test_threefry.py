"""Keys are those of `jax.random`, whatever the key and the number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.utils.threefry import fold_in

WORDS = st.integers(0, 2**32 - 1)


@given(WORDS, WORDS, WORDS)
def test_the_same_key(word_0, word_1, number):
    key = jax.random.wrap_key_data(np.array([word_0, word_1], np.uint32))
    assert fold_in(key, np.uint32(number)) == jax.random.fold_in(key, np.uint32(number))


def test_the_same_keys_for_many_numbers():
    key = jax.random.key(7)
    numbers = np.arange(4, dtype=np.uint32)
    ours = jax.jit(jax.vmap(lambda number: fold_in(key, number)))(numbers)
    assert (ours == jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers)).all()
    assert jax.random.bits(ours[3]) == jax.random.bits(jax.random.fold_in(key, numbers[3]))


@pytest.mark.parametrize(
    ("key", "number"),
    [
        (jax.random.PRNGKey(3), np.uint32(5)),
        (jax.random.key(3, impl="rbg"), np.uint32(5)),
        (jax.random.key(3), 5),
        (jax.random.key(3), np.int32(5)),
    ],
    ids=["raw", "rbg", "python", "signed"],
)
def test_what_is_left_to_jax(key, number):
    ours = fold_in(key, number)
    jaxs = jax.random.fold_in(key, number)
    assert jnp.issubdtype(ours.dtype, jax.dtypes.prng_key) == jnp.issubdtype(
        jaxs.dtype, jax.dtypes.prng_key
    )
    np.testing.assert_array_equal(
        jax.random.key_data(ours),
        jax.random.key_data(jaxs),
    )
