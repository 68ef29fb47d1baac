"""Parameters and batches with None, and with containers that hold nothing, train as in plain JAX: modules have such leaves."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.effort import left_to_nightly

import ampjax.parallel as px
from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.errors import ParameterError

pytestmark = pytest.mark.slow


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["kernel", "bias", "activation"],
    meta_fields=["name"],
)
@dataclasses.dataclass
class Layer:
    """As a module after its functions were parted off: None is where the activation was."""

    kernel: Any
    bias: Any
    activation: Any = None
    name: str = "layer"


def params_with(bias):
    rng = np.random.default_rng(0)
    return {
        "before": {},
        "layer": Layer(
            rng.normal(size=(3, 2)).astype(np.float32),
            bias,
        ),
        "none": None,
        "list": [[], None],
        "words": rng.normal(size=(50, 3)).astype(np.float32),
    }


def loss(params, batch):
    assert params["none"] is None
    assert params["list"] == [[], None]
    assert batch["weights"] is None
    layer = params["layer"]
    h = params["words"][batch["ids"]].mean(1) @ layer.kernel
    h = h if layer.bias is None else h + layer.bias
    return jnp.mean((jnp.tanh(h).sum(1) - batch["y"]) ** 2)


def a_batch(seed):
    rng = np.random.default_rng(seed)
    return {
        "ids": rng.integers(0, 50, (8, 2)),
        "y": rng.normal(size=8).astype(np.float32),
        "weights": None,
        "nothing": (),
    }


RUNS = {
    "devices": {},
    "dense": {"keep_dense": ("words",)},
    "servers": {"run_option": "ps"},
    "tables everywhere": {"run_option": "ar"},
    "processes": {"server_processes": True},
}
TX = optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(0.05))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "how",
    [*list(RUNS)[:2], *left_to_nightly(list(RUNS)[2:])],
)
@pytest.mark.parametrize(
    "bias",
    [None, np.zeros(2, np.float32)],
    ids=["no bias", "a bias"],
)
def test_none_and_empty_containers_train_as_in_plain_jax(tmp_path, how, bias):
    machines = Resources(
        tuple(Machine(f"m{i}", (device,)) for i, device in enumerate(jax.local_devices()[:2]))
    )
    config = px.ParallaxConfig(check_equivalence="error", alpha_threshold=1.0, **RUNS[how])
    params = params_with(bias)
    state = TX.init(params)
    step = jax.jit(jax.value_and_grad(loss))
    with px.get_runner(loss, params, TX, machines, config) as runner:
        for seed in range(3):
            value, grads = step(params, a_batch(seed))
            updates, state = TX.update(grads, state, params)
            params = optax.apply_updates(params, updates)
            assert runner.run(a_batch(seed)).loss == pytest.approx(float(value), rel=1e-5)
        assert jax.tree.structure(runner.params) == jax.tree.structure(params)
        assert jax.tree.structure(runner.opt_state) == jax.tree.structure(state)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            runner.params,
            params,
        )
        runner.save(tmp_path / "c")
        runner.reset(params_with(bias))
        runner.restore(tmp_path / "c")
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
            runner.params,
            params,
        )


@pytest.mark.nightly
def test_without_a_barrier():
    machines = Resources(
        (
            Machine(
                "a",
                tuple(jax.local_devices()[:2]),
            ),
        )
    )
    runner = px.get_runner(
        loss,
        params_with(None),
        TX,
        machines,
        px.ParallaxConfig(sync=False),
    )
    losses = []
    for _ in range(20):
        losses.append(runner.run(a_batch(0)).loss)
    assert losses[-1] < losses[0] / 2


def test_a_function_among_the_parameters_is_told_with_what_parts_it_off():
    with pytest.raises(
        ParameterError, match=r"parameter `layer/activation`: .*got object\. .*`equinox.partition`"
    ):
        px.get_runner(
            loss,
            params_with(None)
            | {
                "layer": Layer(
                    np.ones((3, 2)),
                    None,
                    jnp.tanh,
                )
            },
            TX,
        )
