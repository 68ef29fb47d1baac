"""Gated graph networks (Li et al. 2015) for QM9 and bAbI task 15 (AMPNet section 6), as functions of one graph.

Each of T propagation steps sends every node's state over its outgoing edges through the linear map of the edge's kind (bias included, once
per edge), adds up what arrives at a node, and updates its state with a gated unit. A node's initial state is its features, filled up with
zeros. Row vectors throughout.

An instance is what `experiments.data.graphs.GraphInstances.plain` gives: `x`, the features of the nodes, `edges`, and a target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.nn import Linear
from experiments.models.layers.linear import linear


def regression_spec(n_features: int, n_kinds: int) -> dict[str, Any]:
    """What an instance of `ggnn_regression` looks like.

    Args:
      n_features: Features of a node.
      n_kinds: Kinds of edges.
    """
    return {
        "x": f"float32[v,{n_features}]",
        "edges": amp.Edges("v", kinds=n_kinds),
        "target": "float32[]",
    }


def selection_spec(n_features: int, n_kinds: int) -> dict[str, Any]:
    """What an instance of `ggnn_selection` looks like.

    Args:
      n_features: Features of a node.
      n_kinds: Kinds of edges.
    """
    return {
        "x": f"float32[v,{n_features}]",
        "edges": amp.Edges("v", kinds=n_kinds),
        "answer": "float32[v,1]",
    }


def init_regression(
    key: jax.Array,
    n_features: int,
    hidden: int = 100,
    n_kinds: int = 4,
) -> dict[str, Any]:
    """Makes the parameters of `ggnn_regression`.

    Args:
      key: A PRNG key.
      n_features: Features of a node, F; at most `hidden`.
      hidden: Features of a node's state, H.
      n_kinds: Kinds of directed edges; each has a linear map.

    Returns:
      By name: `edge0` ..., `update` and `readout`.

    Raises:
      SettingsError: If a size is below 1, or there are more features than `hidden`.
    """
    return _init(
        key,
        n_features,
        hidden,
        n_kinds,
        {"readout": GatedReadout(hidden, n_features)},
    )


def init_selection(
    key: jax.Array,
    n_features: int,
    hidden: int = 100,
    n_kinds: int = 4,
) -> dict[str, Any]:
    """Makes the parameters of `ggnn_selection`.

    Args:
      key: A PRNG key.
      n_features: Features of a node, F; at most `hidden`.
      hidden: Features of a node's state, H.
      n_kinds: Kinds of directed edges; each has a linear map.

    Returns:
      By name: `edge0` ..., `update` and `score`.

    Raises:
      SettingsError: As `init_regression`.
    """
    return _init(
        key,
        n_features,
        hidden,
        n_kinds,
        {"score": Score(hidden, n_features)},
    )


def _init(
    key: jax.Array,
    n_features: int,
    hidden: int,
    n_kinds: int,
    last: Mapping[str, Any],
) -> dict[str, Any]:
    for name, size in {"n_features": n_features, "hidden": hidden, "n_kinds": n_kinds}.items():
        if size < 1:
            raise SettingsError(
                f"ggnn, `{name}`", "at least 1", f"{size}", "Give a positive number."
            )
    if n_features > hidden:
        raise SettingsError(
            "ggnn, `hidden`", f"at least the {n_features} features", f"{hidden}", "Raise `hidden`."
        )
    cells = {f"edge{k}": Linear(hidden, hidden) for k in range(n_kinds)} | {
        "update": GatedUnit(hidden),
        **last,
    }
    result = {}
    for i, (name, cell) in enumerate(cells.items()):
        result[name] = cell.init(jax.random.fold_in(key, i))
    return result


def propagated(
    p: Any,
    s: Any,
    steps: Any,
    replicas: int = 1,
) -> Any:
    """Propagates the nodes' features along edges.

    Args:
      p: Parameters: `edge0` ... and `update`.
      s: The instance: `x` and `edges`.
      steps: Steps: a number, or an integer of the instance.
      replicas: The number of copies of each edge map and of the gated unit, each for some instances.

    Returns:
      The nodes' states `[v, H]`.
    """
    hidden = p["edge0"]["w"].shape[0]

    def node(name: str, cell: Any) -> Any:
        return amp.node(name, replicas=replicas)(lambda *rows: cell(p[name], *rows))

    n_kinds = sum(
        name.startswith("edge") for name in p
    )  # JAX sorts names, and so puts `edge10` before `edge2`
    sends = [node(f"edge{k}", Linear(hidden, hidden)) for k in range(n_kinds)]
    update = node("update", GatedUnit(hidden))

    def step(_: Any, h: Any) -> Any:
        return amp.map(
            update,
            amp.propagate(sends, s["edges"], h),
            h,
        )

    return amp.fori_loop(
        steps,
        step,
        amp.map(Pad(hidden), s["x"]),
    )


def ggnn_regression(
    p: Any,
    s: Any,
    steps: Any = 4,
    scale: float = 1.0,
    replicas: int = 1,
) -> Any:
    """Predicts a number for each graph: `sum_v sigmoid(i(h_v, x_v)) * j(h_v, x_v)`: QM9.

    This is equation 7 of Li et al. without tanh, since it is a regression.

    Args:
      p: Parameters, as `init_regression` makes them.
      s: The instance: `x` `[v, F]`, `edges`, `target` `()`.
      steps: Propagation steps, T.
      scale: The factor of the metric `error`, the mean absolute error, from the targets' unit to that of the report.
      replicas: The number of copies of each edge map and of the gated unit, each for some instances.

    Returns:
      Half the squared error, and the metric `error`; the output is `prediction`.
    """
    readout = GatedReadout(
        p["edge0"]["w"].shape[0],
        s["x"].shape[1],
    )
    states = propagated(p, s, steps, replicas)
    prediction = amp.sum(amp.map(lambda h, x: readout(p["readout"], h, x)[0], states, s["x"]))
    amp.output("prediction", prediction)
    difference = prediction - s["target"]
    return 0.5 * difference**2, {"error": scale * jnp.abs(difference)}


def ggnn_selection(
    p: Any,
    s: Any,
    steps: Any = 2,
    replicas: int = 1,
) -> Any:
    """Selects one node of each graph, by a softmax over the scores of its nodes (Li et al., section 3.2): bAbI task 15.

    Args:
      p: Parameters, as `init_selection` makes them.
      s: The instance: `x` `[v, F]`, `edges`, `answer` `[v, 1]`: 1 at the node to be selected, else 0.
      steps: Propagation steps, T.
      replicas: The number of copies of each edge map and of the gated unit, each for some instances.

    Returns:
      The cross entropy, in nats, and the metric `accuracy`: a hit needs a score above all others; the output is `scores`.
    """
    cell = Score(
        p["edge0"]["w"].shape[0],
        s["x"].shape[1],
    )

    def scored(h: Any, x: Any, answer: Any) -> Any:
        score = cell(p["score"], h, x)[0]
        return score, score * answer[0], jnp.where(answer[0] > 0, -jnp.inf, score)

    states = propagated(p, s, steps, replicas)
    scores, of_answer, of_others = amp.map(
        scored,
        states,
        s["x"],
        s["answer"],
    )
    amp.output("scores", scores)
    chosen = amp.sum(of_answer)
    return amp.logsumexp(scores) - chosen, {"accuracy": chosen > amp.max(of_others)}


@dataclass(frozen=True)
class Pad:
    """Fills features up with zeros: `[F]` to `[H]`.

    Args:
      hidden: H.
    """

    hidden: int

    def __call__(self, x: jax.Array) -> jax.Array:
        """`x [F]` to `[H]`."""
        return jnp.pad(
            x,
            (0, self.hidden - x.shape[-1]),
        )


@dataclass(frozen=True)
class GatedUnit:
    """The update of a node's state (Li et al., equations 3 to 6), with biases: `z, r = sigmoid([a; h] W)`, `h~ = tanh([a; r * h] U)`.

    Args:
      hidden: H.
    """

    hidden: int

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Makes the parameters of gates and candidate.

        Args:
          key: A PRNG key.

        Returns:
          `gates`: z and r, `w [2H, 2H]` and `b`; `candidate`: `w [2H, H]` and `b`.
        """
        gates, candidate = jax.random.split(key)
        n = self.hidden
        return {
            "gates": _glorot(2 * n, 2 * n).init(gates),
            "candidate": _glorot(2 * n, n).init(candidate),
        }

    def __call__(
        self,
        params: Any,
        a: jax.Array,
        h: jax.Array,
    ) -> jax.Array:
        """Arrivals `[H]` and state `[H]` to the new state `[H]`.

        Args:
          params: As `init` gives them.
          a: The sum of what arrived, `[H]`.
          h: The state `[H]`.
        """
        z, r = jnp.split(
            jax.nn.sigmoid(linear(params["gates"], a, h)),
            2,
            axis=-1,
        )
        return (1 - z) * h + z * jnp.tanh(linear(params["candidate"], a, r * h))


@dataclass(frozen=True)
class GatedReadout:
    """A node's share of its graph's number: `sigmoid(i([h; x])) * j([h; x])`, `i` and `j` with one hidden layer of ReLU each.

    Args:
      hidden: H, also the width of the hidden layers.
      n_features: F.
    """

    hidden: int
    n_features: int

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Makes the readout's parameters.

        Args:
          key: A PRNG key.

        Returns:
          `hidden`: both hidden layers side by side, `w [H + F, 2H]`; `gate` and `value`: `w [H, 1]`; a bias each.
        """
        hidden, gate, value = jax.random.split(key, 3)
        return {
            "hidden": Linear(self.hidden + self.n_features, 2 * self.hidden, init_scale="he").init(
                hidden
            ),
            "gate": _glorot(self.hidden, 1).init(gate),
            "value": _glorot(self.hidden, 1).init(value),
        }

    def __call__(
        self,
        params: Any,
        h: jax.Array,
        x: jax.Array,
    ) -> jax.Array:
        """State `[H]` and features `[F]` to `[1]`."""
        i, j = jnp.split(
            jax.nn.relu(linear(params["hidden"], h, x)),
            2,
            axis=-1,
        )
        return jax.nn.sigmoid(linear(params["gate"], i)) * linear(params["value"], j)


@dataclass(frozen=True)
class Score:
    """A node's score: a hidden layer of tanh on `[h; x]`, one output, times a gate on `[h; x]`.

    Args:
      hidden: H, also the width of the hidden layer.
      n_features: F.
    """

    hidden: int
    n_features: int

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Makes the score's parameters.

        Args:
          key: A PRNG key.

        Returns:
          `hidden`: `w [H + F, H]`; `out`: `w [H, 1]`; `gate`: `w [H + F, 1]`; a bias each.
        """
        hidden, out, gate = jax.random.split(key, 3)
        n_in = self.hidden + self.n_features
        return {
            "hidden": _glorot(n_in, self.hidden).init(hidden),
            "out": _glorot(self.hidden, 1).init(out),
            "gate": _glorot(n_in, 1).init(gate),
        }

    def __call__(
        self,
        params: Any,
        h: jax.Array,
        x: jax.Array,
    ) -> jax.Array:
        """State `[H]` and features `[F]` to `[1]`."""
        hidden = jnp.tanh(linear(params["hidden"], h, x))
        return linear(params["out"], hidden) * jax.nn.sigmoid(linear(params["gate"], h, x))


def _glorot(n_in: int, n_out: int) -> Linear:
    return Linear(n_in, n_out, init_scale="glorot")
