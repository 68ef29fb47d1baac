"""Sums of a trainer's batches, added batch by batch or several at a time."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ampjax.train.batch_training.batch_losses import LOSS, BatchLosses


def sums_of(n_batches):
    """Sums with a total that depends on the order of additions."""
    drawn = np.random.default_rng(0).normal(size=(n_batches, 2, 2)) * 1e4
    sums = []
    for loss, right in drawn:
        sums.append({LOSS: jnp.float32(loss), "right": jnp.float32(right)})
    return sums


@pytest.mark.parametrize("parts", [[1, 1, 1], [3], [2, 8, 1, 5]])
def test_sums_are_those_of_one_addition_after_the_other(parts):
    one_by_one = BatchLosses()
    together = BatchLosses()
    rest = sums_of(sum(parts))
    for n in parts:
        some = rest[:n]
        for sums in some:
            one_by_one.add(True, sums)
        # of as many as a call takes the first ones count
        filled = some + some[-1:] * (8 - n)
        stacked = jax.tree.map(lambda *pairs: jnp.stack(pairs), *filled)
        together.add_rounds(True, stacked, n)
        # as a run that is resumed from a checkpoint
        state = together.state()
        together = BatchLosses()
        together.resume(state)
        rest = rest[n:]
    (want,) = one_by_one.take(True)
    (taken,) = together.take(True)
    assert taken.names == want.names == ["right"]
    np.testing.assert_array_equal(taken.line, want.line)
    assert together.take(True) == []
