"""ResNet: the paper's size, learning, its optimizer, and how statistics travel as parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ampjax.errors import SettingsError
from experiments.data import images as data
from experiments.models import resnet
from experiments.models.layers import classifiers, functional

pytestmark = pytest.mark.slow

CONFIG = resnet.Config(
    (1,),
    4,
    3,
    16,
    batch=256,
    epoch_updates=100,
)


@pytest.mark.users
def test_the_papers_model_has_its_parameters() -> None:
    shapes = classifiers.shapes(resnet.ResNet, resnet.Config.full())
    assert functional.count(shapes["weights"]) == 25_557_032
    assert functional.count(shapes["statistics"]) == 2 * 26_560


def test_strides_halve_and_channels_double() -> None:
    shapes = classifiers.shapes(
        resnet.ResNet,
        resnet.Config((1, 1), 8, 5, 32),
    )
    blocks = shapes["weights"]["blocks"]
    assert blocks[0]["expand"]["conv"]["kernel"].shape == (1, 1, 8, 32)
    assert blocks[1]["middle"]["conv"]["kernel"].shape == (3, 3, 16, 16)
    assert shapes["weights"]["head"]["kernel"].shape == (64, 5)


@pytest.mark.nightly
def test_training_learns_and_averages_the_statistics() -> None:
    tx = resnet.make_optimizer(CONFIG)
    loss_fn = resnet.make_loss(CONFIG)

    @jax.jit
    def step(params, opt_state, batch):
        loss, grads = jax.value_and_grad(loss_fn)(params, batch)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss, grads

    params = resnet.init(CONFIG, 1)
    before = params["statistics"]
    opt_state = tx.init(params)
    losses = []
    batches = data.Batches(
        data.synthetic(64, 16, 3, 0.1),
        8,
    )
    params, opt_state, loss, grads = step(
        params,
        opt_state,
        batch := next(batches.epoch()),
    )
    again = step(
        resnet.init(CONFIG, 1),
        tx.init(resnet.init(CONFIG, 1)),
        batch,
    )
    jax.tree.map(np.testing.assert_array_equal, params, again[0])
    # The gradient is the distance from the batch's statistics, so the step is a moving average.
    means = jax.tree.map(
        lambda s, g: s - g,
        before,
        grads["statistics"],
    )
    jax.tree.map(
        lambda new, old, batch: np.testing.assert_allclose(new, 0.9 * old + 0.1 * batch, atol=1e-6),
        params["statistics"],
        before,
        means,
    )
    stem = jax.lax.conv_general_dilated(
        batch["image"],
        resnet.init(CONFIG, 1)["weights"]["stem"]["conv"]["kernel"],
        (2, 2),
        ((3, 3), (3, 3)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    np.testing.assert_allclose(
        means["stem"]["norm"]["mean"],
        stem.mean((0, 1, 2)),
        atol=1e-5,
    )
    np.testing.assert_allclose(
        means["stem"]["norm"]["var"],
        stem.var((0, 1, 2)),
        rtol=1e-4,
    )

    for epoch in range(6):
        for batch in batches.epoch(epoch):
            params, opt_state, loss, _ = step(params, opt_state, batch)
            losses.append(float(loss))
    assert np.mean(losses[-8:]) < 0.8 * np.mean(losses[:4])

    logits = jax.jit(resnet.make_predict(CONFIG))(
        params,
        batch["image"],
    )
    assert logits.shape == (8, 3)
    assert np.isfinite(logits).all()


def test_statistics_stay_out_of_the_weights_optimizer() -> None:
    tx = classifiers.make_optimizer(optax.clip_by_global_norm(1.0), 0.75)
    params = {
        "weights": {"w": jnp.array([0.0])},
        "statistics": {"mean": jnp.array([4.0])},
    }
    grads = {
        "weights": {"w": jnp.array([2.0])},
        "statistics": {"mean": jnp.array([100.0])},
    }
    updates, _ = tx.update(grads, tx.init(params), params)
    assert (
        float(updates["weights"]["w"][0]) == 1.0
        and float(updates["statistics"]["mean"][0]) == -25.0
    )


def test_the_rate_warms_up_and_falls() -> None:
    rate = resnet.schedule(resnet.Config(batch=8192, epoch_updates=10))
    assert [float(rate(n)) for n in (0, 25, 50, 299, 300, 600, 800)] == pytest.approx(
        [0.1, 1.65, 3.2, 3.2, 0.32, 0.032, 0.0032], rel=1e-5
    )
    assert float(resnet.schedule(resnet.Config(batch=128))(0)) == pytest.approx(0.05)


def test_mistakes_are_named() -> None:
    with pytest.raises(
        SettingsError, match=r"`stages`: expected a positive number for each stage, got \(3, 0\)"
    ):
        resnet.Config((3, 0))
    with pytest.raises(SettingsError, match="`width`: expected at least 1, got 0"):
        resnet.Config(width=0)
