"""What becomes of the replicas' gradients, wherever their variables live."""

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
    "table": np.ones((20, 3), np.float32),
    "more": np.ones((20, 3), np.float32),
    "w": np.ones(3, np.float32),
}
BATCH = {
    "ids": np.array([0, 1, 2, 2]),
    "y": np.zeros(4, np.float32),
}


def loss(params, batch):
    rows = params["table"][batch["ids"]] + params["more"][batch["ids"]]
    return jnp.mean((rows @ params["w"] - batch["y"]) ** 2)


def machines():
    first, second = jax.local_devices()[:2]
    return Resources(
        (
            Machine("a", (first,)),
            Machine("b", (second,)),
        )
    )


def make(function=loss, params=None, tx=None, **options):
    config = px.ParallaxConfig(**options)
    return px.get_runner(
        function,
        params or PARAMS,
        tx or optax.sgd(0.01),
        machines(),
        config,
    )


@pytest.mark.first_case
@pytest.mark.parametrize("run_option", ["hybrid", "ps"])
@pytest.mark.parametrize(
    "kept",
    [("table",), ("table", "more")],
    ids=str,
)
def test_sparse_variables_are_averaged_alike_wherever_they_live(kept, run_option):
    runner = make(
        average_dense="mean", average_sparse="sum", keep_dense=kept, run_option=run_option
    )
    runner.run(BATCH)
    grads = jax.grad(loss)(PARAMS, BATCH)
    for name, factor in {
        "table": 2,
        "more": 2,
        "w": 1,
    }.items():  # a sum over two replicas is twice their mean
        np.testing.assert_allclose(
            runner.params[name],
            PARAMS[name] - 0.01 * factor * grads[name],
            rtol=1e-6,
        )


def root_loss(params, batch):
    """The gradient of `a` is infinite at 0; the loss is finite, and so is the gradient of `b`."""
    return jnp.sqrt(params["a"]).sum() + (params["b"] * batch).sum()


@pytest.mark.parametrize("run_option", ["hybrid", "ps"])
def test_a_gradient_that_is_not_finite_is_named_where_the_loss_is(run_option):
    params = {
        "b": np.ones(2, np.float32),
        "a": np.zeros(2, np.float32),
    }
    with pytest.raises(
        ParameterError, match=r"a loss of .*4.* and NaN or infinity in `a`\. Nothing"
    ):
        make(root_loss, params, run_option=run_option, check_equivalence="off").run(
            np.ones((4, 2), np.float32)
        )


def test_without_the_check_the_optimizer_gets_gradients_as_they_are():
    params = {
        "a": np.zeros(2, np.float32),
        "b": np.ones(2, np.float32),
    }
    finite = optax.stateless(
        lambda grads, _: jax.tree.map(
            lambda g: jnp.where(jnp.isfinite(g), g, 0),
            grads,
        )
    )
    runner = make(
        root_loss,
        params,
        optax.chain(finite, optax.sgd(0.5)),
        check_finite=False,
        check_equivalence="off",
    )
    runner.run(np.ones((2, 2), np.float32))
    np.testing.assert_array_equal(runner.params["a"], [0, 0])
    np.testing.assert_array_equal(runner.params["b"], [0.5, 0.5])


def test_half_precision_is_summed_in_single_precision():
    """In bfloat16, 256 + 1 is 256 again; the sum of all is rounded once."""

    def linear(params, batch):
        return jnp.sum((params["table"][batch["ids"]] + params["w"]) * batch["y"][:, None]).astype(
            jnp.float32
        )

    params = {
        "table": np.zeros((20, 2), jnp.bfloat16),
        "w": np.zeros(2, jnp.bfloat16),
    }
    config = px.ParallaxConfig(run_option="ps", average_dense="sum", average_sparse="sum")
    one_machine = Resources(
        (
            Machine(
                "a",
                tuple(jax.local_devices()[:4]),
            ),
        )
    )
    runner = px.get_runner(
        linear,
        params,
        optax.sgd(1.0),
        one_machine,
        config,
    )
    runner.run(
        {
            "ids": np.zeros(4, np.int32),
            "y": np.array(
                [256, 1, 1, 1],
                jnp.bfloat16,
            ),
        }
    )
    assert runner.params["w"].tolist() == runner.params["table"][0].tolist() == [-260, -260]


def test_a_transform_that_asks_for_the_loss_gets_it():
    tx = optax.chain(
        optax.sgd(0.01),
        optax.contrib.reduce_on_plateau(factor=0.5, patience=1, rtol=0.9),
    )
    runner = make(tx=tx, keep_dense=("table", "more"))
    params = PARAMS
    state = tx.init(PARAMS)
    for _ in range(3):
        runner.run(BATCH)
        value, grads = jax.value_and_grad(loss)(params, BATCH)
        updates, state = tx.update(grads, state, params, value=value)
        params = optax.apply_updates(params, updates)
    assert state[1].scale < 1
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5),
        runner.params,
        params,
    )
