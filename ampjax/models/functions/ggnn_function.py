"""Gated graph networks (Li et al. 2015) as functions of one graph, for QM9 and bAbI task 15; `ampjax.models.ggnn` has them as graphs of nodes.

An instance is what `GraphInstances.plain` gives: `x`, the features of the nodes, `edges`, and a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from ampjax.models.ggnn import GatedReadout, GatedUnit, Pad, Score


def regression_spec(n_features: int, n_kinds: int) -> dict[str, Any]:
    """What an instance of `ggnn_regression` looks like.

    Args:
      n_features: Features of a node.
      n_kinds: Kinds of edges.
    """
    return {"x": f"float32[v,{n_features}]", "edges": amp.Edges("v", kinds=n_kinds), "target": "float32[]"}


def selection_spec(n_features: int, n_kinds: int) -> dict[str, Any]:
    """What an instance of `ggnn_selection` looks like.

    Args:
      n_features: Features of a node.
      n_kinds: Kinds of edges.
    """
    return {"x": f"float32[v,{n_features}]", "edges": amp.Edges("v", kinds=n_kinds), "answer": "float32[v,1]"}


def init_ggnn(key: jax.Array, cells: Mapping[str, Any], hidden: int, n_kinds: int) -> dict[str, Any]:
    """Initial parameters: a linear map for each kind of edge, the gated unit, and others.

    Args:
      key: A PRNG key.
      cells: The other cells by key, such as `{"readout": GatedReadout(hidden, n_features)}`.
      hidden: Features of a node's state.
      n_kinds: Kinds of edges.
    """
    edge_map = amp.nn.Linear(hidden, hidden)
    cells = {**{f"edge{k}": edge_map for k in range(n_kinds)}, "update": GatedUnit(hidden), **cells}
    return {name: cell.init(jax.random.fold_in(key, i)) for i, (name, cell) in enumerate(cells.items())}


def propagated(p: Any, s: Any, steps: Any) -> Any:
    """The nodes' states `[v, hidden]` after some rounds over the edges.

    Args:
      p: Parameters: `edge0` ... and `update`.
      s: The instance: `x` and `edges`.
      steps: Rounds: a number, or an integer of the instance.
    """
    hidden = p["edge0"]["w"].shape[0]
    edge_map, unit = amp.nn.Linear(hidden, hidden), GatedUnit(hidden)
    sends = [lambda h, k=k: edge_map(p[f"edge{k}"], h) for k in range(sum(name.startswith("edge") for name in p))]

    def step(_: Any, h: Any) -> Any:
        return amp.map(lambda a, h: unit(p["update"], a, h), amp.propagate(sends, s["edges"], h), h)

    return amp.fori_loop(steps, step, amp.map(Pad(hidden), s["x"]))


def ggnn_regression(p: Any, s: Any, steps: Any = 4, scale: float = 1.0) -> Any:
    """Half the squared error of a number for each graph: QM9.

    Args:
      p: Parameters: `edge0` ..., `update`, `readout`.
      s: The instance: `x` `[v, F]`, `edges`, `target` `()`.
      steps: Propagation steps.
      scale: What the metric `error`, the mean absolute error, is multiplied with.
    """
    readout = GatedReadout(p["edge0"]["w"].shape[0], s["x"].shape[1])
    rows = amp.map(lambda h, x: readout(p["readout"], h, x)[0], propagated(p, s, steps), s["x"])
    prediction = amp.sum(rows)
    amp.output("prediction", prediction)
    difference = prediction - s["target"]
    return 0.5 * difference**2, {"error": scale * jnp.abs(difference)}


def ggnn_selection(p: Any, s: Any, steps: Any = 2) -> Any:
    """The cross entropy, in nats, of a softmax over the nodes of a graph: bAbI task 15.

    Args:
      p: Parameters: `edge0` ..., `update`, `score`.
      s: The instance: `x` `[v, F]`, `edges`, `answer` `[v, 1]`: 1 at the node to be selected, else 0.
      steps: Propagation steps.
    """
    score = Score(p["edge0"]["w"].shape[0], s["x"].shape[1])
    scores = amp.map(lambda h, x: score(p["score"], h, x)[0], propagated(p, s, steps), s["x"])
    amp.output("scores", scores)
    chosen = amp.sum(amp.map(lambda z, a: z * a[0], scores, s["answer"]))
    best_other = amp.max(amp.map(lambda z, a: jnp.where(a[0] > 0, -jnp.inf, z), scores, s["answer"]))
    return amp.logsumexp(scores) - chosen, {"accuracy": chosen > best_other}
