"""Our loss and gradients, and whether those of another program equal them."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
import pytest

import ampjax as amp
import ampjax.graphs as ag


def ours(
    graph: ag.Graph,
    data: Any,
    **settings: Any,
) -> tuple[dict[str, Any], float, dict[str, Any]]:
    """Parameters, the summed loss over all instances, and the summed gradients by node; by default with few sizes to compile."""
    trainer = amp.Trainer(
        graph, **{"min_update_interval": 1 << 40, "max_dispatch_size": 1, **settings}
    )
    loss = trainer.accumulate(data)["loss_sum"]
    return trainer.params, loss, {node: tree for node, (tree, _) in trainer.gradients.items()}


def alike(
    trainer: amp.Trainer,
    draw: Callable[[np.ndarray], np.ndarray],
) -> dict[str, Any]:
    """Draws parameters, the same for all replicas of a node, and gives them to the trainer; returns one of each, by the node's own name."""
    one = {}
    for name, tree in trainer.params.items():
        if name.split("/")[-1] in ("0", name):
            one[name.removesuffix("/0")] = tree
    params = {
        name: jax.tree.map(
            lambda x: np.asarray(draw(x), np.float32),
            tree,
        )
        for name, tree in one.items()
    }
    trainer.set_params({name: params[name.split("/")[0]] for name in trainer.params})
    return params


def joined(gradients: dict[str, tuple[Any, int]]) -> dict[str, tuple[Any, int]]:
    """Gradients and their rows, those of a node's replicas added up, by the node's own name."""
    whole: dict[str, tuple[Any, int]] = {}
    for name, own in gradients.items():
        node = name.split("/")[0]
        if node in whole:
            whole[node] = jax.tree.map(
                np.add,
                whole[node],
                own,
            )
        else:
            whole[node] = own
    return whole


def summed(
    loss: Callable[..., Any],
    params: dict[str, Any],
    batches: Iterable[Any],
) -> tuple[float, dict[str, Any]]:
    """A JAX loss over minibatches, and its gradients, both summed."""
    pairs = [jax.value_and_grad(loss)(params, batch) for batch in batches]
    values, grads = zip(*pairs, strict=True)
    return sum(map(float, values)), jax.tree.map(
        lambda *each: np.sum(each, axis=0),
        *grads,
    )


def assert_equal(
    got: tuple[float, Any],
    want: tuple[float, Any],
) -> None:
    """Loss and gradients agree to 1e-5 of each leaf's largest entry."""
    assert float(got[0]) == pytest.approx(float(want[0]), rel=1e-5)
    for node, tree in want[1].items():
        for a, b in zip(
            jax.tree.leaves(got[1][node]),
            jax.tree.leaves(tree),
            strict=True,
        ):
            assert np.abs(np.asarray(a) - b).max() <= 1e-5 * np.abs(b).max(), node
