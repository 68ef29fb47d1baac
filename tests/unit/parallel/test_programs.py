"""What becomes of the replicas' gradients, wherever their variables live."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.compilation import quick_compilation  # noqa: F401

import ampjax.parallel as px
from ampjax.parallel.resources import Machine, Resources

PARAMS = {"table": np.ones((20, 3), np.float32), "more": np.ones((20, 3), np.float32), "w": np.ones(3, np.float32)}
BATCH = {"ids": np.array([0, 1, 2, 2]), "y": np.zeros(4, np.float32)}


def loss(params, batch):
    rows = params["table"][batch["ids"]] + params["more"][batch["ids"]]
    return jnp.mean((rows @ params["w"] - batch["y"]) ** 2)


def machines():
    first, second = jax.local_devices()[:2]
    return Resources((Machine("a", (first,)), Machine("b", (second,))))


def make(function=loss, params=None, tx=None, **options):
    config = px.ParallaxConfig(**options)
    return px.get_runner(function, params or PARAMS, tx or optax.sgd(0.01), machines(), config)


@pytest.mark.parametrize("run_option", ["hybrid", "ps"])
@pytest.mark.parametrize("kept", [("table",), ("table", "more")], ids=str)
def test_sparse_variables_are_averaged_alike_wherever_they_live(kept, run_option):
    runner = make(average_dense="mean", average_sparse="sum", keep_dense=kept, run_option=run_option)
    runner.run(BATCH)
    grads = jax.grad(loss)(PARAMS, BATCH)
    for name, factor in {"table": 2, "more": 2, "w": 1}.items():  # a sum over two replicas is twice their mean
        np.testing.assert_allclose(runner.params[name], PARAMS[name] - 0.01 * factor * grads[name], rtol=1e-6)
