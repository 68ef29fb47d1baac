"""Memory of devices: what nodes keep, and that trainers and simulations place them so that it fits."""

from typing import Any

import jax
import numpy as np
import optax
import pytest

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.plan.node_memory import kept_bytes
from ampjax.simulation.simulate import simulate
from experiments.models.mlp import mlp

FLOAT = 4
LAYER = FLOAT * (8 * 8 + 8)


def layers(n: int = 3, **options: Any) -> ag.Graph:
    with ag.Graph() as graph:
        x = ag.pump("x", (8,))
        for i in range(n):
            x = ag.ppt(
                f"linear{i}",
                amp.nn.Linear(8, 8),
                **options,
            )(x)
        ag.loss(
            "loss",
            lambda x: (x**2).mean(),
        )(x)
    return graph


def vectors(n: int) -> list[dict[str, Any]]:
    result = []
    for i in range(n):
        result.append({"x": np.full(8, i, np.float32)})
    return result


@pytest.mark.parametrize(
    ("tx", "copies"),
    [
        (optax.sgd(0.1), 2),
        (optax.adagrad(0.1), 3),
        (None, 4),
    ],
)
def test_a_node_keeps_parameters_gradients_and_the_optimizers_state(
    tx: optax.GradientTransformation | None, copies: int
) -> None:
    """With Adam four times the weights, and its count of steps."""
    sizes = kept_bytes(layers(), tx)
    count = 4 if tx is None else 0
    assert sizes == {f"linear{i}": copies * LAYER + count for i in range(3)}


def test_it_is_what_a_trainer_keeps() -> None:
    trainer = amp.Trainer(layers(1), optax.adam(1e-3))
    kept = trainer.session.executor.store
    trees = [
        kept.params["linear0"],
        kept.accumulators["linear0"],
        kept.opt_state["linear0"],
    ]
    assert kept_bytes(trainer.graph, optax.adam(1e-3))["linear0"] == sum(
        x.nbytes for x in jax.tree.leaves(trees)
    )


def test_a_nodes_own_optimizer_counts() -> None:
    assert kept_bytes(layers(1, tx=optax.sgd(0.1)))["linear0"] == 2 * LAYER


def test_nodes_go_where_they_have_room() -> None:
    """Three layers on two workers: by default the first and the third would share one."""
    room = {"workers": 4, "device_memory": 4 * LAYER + 4}
    trainer = amp.Trainer(
        layers(),
        optax.adam(1e-3),
        devices=jax.devices()[:4],
        **room,
    )
    assert sorted(trainer.plan.worker_of[f"linear{i}"] for i in range(3)) == [0, 1, 2]
    by_hand = {"linear0": 0, "linear1": 0, "linear2": 1, "loss": 1}
    with pytest.raises(SettingsError, match=r"on device 0, .*`linear0` \d+, `linear1` \d+"):
        simulate(layers(), vectors(1), affinity=by_hand, **room)
    assert simulate(layers(), vectors(4), **room).instances == 4


def test_workers_on_one_device_share_its_memory() -> None:
    options = {"workers": 3, "device_memory": 4 * LAYER + 4}
    with pytest.raises(
        SettingsError, match=r"setting `device_memory`: expected room for \d+ bytes on 1 device"
    ):
        amp.Trainer(
            layers(),
            optax.adam(1e-3),
            devices=jax.devices()[:1],
            **options,
        )


def test_replicas_are_alike_and_counted_each() -> None:
    sizes = kept_bytes(
        mlp((8, 8, 4), 2, replicas=3),
        optax.sgd(0.1),
    )
    assert sizes["linear1/0"] == sizes["linear1/2"] == 2 * LAYER
    room = {"workers": 3, "device_memory": 2 * LAYER, "affinity": "coloured"}
    with pytest.raises(SettingsError, match="room for"):
        data = [
            {
                "image": np.zeros((2, 8), np.float32),
                "label": np.zeros(2, np.int32),
            }
        ]
        simulate(
            mlp((8, 8, 4), 2, replicas=3),
            data,
            tx=optax.sgd(0.1),
            **room,
        )


def test_less_than_a_byte_is_refused() -> None:
    with pytest.raises(SettingsError, match="device_memory"):
        amp.Settings(device_memory=0)
