"""Kernels: a looped call does what as many calls do, one after the other, and copies no arena."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.engine.kernels.coalescing import COUNTS
from ampjax.engine.kernels.kernel import jitted, kernel
from ampjax.sched.decisions.packs import MOST_COALESCED

pytestmark = pytest.mark.slow

CAPACITY = 211
FEATURES = 8


def step(weights, donated, read, brought):
    """What kernels do: rows are read from arenas, and those of an arena written."""
    arena, total = donated
    slots = brought.pack
    rows = jnp.tanh(arena[slots[0]] @ weights + read[slots[0]] + brought.host[0])
    return arena.at[slots[1]].set(rows), total + rows.sum()


KERNEL = kernel(loops=True)(step)


def arguments(seed):
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(FEATURES, FEATURES)).astype(np.float32)
    arena, read = rng.normal(size=(2, CAPACITY, FEATURES)).astype(np.float32)
    slots = rng.integers(
        0,
        CAPACITY,
        (MOST_COALESCED, 2, 4),
    ).astype(np.int32)
    added = rng.normal(size=(MOST_COALESCED, 4, FEATURES)).astype(np.float32)
    return weights, arena, read, slots, added


@given(
    st.integers(0, MOST_COALESCED),
    st.integers(0, 1000),
)
def test_as_one_by_one(n, seed):
    """Each reads what those before it have written; what lies behind the last of them is not looked at."""
    weights, arena, read, slots, added = arguments(seed)
    slots[:, 1] = 1 + np.arange(4)  # distinct
    added[n:] = np.nan
    one = jnp.array(arena), jnp.float32(0)
    for i in range(n):
        one = KERNEL.once(
            weights,
            one,
            read,
            ((added[i],), slots[i]),
        )
    many = KERNEL.looped(
        COUNTS[n],
        weights,
        (jnp.array(arena), jnp.float32(0)),
        read,
        ((added,), slots),
    )
    for a, b in zip(one, many, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_one_value_is_given_back_as_it_is():
    add = kernel(loops=True)(lambda params, donated, read, brought: donated + brought.pack)
    total = add.looped(
        COUNTS[3],
        (),
        jnp.float32(1),
        (),
        ((), np.arange(MOST_COALESCED, dtype=np.float32)),
    )
    assert float(total) == 4.0


def test_arenas_are_not_copied():
    weights, arena, read, slots, added = arguments(0)
    donated = jnp.array(arena), jnp.float32(0)
    lowered = KERNEL.looped.lower(
        COUNTS[2],
        weights,
        donated,
        read,
        ((added,), slots),
    )
    whole = re.findall(
        rf"= f32\[{CAPACITY},{FEATURES}\]\S* ([\w-]+)\(", lowered.compile().as_text()
    )
    assert whole and "copy" not in whole


@pytest.mark.parametrize("donates_params", [False, True])
def test_what_is_donated_is_gone(donates_params):
    add = kernel(donates_params=donates_params)(
        lambda params, donated, read, brought: (donated + read, params * 2)
    )
    donated, params, read = (jnp.ones(FEATURES) for _ in range(3))
    add.once(
        params,
        donated,
        read,
        ((), np.zeros(1, np.int32)),
    )
    assert donated.is_deleted()
    assert params.is_deleted() == donates_params
    assert not read.is_deleted()


def test_arguments_are_donated_by_name():
    add = jitted("total")(lambda other, total: (other.sum() + total,))
    other = jnp.ones(3)
    total = jnp.ones(FEATURES)
    add.once(other, total)
    assert total.is_deleted() and not other.is_deleted()
