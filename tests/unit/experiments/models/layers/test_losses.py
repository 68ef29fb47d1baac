"""The shared loss: padding does not count."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.models import labelled_cross_entropy

pytestmark = [pytest.mark.slow, pytest.mark.users]


def test_padding_counts_neither_in_the_loss_nor_in_the_metric() -> None:
    logits = jnp.array(
        [
            [0.0, 1.0, 2.0],
            [3.0, 0.0, 0.0],
            [9.0, 9.0, -9.0],
        ]
    )
    loss, metrics = labelled_cross_entropy(
        logits,
        jnp.array([2, 1, -1]),
    )
    each = optax.softmax_cross_entropy_with_integer_labels(
        logits[:2],
        jnp.array([2, 1]),
    )
    np.testing.assert_allclose(loss, each.mean(), rtol=1e-6)
    assert [int(x) for x in metrics["accuracy"]] == [1, 2]


def test_a_message_without_labels_gives_zero_and_no_nan() -> None:
    value, gradient = jax.value_and_grad(lambda x: labelled_cross_entropy(x, jnp.array([-1]))[0])(
        jnp.ones((1, 4))
    )
    assert value == 0 and not gradient.any()


def test_a_single_label_needs_no_batch_axis() -> None:
    loss, metrics = labelled_cross_entropy(
        jnp.array([0.0, 5.0]),
        jnp.array(1),
    )
    assert loss.shape == () and int(metrics["accuracy"][0]) == 1
