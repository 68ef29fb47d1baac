"""Sampled softmax against its definition, and against the full softmax where it must be equal."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.models.layers.sampled_softmax import (
    draw,
    expected_count,
    log_uniform,
    sampled_loss,
)

pytestmark = [pytest.mark.slow, pytest.mark.users]

draw = jax.jit(draw, static_argnums=(1, 2))


def test_log_uniform_is_the_law_of_single_draws() -> None:
    p = np.asarray(log_uniform(jnp.arange(6), 6))
    assert p.sum() == pytest.approx(1, abs=1e-6)
    assert p == pytest.approx(np.log((np.arange(6) + 2) / (np.arange(6) + 1)) / np.log(7), abs=1e-6)
    n = 4000
    keys = jax.random.split(jax.random.key(0), n)
    ids, n_draws = jax.jit(jax.vmap(lambda key: draw(key, 1, 6)))(keys)
    assert (n_draws == 1).all()
    assert (
        np.abs(np.bincount(ids[:, 0], minlength=6) / n - p) < 4 * np.sqrt(p * (1 - p) / n)
    ).all()


def test_all_classes_can_be_drawn_and_the_order_follows_from_the_key() -> None:
    (a, n), (b, _), (c, _) = (draw(jax.random.key(seed), 64, 64) for seed in (1, 1, 2))
    assert len(set(a.tolist())) == 64
    assert a.min() >= 0
    assert a.max() < 64
    assert np.array_equal(a, b)
    assert not np.array_equal(a, c)
    assert n >= 64


def test_rare_classes_of_a_large_vocabulary_can_be_drawn() -> None:
    # With 23 bits alone a few ids in a thousand near the end would never come; neighbours must be about equally likely.
    ids, _ = draw(jax.random.key(3), 4096, 793_470)
    assert len(np.unique(ids)) == 4096
    assert np.asarray(ids).max() < 793_470
    high = np.asarray(ids)[np.asarray(ids) > 500_000]
    assert len(high) > 60
    assert abs((high % 2).mean() - 0.5) < 4 * 0.5 / len(high) ** 0.5


def test_expected_counts_are_the_chance_to_be_among_the_draws() -> None:
    p = np.asarray(
        log_uniform(jnp.arange(10), 10),
        np.float64,
    )
    assert np.asarray(
        expected_count(
            jnp.arange(10),
            7,
            10,
        )
    ) == pytest.approx(1 - (1 - p) ** 7, rel=1e-5)


def test_it_is_the_full_softmax_if_all_classes_are_samples() -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    x, w, b = (jax.random.normal(k, s) for k, s in zip(keys, ((5, 4), (9, 4), (9,)), strict=True))
    targets = jnp.array([0, 8, 3, 3, 1])
    samples = jnp.arange(9)[::-1]
    ones = (jnp.ones(5), jnp.ones(9))

    def sampled(x, w, b):
        return sampled_loss(
            x,
            (w[targets], b[targets]),
            (w[samples], b[samples]),
            targets,
            samples,
            ones,
        ).sum()

    def full(x, w, b):
        logits = x @ w.T + b
        return (jnp.log(jnp.exp(logits).sum(-1)) - logits[jnp.arange(5), targets]).sum()

    ours, theirs = (jax.jit(jax.value_and_grad(f, (0, 1, 2)))(x, w, b) for f in (sampled, full))
    for a, e in zip(
        jax.tree.leaves(ours),
        jax.tree.leaves(theirs),
        strict=True,
    ):
        np.testing.assert_allclose(a, e, atol=2e-6)


def test_accidental_hits_count_once() -> None:
    x = jnp.ones((1, 2))
    row = jnp.ones((1, 2))
    args = (
        x,
        (row, jnp.zeros(1)),
        (row, jnp.zeros(1)),
        jnp.array([7]),
    )
    hit = sampled_loss(
        *args,
        jnp.array([7]),
        (jnp.ones(1), jnp.ones(1)),
    )
    other = sampled_loss(
        *args,
        jnp.array([6]),
        (jnp.ones(1), jnp.ones(1)),
    )
    assert float(hit[0]) == pytest.approx(0, abs=1e-6)
    assert float(other[0]) == pytest.approx(np.log(2), abs=1e-6)
