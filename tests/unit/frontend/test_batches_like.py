"""Batches of the shapes of an earlier one: the same values and gradients, and few programs where sizes drift."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples as tried

import ampjax as amp
from ampjax.errors import DataError

SPEC = {"x": "float64[t,2]", "chars": "float64[t,c]"}
PARAMS = {
    "w": np.array([[0.3, -0.2], [0.1, 0.5]]),
    "b": np.array([0.2, -0.1]),
}


def model(p, s):
    """A recurrence, sums of inner sequences, and pairs of elements."""
    sums = amp.map(
        lambda chars: amp.sum(amp.map(jnp.sin, chars)),
        s["chars"],
    )
    step = lambda h, pair: (
        jnp.tanh(h @ p["w"] + pair[0] + pair[1]),
        None,
    )
    last = amp.scan(
        step,
        p["b"],
        (s["x"], sums),
    )[0]
    pairs = amp.map(
        lambda x: amp.softmax(
            amp.map(
                lambda y: x @ p["w"] @ y,
                s["x"],
            )
        ),
        s["x"],
    )
    return jnp.sum(last) + amp.sum(
        amp.map(
            lambda row: amp.sum(amp.map(jnp.sin, row)),
            pairs,
        )
    )


def example(rng, n):
    sizes = rng.integers(0, 3, n)
    chars = rng.normal(size=int(sizes.sum()))
    return {
        "x": rng.normal(size=(n, 2)),
        "chars": amp.Ragged(chars, sizes),
    }


def drawn(rng, lengths):
    return [example(rng, n) for n in lengths]


def shapes(batch):
    return [array.shape for array in batch.arrays]


LENGTHS = st.lists(
    st.integers(0, 6),
    min_size=1,
    max_size=4,
)


@settings(max_examples=tried(32))
@given(LENGTHS, LENGTHS, st.integers(0, 1 << 16))
def test_values_and_gradients_are_those_without(before, lengths, seed):
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        batched = amp.vmap(model, SPEC, params=PARAMS)
        earlier = batched.pack(drawn(rng, before))
        examples = drawn(rng, lengths)
        weights = rng.normal(size=len(examples))

        def of(batch):
            def total(p):
                return jnp.sum(batched(p, batch)[: len(examples)] * weights)

            return jax.jit(jax.value_and_grad(total))(PARAMS)

        batch = batched.pack(examples, like=earlier)
        assert batch.n_examples == len(examples)
        assert batch.size >= max(earlier.size, len(examples))
        assert batch.weights.tolist() == [1.0] * len(examples) + [0.0] * (
            batch.size - len(examples)
        )
        found = jax.tree.leaves(of(batch))
        want = jax.tree.leaves(of(batched.pack(examples)))
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9)


def test_examples_that_fit_have_its_shapes():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        batched = amp.vmap(model, SPEC, params=PARAMS)
        earlier = batched.pack(drawn(rng, [5, 6, 4]))
        fewer = batched.pack(
            earlier_part := drawn(rng, [1, 2]),
            like=earlier,
        )
        assert shapes(fewer) == shapes(earlier)
        assert fewer.n_examples == len(earlier_part)
        on_device = jax.tree.map(jnp.asarray, earlier)
        assert shapes(batched.pack(earlier_part, like=on_device)) == shapes(earlier)
        (of_epoch,) = batched.batches(
            drawn(rng, [6, 6]),
            size=2,
            seed=None,
        )
        assert shapes(batched.pack(earlier_part, like=of_epoch)) == shapes(of_epoch)


def test_sizes_that_drift_have_few_shapes():
    """Sixteen times the lengths, in steps: about a shape for each quarter more."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        batched = amp.vmap(model, SPEC, params=PARAMS)
        batch = None
        seen = set()
        alone = set()
        for longest in range(5, 80):
            lengths = rng.integers(
                longest // 2,
                longest,
                rng.integers(6, 9),
            )
            examples = drawn(rng, lengths)
            batch = batched.pack(examples, like=batch)
            seen.add(tuple(shapes(batch)))
            alone.add(tuple(shapes(batched.pack(examples))))
    assert len(seen) <= 20 < 60 < len(alone)


def test_parts_are_like_parts():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        batched = amp.vmap(model, SPEC, params=PARAMS)
        earlier = batched.pack(
            drawn(rng, [5, 6, 4, 5]),
            parts=2,
        )
        batch = batched.pack(
            drawn(rng, [3, 2, 1]),
            like=earlier,
        )
        assert shapes(batch) == shapes(earlier)
        assert batch.weights.tolist() == [[1, 1], [1, 0]]


def test_mistakes_have_errors():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        batched = amp.vmap(model, SPEC, params=PARAMS)
        examples = drawn(rng, [2])
        for other, got in (
            (examples, "got one list"),
            (amp.vmap(model, SPEC, params=PARAMS).pack(examples), "got one that it did not pack"),
        ):
            with pytest.raises(
                DataError, match=f"like: expected a batch that `pack` has made.*{got}"
            ):
                batched.pack(examples, like=other)
        kept = pickle.loads(pickle.dumps(batched.pack(examples)))
        assert shapes(batched.pack(examples, like=kept)) == shapes(kept)


@pytest.mark.parametrize("by_size", [False, True])
def test_epochs_of_data_that_grow_have_few_shapes(by_size):
    """Eight times the lengths: an epoch has one shape, mostly that of the epoch before."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        batched = amp.vmap(model, SPEC, params=PARAMS)
        batch = None
        seen = set()
        for epoch, longest in enumerate(range(5, 40)):
            examples = drawn(rng, rng.integers(longest // 2, longest, 13))
            given = batched.batches(examples, 4, epoch, by_size=by_size, like=batch)
            of_epoch = set()
            n_examples = 0
            for batch in given:
                of_epoch.add(tuple(shapes(batch)))
                n_examples += batch.n_examples
            assert n_examples == len(examples)
            assert epoch == 0 or len(of_epoch) == 1
            seen |= of_epoch
    assert len(seen) <= 20


def test_epochs_are_like_a_batch_of_another_epoch():
    """Batches of `like` hold the same examples as others, in as many rows and parts as the earlier batch."""
    rng = np.random.default_rng(0)
    with jax.enable_x64(True), jax.disable_jit():
        batched = amp.vmap(model, SPEC, params=PARAMS)
        earlier = batched.pack(drawn(rng, [5, 6, 4]))
        examples = drawn(rng, [1, 4, 2, 7, 5])
        want = []
        for batch in batched.batches(examples, 3, 7):
            want += [batched(PARAMS, batch)[: batch.n_examples]]
        found = []
        for batch in batched.batches(examples, seed=7, like=earlier):
            found += [batched(PARAMS, batch)[: batch.n_examples]]
        np.testing.assert_allclose(
            np.concatenate(found),
            np.concatenate(want),
            rtol=1e-9,
        )
        in_parts = batched.pack(
            drawn(rng, [5, 6, 4, 5]),
            parts=2,
        )
        for batch in batched.batches(examples[:3], like=in_parts):
            assert shapes(batch) == shapes(in_parts)
            assert batch.n_examples == 3
        with pytest.raises(DataError, match="like: expected a batch that `pack` has made"):
            batched.batches(examples, like=examples)
