"""The RNN of list reduction in a few lines of JAX, and a trainer's gradients to compare with it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax as amp
import ampjax.graphs as ag
from experiments.data.list_reduction import ListReduction

HIDDEN = 8


def loss_of_one(params: Any, tokens: Any, label: int) -> Any:
    h = jnp.zeros(HIDDEN)
    for token in tokens:
        linear1 = params["linear1"]
        h = jax.nn.relu(
            jnp.concatenate([params["embed"][int(token)], h]) @ linear1["w"] + linear1["b"]
        )
    logits = h @ params["linear2"]["w"] + params["linear2"]["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def expected(params: Any, data: ListReduction) -> Any:
    """The sum of the gradients of all sequences' losses."""

    def total(params: Any) -> Any:
        rows = zip(data.tokens, data.lengths, data.labels, strict=True)
        return sum(loss_of_one(params, tokens[:n], int(label)) for tokens, n, label in rows)

    return jax.grad(total)(params)


def accumulated(
    graph: ag.Graph,
    data: Any,
    params: Any,
    **options: Any,
) -> dict[str, Any]:
    trainer = amp.Trainer(
        graph, optax.sgd(0.0), params=params, min_update_interval=10_000, **options
    )
    trainer.accumulate(data)
    result = {}
    for node, (tree, _) in trainer.gradients.items():
        result[node] = tree
    return result


def assert_close(found: Any, wanted: Any) -> None:
    for one, other in zip(
        jax.tree.leaves(found),
        jax.tree.leaves(wanted),
        strict=True,
    ):
        assert np.abs(one - other).max() <= 1e-5 * np.abs(other).max()
