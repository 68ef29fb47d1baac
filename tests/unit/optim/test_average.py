"""The moving average of parameters, on its own and of a part."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from ampjax.errors import SettingsError
from ampjax.optim.average import averaged, parameter_average


def test_the_average_of_a_part_follows_it_and_updates_stay() -> None:
    only_a = optax.masked(
        parameter_average(0.75),
        {"a": True, "b": False},
    )
    tx = optax.chain(optax.sgd(1.0), only_a)
    params = {
        "a": jnp.array(8.0),
        "b": jnp.array(1.0),
    }
    state = None
    average = 8.0
    state = tx.init(params)
    for _ in range(3):
        updates, state = tx.update(
            {"a": jnp.array(2.0), "b": jnp.array(0.5)},
            state,
            params,
        )
        assert (
            float(updates["a"]),
            float(updates["b"]),
        ) == (-2.0, -0.5)
        params = optax.apply_updates(params, updates)
        average = 0.75 * average + 0.25 * float(params["a"])
    found = averaged(params, state)
    assert float(found["a"]) == average
    assert float(found["b"]) == float(params["b"]) == -0.5


def test_mistakes_are_named() -> None:
    with pytest.raises(SettingsError, match=r"`decay`: expected a number in \[0, 1\), got 1"):
        parameter_average(1.0)
    tx = parameter_average(0.5)
    with pytest.raises(SettingsError, match="expected parameters beside the gradients"):
        tx.update(
            {"a": jnp.array(1.0)},
            tx.init({"a": jnp.array(1.0)}),
        )
    with pytest.raises(KeyError, match="no `parameter_average`"):
        averaged(
            {"a": jnp.array(1.0)},
            optax.sgd(1.0).init({"a": jnp.array(1.0)}),
        )


def test_the_average_of_parameters_that_stay_is_these_to_the_bit() -> None:
    params = {
        "a": jnp.append(
            jax.random.normal(jax.random.key(0), 50),
            jnp.array([jnp.inf, -jnp.inf, -0.0]),
        )
    }
    tx = optax.chain(optax.set_to_zero(), parameter_average(0.9))
    state = tx.init(params)
    for _ in range(3):
        _, state = tx.update(
            {"a": jnp.ones(53)},
            state,
            params,
        )
    assert np.asarray(averaged(params, state)["a"]).tobytes() == np.asarray(params["a"]).tobytes()
