"""Optimizers with states of one form are told apart by their operations on gradients."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ampjax.errors import DataError
from ampjax.optim.optimizer_identity import operations_of, require_same_operations

PARAMS = {
    "w": jnp.ones((2, 3)),
    "none": None,
    "b": jnp.float32(1),
}


def matrices(params):
    return {"w": True, "none": None, "b": False}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (optax.adam(0.1), optax.nadam(0.1)),
        (optax.adam(0.1), optax.radam(0.1)),
        (optax.adam(0.1), optax.yogi(0.1)),
        (
            optax.sgd(0.1, momentum=0.9),
            optax.sgd(
                0.1,
                momentum=0.9,
                nesterov=True,
            ),
        ),
        (optax.clip(1.0), optax.clip_by_global_norm(1.0)),
        (optax.adamw(0.1), optax.adamw(0.1, mask=matrices)),
        (optax.sgd(0.1), optax.sign_sgd(0.1)),
    ],
    ids=["nadam", "radam", "yogi", "nesterov", "clip", "mask", "sign"],
)
def test_others(one, other):
    assert operations_of(one, PARAMS) != operations_of(other, PARAMS)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            optax.adam(0.1),
            optax.adam(
                jnp.float32(0.2),
                b1=0.8,
            ),
        ),
        (
            optax.adamw(0.1, weight_decay=0.01),
            optax.adamw(
                np.float64(0.2),
                weight_decay=0.1,
            ),
        ),
        (
            optax.adam(optax.cosine_decay_schedule(0.1, 10)),
            optax.adam(optax.linear_schedule(0.1, 0.2, 30)),
        ),
        (
            optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
            optax.inject_hyperparams(optax.sgd)(learning_rate=0.3),
        ),
    ],
    ids=["rate", "decay", "schedule", "hyperparameters"],
)
def test_the_same_with_other_settings(one, other):
    assert operations_of(one, PARAMS) == operations_of(other, PARAMS)


def test_transforms_that_read_the_loss_have_operations():
    tx = optax.chain(
        optax.adam(0.1),
        optax.contrib.reduce_on_plateau(),
    )
    assert operations_of(tx, PARAMS) != operations_of(optax.adam(0.1), PARAMS)


def test_what_other_versions_have_saved_is_not_compared():
    here = {"": operations_of(optax.adam(0.1), PARAMS)}
    require_same_operations("checkpoint", here, None)
    require_same_operations("checkpoint", here, {"": "JAX 0.1, optax 0.1: 0123"})
    require_same_operations("checkpoint", here, {"another": "node"})
    versions = here[""].partition(":")[0]
    with pytest.raises(DataError, match=r"checkpoint: expected .* operations"):
        require_same_operations("checkpoint", here, {"": f"{versions}: 0123"})
