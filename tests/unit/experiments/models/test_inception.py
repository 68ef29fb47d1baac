"""Inception-v3: the paper's sizes with and without its auxiliary head, learning, and its optimizer."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ampjax.errors import SettingsError
from experiments.data import images as data
from experiments.models import inception
from experiments.models.layers import classifiers, functional
from experiments.models.layers.inception_blocks import BLOCKS

pytestmark = pytest.mark.slow


@pytest.mark.users
def test_the_papers_model_has_its_parameters() -> None:
    weights = classifiers.shapes(
        inception.Inception,
        inception.Config.full(),
    )["weights"]
    assert functional.count(weights) == 27_161_264
    assert weights["head"]["kernel"].shape == (2048, 1000)
    weights.pop("auxiliary")
    assert functional.count(weights) == 23_834_568


@pytest.mark.users
def test_the_grids_are_those_of_the_paper() -> None:
    config = inception.Config.full(False)
    assert config.auxiliary_grid == 17 and inception.Config.small().auxiliary_grid == 3
    short = inception.Config(
        ("35/32", "to 17", "to 8"),
        32,
        7,
        299,
        auxiliary=False,
    )
    image = jax.ShapeDtypeStruct((2, 299, 299, 3), jnp.float32)
    logits = jax.eval_shape(
        inception.make_predict(short), classifiers.shapes(inception.Inception, short), image
    )
    assert logits.shape == (2, 7)


@pytest.mark.nightly
def test_training_learns_with_the_auxiliary_head() -> None:
    config = inception.Config(
        ("to 8",),
        32,
        3,
        75,
        dropout=0.0,
        smoothing=0.0,
        batch=4,
    )
    tx = inception.make_optimizer(config)
    loss_fn = inception.make_loss(config)

    @jax.jit
    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss, grads

    params = inception.init(config, 1)
    opt_state = tx.init(params)
    losses = []
    for epoch in range(10):
        for batch in data.Batches(
            data.synthetic(8, 75, 3, 0.1),
            4,
        ).epoch(epoch):
            params, opt_state, loss, grads = step(params, opt_state, batch)
            losses.append(float(loss))
    assert np.mean(losses[-4:]) < 0.8 * np.mean(losses[:2])
    for path, leaf in jax.tree.leaves_with_path(grads["weights"]["auxiliary"]):
        assert jnp.abs(leaf).max() > 0, path


def test_mistakes_are_named() -> None:
    with pytest.raises(SettingsError, match=r"`blocks`: expected names from .*, got \('36',\)"):
        inception.Config(("36",), auxiliary=False)
    with pytest.raises(SettingsError, match="with `to 8` if there is an auxiliary head"):
        inception.Config(("8",))
    with pytest.raises(SettingsError, match="`size`: expected at least 75 pixels, got 64"):
        inception.Config(size=64)
    assert set(inception.Config.full().blocks) <= set(BLOCKS)
