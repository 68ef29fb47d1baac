"""States of transforms in donating steps: each leaf is an array of its own."""

import jax
import jax.numpy as jnp
import optax
import pytest

from ampjax import optim

TRANSFORMS = {
    "delayed": optim.delayed(optax.adam(0.1), 2),
    "delays drawn": optim.delayed(
        optax.adam(0.1),
        optim.RandomDelay.uniform(4),
    ),
    "compensated": optim.compensate_delay(1.0, 4, True),
    "spikes": optim.compensate_spikes(0.9),
    "damped": optim.damp_by_staleness(),
    "annealed": optim.anneal_by_staleness(5),
    "bounded": optim.bounded_staleness(optax.adam(0.1), 2),
    "predicted": optim.predict_weights(optax.adam(0.1)),
    "nadam": optim.scale_by_discounted_nadam(),
    "rotated": optim.scale_by_rotated_adam(),
    "row-wise": optim.rowwise_adam(0.1),
    "rounded": optim.stochastic_rounding(optax.adam(0.1)),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_step_may_donate_its_state(name):
    params = {
        "w": jnp.ones((4, 3)),
        "b": jnp.ones(3),
    }
    tx = optax.with_extra_args_support(TRANSFORMS[name])
    state = tx.init(params)
    places = []
    for leaf in jax.tree.leaves(state):
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            places.append(leaf.unsafe_buffer_pointer())
    assert len(set(places)) == len(places)
