"""Optimizers that draw random numbers: each node draws its own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.optim.node_keys import with_own_keys


def noisy():
    return optax.chain(
        optax.add_noise(1.0, 0.5, jax.random.key(0)),
        optax.sgd(1.0),
    )


def trained(keys):
    """Parameters of several nodes after an update of noise alone."""
    params = {key: jnp.zeros(3) for key in keys}
    compiled = amp.compile(
        lambda p, e: sum(jnp.sum(p[key] * e["x"]) for key in keys),
        params,
        {"x": "float32[3]"},
    )
    trainer = amp.Trainer(compiled.graph, noisy(), min_update_interval=1)
    trainer.accumulate(compiled.data([{"x": np.zeros(3, np.float32)}]))
    return compiled.params(trainer.params)


@pytest.mark.nightly
def test_noise_differs_from_node_to_node():
    after = trained("abc")
    rows = np.stack([after[key] for key in "abc"])
    assert len(np.unique(rows)) == 9 and np.array_equal(
        rows, np.stack([trained("abc")[key] for key in "abc"])
    )


def test_a_single_node_draws_what_optax_draws():
    params = {"a": jnp.zeros(3)}
    tx = noisy()
    updates, _ = tx.update(
        params["a"],
        tx.init(params["a"]),
    )
    np.testing.assert_allclose(trained("a")["a"], updates, rtol=1e-6)


def test_only_single_keys_change():
    state = {
        "key": jax.random.key(1),
        "keys": jax.random.split(jax.random.key(1)),
        "count": jnp.int32(3),
        "none": None,
    }
    own = with_own_keys(state, "a")
    assert own["key"] != state["key"]
    assert own["key"] != with_own_keys(state, "b")["key"]
    assert (own["keys"] == state["keys"]).all()
    assert own["count"] == 3
    assert own["none"] is None
