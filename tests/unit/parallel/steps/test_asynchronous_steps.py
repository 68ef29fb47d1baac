"""Training without a barrier: what was dropped and what goes on."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import ParameterError

pytestmark = pytest.mark.slow

PARAMS = {
    "table": np.zeros((20, 2), np.float32),
    "w": np.zeros(2, np.float32),
}


def linear_loss(params, batch):
    """Gradients that don't depend on parameters: each is `y`, so that what was applied can be counted."""
    return jnp.sum((params["table"][batch["ids"]] + params["w"]) * batch["y"][:, None])


def a_batch(*y):
    return {
        "ids": np.arange(2),
        "y": np.array(y, np.float32),
    }


def make(**options):
    devices = jax.local_devices()
    machines = Resources(
        (
            Machine(
                "a",
                (devices[0],),
            ),
            Machine("b", (devices[1],)),
        )
    )
    config = px.ParallaxConfig(sync=False, alpha_threshold=2.0, **options)
    return px.get_runner(linear_loss, PARAMS, optax.sgd(1.0), machines, config)


@pytest.mark.parametrize("max_staleness", [0, 4])
def test_a_gradient_that_is_not_finite_is_dropped_and_nothing_else(max_staleness):
    runner = make(max_staleness=max_staleness)
    bad = (
        0 if max_staleness else 1
    )  # whose gradients are applied before the other replica begins with the next batch
    runner.run(
        a_batch(
            *np.where(
                np.arange(2) == bad,
                np.nan,
                1,
            )
        )
    )
    with pytest.raises(
        ParameterError, match=f"step 1, gradients.*of replica {bad} in step 1 were dropped"
    ):
        runner.run(a_batch(2, 4))
    assert runner.steps == 2
    np.testing.assert_array_equal(
        runner.params["w"],
        [-7, -7],
    )
    np.testing.assert_array_equal(
        runner.params["table"][:3, 0],
        [-2, -5, 0] if bad == 0 else [-3, -4, 0],
    )


def test_what_is_under_way_is_applied_although_one_gradient_is_dropped():
    runner = make()
    runner.run(a_batch(np.nan, 1))
    with pytest.raises(ParameterError, match="of replica 0 in step 1 were dropped"):
        runner.wait()
    np.testing.assert_array_equal(
        runner.params["w"],
        [-1, -1],
    )


def test_a_search_leaves_gradients_under_way_while_it_samples():
    sample = px.SampleTimes(iterations=4, discarded=1)
    runner = make(search_partitions=True, sample=sample)
    ages = []
    for _ in range(3):
        for age in runner.run(a_batch(1, 1)).staleness:
            ages.append(age)
    assert max(ages) > 0
