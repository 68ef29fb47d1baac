"""The perceptron: its placement, its gradients, what it refuses."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.plan.affinity import assign
from ampjax.train.initial_params import initial_params
from experiments.data.mnist import Batches, Digits
from experiments.models import labelled_cross_entropy, mlp

pytestmark = [pytest.mark.slow, pytest.mark.users]


def test_four_workers_take_a_layer_each() -> None:
    placed = assign(mlp(), 4)
    assert [placed[f"linear{i}"] for i in (1, 2, 3, 4)] == [0, 1, 2, 3]


def test_its_start_is_he_s() -> None:
    params = initial_params(mlp(), {}, 0)
    assert np.std(params["linear2"]["w"]) == pytest.approx((2 / 784) ** 0.5, rel=0.01)
    assert not params["linear2"]["b"].any()


def test_gradients_are_those_of_plain_jax() -> None:
    rng = np.random.default_rng(0)
    images = rng.normal(size=(9, 784)).astype(np.float32)
    data = Batches(
        Digits(
            images,
            rng.integers(0, 10, 9, dtype=np.int32),
        ),
        4,
    )
    graph = mlp((784, 16, 10), batch=4)
    params = initial_params(graph, {}, 0)

    def total(params: Any) -> Any:
        result = jnp.zeros(())
        for i in range(len(data)):
            batch = data.gather(np.array([i]))
            x = jax.nn.relu(
                batch["image"].payload[0] @ params["linear1"]["w"] + params["linear1"]["b"]
            )
            logits = x @ params["linear2"]["w"] + params["linear2"]["b"]
            result += labelled_cross_entropy(logits, batch["label"].payload[0])[0]
        return result

    trainer = amp.Trainer(
        graph,
        optax.sgd(0.0),
        params=params,
        min_update_interval=1000,
        workers=2,
    )
    trainer.accumulate(data)
    wanted = jax.grad(total)(params)
    for node, (tree, rows) in trainer.gradients.items():
        assert rows == 3
        for one, other in zip(
            jax.tree.leaves(tree),
            jax.tree.leaves(wanted[node]),
            strict=True,
        ):
            assert np.abs(one - other).max() <= 1e-5 * np.abs(other).max()


@pytest.mark.parametrize(
    "sizes",
    [(784,), (784, 0, 10)],
)
def test_it_needs_a_layer_and_features(sizes: tuple[int, ...]) -> None:
    with pytest.raises(SettingsError, match="two sizes or more, all at least 1"):
        mlp(sizes)
