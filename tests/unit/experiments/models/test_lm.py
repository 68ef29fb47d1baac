"""The language model: its size, its loss against a plain writing, its optimizer, and parts of a batch."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ampjax.errors import SettingsError
from ampjax.optim.average import averaged
from experiments.data import zipf
from experiments.data.text import Contiguous
from experiments.models import lm
from experiments.models.layers import functional

pytestmark = [pytest.mark.slow, pytest.mark.users]

CONFIG = lm.Config(
    40,
    None,
    6,
    8,
    5,
    samples=12,
    batch=4,
    steps=6,
    dropout=0.0,
)
BATCH = next(
    Contiguous(
        zipf.tokens(200, 40),
        4,
        6,
    ).epoch()
)
evaluate = jax.jit(lm.make_evaluate(CONFIG))


def test_the_papers_model_has_its_parameters() -> None:
    shapes = functional.shapes(lm.LanguageModel, lm.Config.full())
    assert functional.count(shapes["lstm"]) == 9_445_376
    assert (
        functional.count(shapes["embedding"]) + functional.count(shapes["softmax"]) == 813_306_750
    )


def plain_loss(params: Any, batch: Any) -> jax.Array:
    """The nats of the full softmax, written without the library: word by word, gate by gate."""
    lstm = params["lstm"]
    hidden = CONFIG.hidden
    nats = 0.0
    for b in range(1):
        c = jnp.zeros(hidden)
        m = jnp.zeros(5)
        for t in range(2):
            x = jnp.concatenate([params["embedding"][batch["inputs"][b, t]], m])
            i, j, f, o = (
                (x @ lstm["kernel"] + lstm["bias"])[k * hidden : (k + 1) * hidden] for k in range(4)
            )
            c = c / (1 + jnp.exp(-f - 1)) + jnp.tanh(j) / (1 + jnp.exp(-i))
            m = (jnp.tanh(c) / (1 + jnp.exp(-o))) @ lstm["projection"]
            logits = params["softmax"]["weight"] @ m + params["softmax"]["bias"]
            nats += jnp.log(jnp.exp(logits).sum()) - logits[batch["targets"][b, t]]
    return nats


def test_the_loss_and_its_gradients_are_the_formulas() -> None:
    params = jax.tree.map(
        lambda x: x + 0.1,
        lm.init(CONFIG, 1),
    )  # biases too are not 0
    batch = {}
    for name in ("inputs", "targets"):
        batch[name] = BATCH[name][:1, :2]
    nats, grads = jax.jit(jax.value_and_grad(lambda p: lm.make_evaluate(CONFIG)(p, batch)[0]))(
        params
    )
    expected, expected_grads = jax.jit(jax.value_and_grad(plain_loss))(params, batch)
    assert float(nats) == pytest.approx(float(expected), rel=1e-5)
    jax.tree.map(
        lambda a, e: np.testing.assert_allclose(
            a,
            e,
            atol=2e-5 * float(jnp.abs(e).max()),
        ),
        grads,
        expected_grads,
    )


def test_words_behind_a_sentences_end_do_not_count() -> None:
    """Neither with the full softmax nor with a sampled one; what they are does not matter."""
    params = lm.init(CONFIG, 1)
    rng = np.random.default_rng(0)
    lengths = np.array([6, 2, 0, 4], np.int32)
    others = {}
    for name in ("inputs", "targets"):
        others[name] = np.where(
            np.arange(6) < lengths[:, None],
            BATCH[name],
            rng.integers(40, size=(4, 6)),
        )
    for samples in (12, None):
        loss_fn = jax.jit(lm.make_loss(replace(CONFIG, samples=samples)))
        padded = []
        for rows in ({}, others):
            padded.append(
                float(
                    loss_fn(
                        params,
                        {**BATCH, **rows, "length": lengths},
                    )
                )
            )
        assert padded[0] == padded[1] < float(loss_fn(params, BATCH))
    assert padded[0] == pytest.approx(
        float(evaluate(params, {**BATCH, "length": lengths})[0]) / 4,
        rel=1e-6,
    )


@pytest.mark.nightly
def test_training_learns_to_copy_and_touches_few_rows() -> None:
    data = Contiguous(
        zipf.tokens(1200, 40, copy=0.9, lag=1, seed=2),
        4,
        6,
    )
    tx = lm.make_optimizer(CONFIG)
    loss_fn = lm.make_loss(CONFIG, carry=True)

    @jax.jit
    def step(params, opt_state, batch):
        (loss, state), grads = jax.value_and_grad(loss_fn, has_aux=True)(
            params,
            batch,
        )
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, state, loss, grads

    def train():
        params = lm.init(CONFIG, 3)
        opt_state = tx.init(params)
        state = {
            "c": jnp.zeros((4, 8)),
            "m": jnp.zeros((4, 5)),
        }
        losses = []
        for batch in data.epoch():
            drawn = {}
            for name, leaf in batch.items():
                if name != "dropout_seed":
                    drawn[name] = leaf
            params, opt_state, state, loss, grads = step(
                params, opt_state, {**drawn, "state": state}
            )
            losses.append(float(loss))
        return params, opt_state, losses, grads, batch

    params, opt_state, losses, grads, batch = train()
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:5])
    assert train()[2] == losses  # same seeds, same losses

    embedded, softmax = (
        (np.abs(g).sum(-1) > 0).sum() for g in (grads["embedding"], grads["softmax"]["weight"])
    )
    assert (
        embedded <= len(np.unique(batch["inputs"]))
        and softmax <= 12 + len(np.unique(batch["targets"])) < 40
    )
    average = averaged(params, opt_state)
    assert not np.allclose(
        average["lstm"]["kernel"],
        params["lstm"]["kernel"],
        atol=1e-4,
    )
    assert average["embedding"] is params["embedding"]


def test_the_state_goes_on_where_the_batch_before_ended() -> None:
    params = lm.init(CONFIG)
    parts = [slice(0, 3), slice(3, 6)]
    whole, _ = evaluate(params, BATCH)
    state = None
    nats = 0.0
    for part in parts:
        batch = {}
        for name in ("inputs", "targets"):
            batch[name] = BATCH[name][:, part]
        batch |= {} if state is None else {"state": state}
        n, state = evaluate(params, batch)
        nats += float(n)
    assert nats == pytest.approx(float(whole), rel=1e-6)


def test_parts_of_a_batch_share_samples() -> None:
    loss_fn = jax.jit(lm.make_loss(CONFIG))
    params = lm.init(CONFIG)
    halves = []
    for rows in (slice(0, 2), slice(2, 4)):
        halves.append({name: leaf[rows] for name, leaf in BATCH.items()})
    whole = float(loss_fn(params, BATCH))
    parts = [float(loss_fn(params, half)) for half in halves]
    assert np.mean(parts) == pytest.approx(whole, rel=1e-6)


def test_the_optimizer_treats_each_variable_as_the_paper_does() -> None:
    params = lm.init(CONFIG)
    grads = jax.tree.map(jnp.ones_like, params)
    tx = lm.make_optimizer(CONFIG)
    updates = jax.jit(lambda g, p: tx.update(g, tx.init(p), p)[0])(
        grads,
        params,
    )
    clipped = 10 / np.sqrt(sum(g.size for g in jax.tree.leaves(grads["lstm"])))

    def adagrad(g: float) -> float:
        return -0.2 * g / np.sqrt(1 + g**2)

    assert float(updates["embedding"][0, 0]) == pytest.approx(adagrad(4), rel=1e-5)
    assert float(updates["softmax"]["bias"][0]) == pytest.approx(adagrad(1), rel=1e-5)
    assert float(updates["lstm"]["kernel"][0, 0]) == pytest.approx(adagrad(clipped), rel=1e-5)


def test_tables_of_two_sizes_and_no_projection() -> None:
    config = lm.Config(1000, 30, 6, 8, None, samples=30)
    shapes = functional.shapes(lm.LanguageModel, config)
    assert shapes["embedding"].shape == (1000, 6)
    assert shapes["softmax"]["weight"].shape == (30, 8)
    assert "projection" not in shapes["lstm"]
    assert shapes["lstm"]["kernel"].shape == (14, 32)


@pytest.mark.nightly
def test_mistakes_are_named() -> None:
    with pytest.raises(SettingsError, match="`samples`: expected at most 40 classes, got 41"):
        lm.Config(40, samples=41)
    with pytest.raises(SettingsError, match="`hidden`: expected at least 1, got 0"):
        lm.Config(hidden=0)
