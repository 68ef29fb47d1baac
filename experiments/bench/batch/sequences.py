"""Loops over sequences: list reduction, and a long chain."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp
from experiments.bench.batch.work import Amount, Work, weights
from experiments.bench.peers import list_reduction_jax
from experiments.data import list_reduction as lists
from experiments.models import rnn

H = 32


def list_reduction(amount: Amount, batch: int) -> Work:
    """The RNN of list reduction, 2 to 10 tokens; by hand padded to 10.

    Args:
      amount: How much.
      batch: Lists in the batch.
    """
    data = lists.generate(amount.of(batch))
    arrays = {
        "tokens": data.tokens.T,
        "lengths": data.lengths.astype(np.int32),
        "labels": data.labels,
    }
    return Work(
        rnn.list_reduction,
        rnn.spec(),
        rnn.init(jax.random.key(0)),
        list(lists.plain(data)),
        int(data.lengths.sum()),
        lambda p, a: list_reduction_jax.loss(
            p,
            a["tokens"],
            a["lengths"],
            a["labels"],
        ),
        arrays,
    )


def chain(amount: Amount) -> Work:
    """A loop of 10,000 steps; by hand `jax.lax.scan`."""
    x = np.random.default_rng(0).normal(size=(amount.of(10_000), H)).astype(np.float32)
    return _of_chain(
        chain_model,
        {"x": f"float32[t,{H}]"},
        {"x": x},
        x,
    )


def tree_chain(amount: Amount) -> Work:
    """The same chain as a tree, each of whose nodes has one child."""
    x = np.random.default_rng(0).normal(size=(amount.of(10_000), H)).astype(np.float32)
    parent = np.arange(
        1,
        len(x) + 1,
        dtype=np.int32,
    )
    parent[-1] = -1
    tree = amp.Tree(
        parent,
        np.zeros_like(parent),
        {"x": x},
    )
    spec = {"tree": amp.Tree("int32[v]", "int32[v]", {"x": f"float32[v,{H}]"})}
    return _of_chain(
        tree_model,
        spec,
        {"tree": tree},
        x,
    )


def recursive_chain(amount: Amount) -> Work:
    """Makes the same chain as a recursion, in which each element asks for the element before."""
    x = np.random.default_rng(0).normal(size=(amount.of(10_000), H)).astype(np.float32)
    before = np.arange(
        -1,
        len(x) - 1,
        dtype=np.int32,
    )
    spec = {"x": f"float32[t,{H}]", "before": "int32[t]"}
    return _of_chain(
        recursive_model,
        spec,
        {"x": x, "before": before},
        x,
    )


def _of_chain(
    model: Any,
    spec: Any,
    example: Any,
    x: np.ndarray,
) -> Work:
    params = weights(0, w=(H, H))
    return Work(
        model,
        spec,
        params,
        [example],
        len(x),
        chain_by_hand,
        {"x": x},
    )


def chain_model(p: Any, example: Any) -> jax.Array:
    """The sum of squares of an RNN's last state.

    Args:
      p: `w` `[H, H]`.
      example: `x` `[t, H]`.
    """
    last, _ = amp.scan(
        lambda h, x: (_step(p, h, x), None),
        jnp.zeros(H),
        example["x"],
    )
    return jnp.sum(last**2)


def tree_model(p: Any, example: Any) -> jax.Array:
    """The same of a tree.

    Args:
      p: `w` `[H, H]`.
      example: `tree`, with each node's `x` `[H]`.
    """
    _, root = amp.fold_tree(
        lambda node: _step(
            p,
            jnp.zeros(H),
            node["x"],
        ),
        lambda node, below: _step(p, below, node["x"]),
        example["tree"],
        arity=1,
    )
    return jnp.sum(root**2)


def recursive_model(p: Any, example: Any) -> jax.Array:
    """The same of a recursion.

    Args:
      p: `w` `[H, H]`.
      example: `x` `[t, H]` and `before` `[t]`, the element before each.
    """
    states = amp.recurse(
        lambda recur, x, j: _step(p, recur(j), x),
        jnp.zeros(H),
        example["x"],
        example["before"],
    )
    return jnp.sum(amp.take(states, -1) ** 2)


def chain_by_hand(p: Any, arrays: Any) -> jax.Array:
    """The loss of the one chain.

    Args:
      p: As `chain_model` takes them.
      arrays: `x` `[t, H]`.
    """
    last, _ = jax.lax.scan(
        lambda h, x: (_step(p, h, x), None),
        jnp.zeros(H),
        arrays["x"],
    )
    return jnp.sum(last**2)


def _step(p: Any, h: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.tanh(x + h @ p["w"])
