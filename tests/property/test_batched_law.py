"""Any model as one function of a batch (`amp.vmap`): values and gradients are those of the model as it is, example by example.

Programs are those of the law of graphs (`support/random_models.py`), in float64. The batch is filled up with copies, and lies in another order
than the examples. Most programs run operation by operation, as few programs of one primitive serve many models; one in eight is compiled as a whole.
"""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import NIGHTLY
from support.random_expressions import models, shapes
from support.random_models import instance, parameters, spec

import ampjax as amp
from ampjax.frontend.batches.row_tables import Examples
from ampjax.frontend.instances.instance_columns import Columns
from ampjax.frontend.loops.loop_forms import loops_as

DTYPE = "float64"
TOLERANCE = 1e-9
SMALL = 15
LARGEST = 1 << 20 if NIGHTLY else 60
"""Operations of a model; an ordinary run leaves out the largest, and most models are small, as those take a third of the time."""

FORMS = "steps", "scan"
"""Forms of loops: those of this device, and of others."""

COMPILED = 8
"""One program in so many is compiled as a whole."""

pytestmark = pytest.mark.usefixtures("few_objects")


def cases(largest=1 << 20):
    sized = models().filter(lambda model: model.size <= largest)
    return st.tuples(
        sized,
        st.integers(1, 3).flatmap(shapes),
        st.integers(0, 1 << 16),
        st.sampled_from(FORMS),
    )


def close(one, other, what):
    one = np.asarray(one)
    other = np.asarray(other)
    assert one.shape == other.shape and one.dtype == other.dtype, f"{what}: {one.dtype}{one.shape}"
    largest = max(1.0, np.abs(other).max(initial=0))
    assert np.abs(one - other).max(initial=0) <= TOLERANCE * largest, (
        f"{what}: {one}, the model gives {other}"
    )


def check(case):
    """Checks a model.

    Args:
      case: The model, sizes of examples, a seed, and the form of loops.
    """
    model, lengths, seed, form = case
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True), jax.disable_jit(seed % COMPILED != COMPILED // 2):
        params = parameters(seed, DTYPE)
        examples = []
        for i, shape in enumerate(lengths):
            examples.append(instance(seed + i, shape, DTYPE))
        order = rng.permutation(len(examples))
        weights = rng.normal(size=len(examples))
        direction = jax.tree.map(
            lambda x: rng.normal(size=x.shape),
            params,
        )
        with loops_as(form):
            batched = amp.vmap(model, spec(DTYPE), params=params)
        size = len(examples) + seed % 3
        batch = batched.pack(
            [examples[i] for i in order],
            size=size,
        )
        check_cut(batched, examples, order, batch)

        found, backward = jax.vjp(lambda p: batched(p, batch), params)
        weight = np.zeros(found.shape)
        weight[: len(examples)] = weights[order]
        (grads,) = backward(jnp.asarray(weight))
    with jax.enable_x64(True), jax.disable_jit():

        def of_model(p):
            return jnp.stack([jnp.asarray(model(p, each)) for each in examples])

        want, change = jax.jvp(of_model, (params,), (direction,))
    close(found[: len(examples)], want[order], "values")
    derivative = sum(
        jax.tree.leaves(
            jax.tree.map(
                lambda g, d: np.sum(np.asarray(g) * d),
                grads,
                direction,
            )
        )
    )
    close(derivative, np.sum(np.asarray(change) * weights), "derivative in a direction")


def check_cut(batched, examples, order, batch):
    """Checks examples from a data set, alone and as several batches that are packed together: as if each were packed alone, to the bit."""
    whole = Columns(batched._leaves, examples)
    size = len(batch.weights)
    (cut,) = together(batched, whole, [order], size).together.parts
    check_same(cut, batch)
    groups = [order[:1], order, order[::-1], order[-1:]]
    every = together(batched, whole, groups, size)
    for numbers, one in zip(groups, every.together.parts, strict=True):
        alone = together(batched, whole, [numbers], size, every.sizes)
        assert alone.sizes == every.sizes
        check_same(one, alone.together.parts[0])


def together(batched, whole, groups, size, least=()):
    """Some batches of a data set, packed together."""
    columns = whole.some(np.concatenate(groups))
    examples = Examples(columns, [*map(len, groups)])
    return batched._last.pack_in(examples, size, dict(least))


def check_same(batch, other):
    """Checks that two batches are the same to the bit."""
    np.testing.assert_array_equal(batch.weights, other.weights)
    for one, another in zip(batch.arrays, other.arrays, strict=True):
        np.testing.assert_array_equal(one, another)
        assert one.dtype == another.dtype


@settings(max_examples=2000 if NIGHTLY else 940)
@given(cases(SMALL))
def test_a_batch_computes_what_a_small_model_computes(case):
    check(case)


@settings(max_examples=2000 if NIGHTLY else 60)
@given(cases(LARGEST))
def test_a_batch_computes_what_the_model_computes(case):
    check(case)


@pytest.mark.long
@settings(max_examples=int(os.environ.get("AMPJAX_CASES", 5_000)))
@given(cases())
def test_thousands_of_models(case):
    """More than an hour of one processor; `AMPJAX_CASES` sets another number."""
    check(case)
