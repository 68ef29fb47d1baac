"""Sums of a trainer's batches, added some at a time."""

import jax.numpy as jnp
import numpy as np
import pytest

from ampjax.train.batch_training.batch_losses import LOSS, TOGETHER, BatchLosses


def sums_of(n_batches):
    """Sums with a total that depends on the order of additions."""
    drawn = np.random.default_rng(0).normal(size=(n_batches, 2, 2)) * 1e4
    sums = []
    for loss, right in drawn:
        sums.append({LOSS: jnp.float32(loss), "right": jnp.float32(right)})
    return sums


@pytest.mark.parametrize("n_batches", [1, TOGETHER, TOGETHER + 1, 3 * TOGETHER + 5])
def test_sums_are_those_of_one_addition_after_the_other(n_batches):
    losses = BatchLosses()
    restored = BatchLosses()
    total = {LOSS: np.zeros(2, np.float32), "right": np.zeros(2, np.float32)}
    for number, sums in enumerate(sums_of(n_batches)):
        losses.add(True, sums)
        restored.add(True, sums)
        total = {name: total[name] + np.asarray(sums[name]) for name in total}
        if number == n_batches // 2:
            # as a run that is resumed from a checkpoint
            state = restored.state()
            restored = BatchLosses()
            restored.resume(state)
    expected = np.concatenate([total[LOSS], total["right"]]).astype(np.float64)
    for each in (losses, restored):
        (taken,) = each.take(True)
        assert taken.names == ["right"]
        np.testing.assert_array_equal(taken.line, expected)
        assert each.take(True) == []
