"""Rows are read and written in place: nothing that is done to a few rows costs as much as the whole array."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.engine.kernels.scatter import add_rows, read_rows, set_rows

pytestmark = pytest.mark.slow

LENGTH = 211
FEATURES = 8


def adjoint(write, grads, accumulator, weights, slots):
    """What a backward kernel does: cotangents are read, used for weights and inputs, and those of the inputs written."""
    rows = read_rows(grads, slots)
    return write(
        grads,
        slots + 1,
        jnp.tanh(rows) @ weights,
    ), accumulator + jnp.tanh(rows).T @ rows


@pytest.mark.parametrize("k", [1, 2, 3, 8])
@pytest.mark.parametrize("write", [set_rows, add_rows])
def test_the_array_is_neither_copied_nor_gone_through(write, k):
    kernel = jax.jit(
        functools.partial(adjoint, write),
        donate_argnums=(0, 1),
    )
    square = jnp.ones((FEATURES, FEATURES))
    compiled = (
        kernel.lower(
            jnp.ones((LENGTH, FEATURES)),
            square,
            square,
            jnp.arange(k),
        )
        .compile()
        .as_text()
    )
    whole = re.findall(rf"= f32\[{LENGTH},{FEATURES}\]\S* ([\w-]+)\(", compiled)
    assert set(whole) <= {
        "parameter",
        "fusion",
        "scatter",
        "dynamic-update-slice",
        "while",
        "get-tuple-element",
        "call",
    }


@given(st.data())
def test_they_equal_numpy(data):
    slots = np.array(
        data.draw(
            st.lists(
                st.integers(0, 6),
                min_size=1,
                max_size=5,
                unique=True,
            )
        )
    )
    array = np.arange(14, dtype=np.float32).reshape(
        7,
        2,
    )
    rows = np.float32(data.draw(st.integers(-3, 3))) + np.arange(
        2 * len(slots), dtype=np.float32
    ).reshape(-1, 2)
    expected = array.copy()
    expected[slots] = rows
    np.testing.assert_array_equal(
        set_rows(jnp.array(array), jnp.array(slots), rows),
        expected,
    )
    expected[slots] = array[slots] + rows
    np.testing.assert_array_equal(
        add_rows(
            jnp.array(array),
            jnp.array(slots),
            jnp.array(rows),
        ),
        expected,
    )
    np.testing.assert_array_equal(
        read_rows(jnp.array(array), jnp.array(slots)),
        array[slots],
    )


@pytest.mark.parametrize("k", [1, 2])
def test_a_number_and_rows_of_another_dtype(k):
    slots = jnp.arange(k)
    assert set_rows(
        jnp.ones((4, 2)),
        slots,
        0,
    ).sum() == 2 * (4 - k)
    assert (
        set_rows(
            jnp.ones(4, bool),
            slots,
            jnp.zeros(k, bool),
        ).sum()
        == 4 - k
    )
    assert (
        add_rows(
            jnp.ones((4, 2), jnp.bfloat16),
            slots,
            jnp.ones((k, 2), jnp.bfloat16),
        ).dtype
        == jnp.bfloat16
    )
