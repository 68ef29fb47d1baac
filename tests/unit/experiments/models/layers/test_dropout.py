"""Dropout by rows: masks that belong to seeds, and what is dropped."""

import jax
import numpy as np

from experiments.models.layers.dropout import from_batch

drop = jax.jit(lambda seeds, x, step: from_batch({"dropout_seed": seeds}, 0.25).at(step)(x, 3))


def test_masks_follow_rows_steps_and_seeds() -> None:
    x = np.ones((2, 600), np.float32)
    a = np.asarray(
        drop(
            np.array([5, 9]),
            x,
            0,
        )
    )
    b = np.asarray(
        drop(
            np.array([9, 7]),
            x,
            0,
        )
    )
    assert np.array_equal(
        a[1],
        b[0],
    ) and not np.array_equal(a[0], a[1])
    assert not np.array_equal(
        a,
        drop(np.array([5, 9]), x, 1),
    )
    assert (
        set(np.unique(a)) == {0, np.float32(1 / 0.75)} and abs(a.mean() - 1) < 0.06
    )  # four deviations


def test_nothing_is_dropped_without_seeds_or_rate() -> None:
    x = np.ones((2, 3))
    assert from_batch({}, 0.5)(x, 0) is x
    assert from_batch({"dropout_seed": np.arange(2)}, 0)(x, 0) is x
    assert from_batch({}, 0.5).at(3).keys is None
