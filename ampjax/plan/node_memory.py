"""The memory of a node on its device: parameters, accumulated gradients, optimizer state."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ampjax.ir.graph import Graph
from ampjax.jaxprs.wide_sums import sum_dtype
from ampjax.optim.node_update import trainable


def kept_bytes(
    graph: Graph,
    tx: optax.GradientTransformation | None = None,
    transforms: Mapping[str, Any] | None = None,
) -> dict[str, int]:
    """Bytes that each parameterised node keeps on its device during training: with Adam four times its weights, none for a table.

    Activations come and go in arenas (`memory_limit`), and older versions of stashed weights only while somebody needs them: neither is
    counted.

    Args:
      graph: A closed graph.
      tx: The optax transform of nodes that have none of their own; by default `optax.adam(1e-3)`.
      transforms: Those of nodes, with all that settings add to them (gradients that wait, velocities), in place of the other two.

    Returns:
      Node name to bytes.
    """
    default = tx if tx is not None else optax.adam(1e-3)
    bytes_of: dict[tuple[int, int], int] = {}  # replicas are alike
    sizes = {}
    for name, node in graph.parameterised.items():
        if node.table is not None:
            sizes[name] = 0
            continue
        init = node.op.body.init
        transform = (transforms or {}).get(name) or node.options.tx or default
        key = id(init), id(transform)
        if key not in bytes_of:
            bytes_of[key] = bytes_with(init, transform)
        sizes[name] = bytes_of[key]
    return sizes


def bytes_with(
    init: Callable[[jax.Array], Any],
    tx: optax.GradientTransformation,
) -> int:
    """Bytes of parameters, their accumulated gradients and their optimizer state.

    Args:
      init: From a PRNG key to parameters; it is not run.
      tx: The optax transform.

    Returns:
      Bytes.
    """

    def start(key: jax.Array) -> Any:
        params = init(key)
        sums = jax.tree.map(
            lambda x: jnp.zeros(x.shape, sum_dtype(x.dtype)),
            trainable(params),
        )
        return params, sums, tx.init(trainable(params))

    return bytes_of(jax.eval_shape(start, jax.random.key(0)))


def bytes_of(tree: Any) -> int:
    """Bytes of the arrays of a pytree.

    Args:
      tree: Arrays, or their shapes and dtypes.
    """
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
