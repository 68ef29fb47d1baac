"""Gated graph networks by hand (AMPNet section 6; arXiv version, appendix C), in two encodings; `experiments.models.ggnn` has the cells.

* `collect` (ICLR version, figure 4a): the rows of a whole graph are one ragged message. Distribute copies a row to the wire of each of its
  edges' kinds, Collect adds them up at the receivers, both by the instance's topology. `experiments.models.ggnn` compiles to this one.
* `flatmap` (arXiv version): each node is a message. Flatmap makes a message per outgoing edge, Cond chooses its kind's linear map, Group
  gathers a receiver's messages. The state functions look edges up in tables (`experiments.data.graphs.Graphs`), on columns of node numbers.

The gated unit may be three nodes, which may be on workers of their own (arXiv version, figure 7).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.wires import Wire
from experiments.data.graphs import Graphs
from experiments.models.ggnn import GatedReadout, GatedUnit, Pad, Score
from experiments.models.layers.linear import linear


@dataclass(frozen=True)
class Network:
    """The part that both tasks share: sizes, and the propagation of states over edges.

    Args:
      n_features: Features of a node, F; at most `hidden`.
      hidden: Features of a node's state, H.
      steps: Propagation steps, T.
      n_kinds: Kinds of directed edges; each has a linear map.
      graphs: The tables of the `flatmap` encoding; without them the encoding is `collect`.
      replicas: The number of copies of each edge map and of the gated unit, each for some instances.
      copies: The number of copies of the whole network, each for some instances and on a worker of its own.
      separate_gates: Whether the gated unit is three nodes, `update_gate`, `reset_gate` and `candidate`, which may be on workers of
        their own (arXiv version, figure 7), or the single node `update`.

    Raises:
      SettingsError: If a size is below 1, there are more features than `hidden`, or the graphs have another number of edge kinds.
    """

    n_features: int
    hidden: int = 100
    steps: int = 4
    n_kinds: int = 4
    graphs: Graphs | None = None
    replicas: int = 1
    copies: int = 1
    separate_gates: bool = False

    def __post_init__(self) -> None:
        for name in ("n_features", "hidden", "steps", "n_kinds", "replicas", "copies"):
            if getattr(self, name) < 1:
                raise SettingsError(
                    f"ggnn, `{name}`",
                    "at least 1",
                    f"{getattr(self, name)}",
                    "Give a positive number.",
                )
        if self.n_features > self.hidden:
            raise SettingsError(
                "ggnn, `hidden`",
                f"at least the {self.n_features} features",
                f"{self.hidden}",
                "Raise `hidden`.",
            )
        if self.graphs is not None and self.graphs.n_kinds != self.n_kinds:
            raise SettingsError(
                "ggnn, `graphs`",
                f"{self.n_kinds} kinds of edges",
                f"{self.graphs}",
                "Make n_kinds and graphs agree.",
            )

    def pump(self, name: str, features: int) -> Wire:
        """Adds a pump with a row for each node, as `experiments.data.graphs.GraphInstances` pumps it.

        Args:
          name: The pump's name.
          features: Features of a row.

        Returns:
          The pump's wire.
        """
        fields = ("t",) if self.graphs is None else ("first", "node", "t")
        return ag.pump(
            name,
            (features,),
            fields=fields,
            ragged=self.graphs is None,
        )

    def topology(self) -> Wire | None:
        """Adds the pump of topologies that the encoding `collect` needs.

        Returns:
          Its wire; None in the encoding by messages.
        """
        return ag.topology("edges") if self.graphs is None else None

    @property
    def within(self) -> tuple[str, ...]:
        """The fields that tell an instance's messages of one step apart."""
        return ("instance",) if self.graphs is None else ("node",)

    def propagate(self, x: Wire, edges: Wire | None) -> Wire:
        """Propagates the nodes' features along edges for T steps.

        Args:
          x: Features `[F]` of the nodes.
          edges: The topology, in the encoding `collect`; else None.

        Returns:
          The states `[H]` of the nodes.
        """
        edge_maps = []
        for kind in range(self.n_kinds):
            edge_maps.append(ag.ppt(f"edge{kind}", amp.nn.Linear(self.hidden, self.hidden)))
        sends = [ag.replicate(edge_map, self.replicas) for edge_map in edge_maps]
        start = ag.npt("pad", Pad(self.hidden))(x)
        h = ag.phi("h")
        if edges is not None:
            a = _collected(h, sends, edges)
        else:
            assert self.graphs is not None
            a = _flatmapped(h, sends, self.graphs)
        h_new = ag.isu(
            self._updated(a, h),
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        more, done = ag.cond(
            h_new,
            lambda s: s.t < self.steps,
        )
        h.connect(start, more)
        return done

    def _updated(self, a: Wire, h: Wire) -> Wire:
        """The new states `[H]` from arrivals and states."""
        join = (*self.within, "t")

        def node(name: str, body: Any, *inputs: Wire) -> Wire:
            return ag.replicate(ag.ppt(name, body, join=join), self.replicas)(*inputs)

        if not self.separate_gates:
            return node("update", GatedUnit(self.hidden), a, h)
        z, r = (node(name, Gate(self.hidden), a, h) for name in ("update_gate", "reset_gate"))
        return ag.npt("mix", _mix, join=join)(
            node("candidate", Candidate(self.hidden), a, h, r),
            h,
            z,
        )

    def per_graph(self, rows: Wire) -> Wire:
        """Collects the rows of each graph's nodes.

        Args:
          rows: A row of each node.

        Returns:
          A ragged message for each graph.
        """
        if self.graphs is None:
            return rows
        sizes = self.graphs.sizes
        return ag.group(
            rows,
            size=lambda s: sizes[s.first + s.node],
            name="nodes",
        )


def ggnn_regression(network: Network, scale: float = 1.0) -> Graph:
    """Makes a network that predicts a number for each graph: `sum_v sigmoid(i(h_v, x_v)) * j(h_v, x_v)`.

    This is equation 7 of Li et al. without tanh, since it is a regression.

    Pumps: `x` `[F]` for each node, `target` `()` for each graph, and `edges`, the topology, in the encoding `collect`.

    Args:
      network: Sizes and encoding.
      scale: The factor of the metric `error`, the mean absolute error, from the targets' unit to that of the report.

    Returns:
      The graph, with the parameterised nodes `edge0` ..., `update` and `readout`, the loss `square` (half the squared error) with the
      metric `error`, and the sink `prediction`.
    """
    with ag.Graph() as graph:
        edges = network.topology()

        def regression(x: Wire, target: Wire) -> None:
            readout = GatedReadout(network.hidden, network.n_features)
            rows = ag.ppt("readout", readout, join=network.within)(
                network.propagate(x, edges),
                x,
            )
            prediction = ag.reduce("sum", _sum, network.per_graph(rows))
            ag.sink("prediction", prediction)
            ag.loss("square", _Square(scale), join=("instance",))(
                prediction,
                target,
            )

        ag.replicate(regression, network.copies)(
            network.pump("x", network.n_features), ag.pump("target")
        )
    return graph


def ggnn_selection(network: Network) -> Graph:
    """Makes a network that selects one node of each graph, by a softmax over the scores of its nodes (Li et al., section 3.2).

    Pumps: `x` `[F]` for each node, `answer` `[1]` for each node (1 at the node to be selected, else 0), and `edges`, the topology, in the
    encoding `collect`.

    Args:
      network: Sizes and encoding.

    Returns:
      The graph, with the parameterised nodes `edge0` ..., `update` and `score`, the loss `xent` (in nats) with the metric `accuracy`, and
      the sink `scores`.
    """
    with ag.Graph() as graph:
        edges = network.topology()

        def selection(x: Wire, answer: Wire) -> None:
            score = Score(network.hidden, network.n_features)
            scores = ag.ppt("score", score, join=network.within)(
                network.propagate(x, edges),
                x,
            )
            ag.sink("scores", scores)
            rows = ag.concat(scores, answer, join=network.within)
            ag.loss("xent", _selected)(ag.reduce("softmax", _softmax, network.per_graph(rows)))

        ag.replicate(selection, network.copies)(
            network.pump("x", network.n_features), network.pump("answer", 1)
        )
    return graph


def _collected(
    h: Wire,
    sends: Sequence[Callable[..., Wire]],
    edges: Wire,
) -> Wire:
    """What arrives at the nodes: one ragged message per graph, distributed to edge kinds and collected at receivers."""
    wires = ag.distribute(h, edges, len(sends), name="senders")
    return ag.collect(
        [send(wire) for send, wire in zip(sends, wires, strict=True)],
        edges,
        name="receivers",
    )


def _flatmapped(
    h: Wire,
    sends: Sequence[Callable[..., Wire]],
    graphs: Graphs,
) -> Wire:
    """What arrives at the nodes: a message per edge, grouped by receiver. The node's own message opens the group, which may be empty."""
    out_ptr = graphs.out_ptr
    out_degree = graphs.out_degree
    in_degree = graphs.in_degree
    receivers = graphs.receivers
    kinds = graphs.kinds

    def over_edge(s: Any, i: Any) -> Any:
        edge = out_ptr[s.first + s.node] + i
        return s.replace(node=receivers[edge], edge=edge)

    sent = ag.flatmap(
        h,
        lambda s: out_degree[s.first + s.node],
        over_edge,
        name="senders",
    )
    wires = ag.cond(
        sent,
        lambda s: kinds[s.edge],
        len(sends),
        name="kind",
    )
    arrived = ag.phi(
        "arrived",
        *(send(wire) for send, wire in zip(sends, wires, strict=True)),
    )
    received = ag.group(
        arrived,
        by=("node", "t"),
        size=lambda s: in_degree[s.first + s.node],
        opener=h,
        name="receivers",
    )
    return ag.reduce("arrivals", _sum, received)


@dataclass(frozen=True)
class Gate:
    """One of the gated unit's gates: `sigmoid([a; h] W)`.

    Args:
      hidden: H.
    """

    hidden: int

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Makes the gate's parameters.

        Args:
          key: A PRNG key.

        Returns:
          `w [2H, H]` and `b`.
        """
        return amp.nn.Linear(2 * self.hidden, self.hidden, init_scale="glorot").init(key)

    def __call__(
        self,
        params: Any,
        a: jax.Array,
        h: jax.Array,
    ) -> jax.Array:
        """Arrivals `[H]` and state `[H]` to `[H]`.

        Args:
          params: As `init` gives them.
          a: The sum of what arrived, `[H]`.
          h: The state `[H]`.
        """
        return jax.nn.sigmoid(linear(params, a, h))


@dataclass(frozen=True)
class Candidate:
    """The candidate for the new state in the gated unit: `tanh([a; r * h] U)`.

    Args:
      hidden: H.
    """

    hidden: int

    def init(self, key: jax.Array) -> dict[str, Any]:
        """Makes the candidate's parameters.

        Args:
          key: A PRNG key.

        Returns:
          `w [2H, H]` and `b`.
        """
        return amp.nn.Linear(2 * self.hidden, self.hidden, init_scale="glorot").init(key)

    def __call__(
        self,
        params: Any,
        a: jax.Array,
        h: jax.Array,
        r: jax.Array,
    ) -> jax.Array:
        """Arrivals, state and reset gate `[H]` to `[H]`."""
        return jnp.tanh(linear(params, a, r * h))


@dataclass(frozen=True)
class _Square:
    """Half the squared error, and the scaled absolute one."""

    scale: float

    def __call__(self, prediction: jax.Array, target: jax.Array) -> Any:
        difference = prediction[0] - target
        return 0.5 * difference**2, {"error": self.scale * jnp.abs(difference)}


def _sum(
    rows: jax.Array,
    segment_ids: jax.Array,
    n_segments: int,
) -> jax.Array:
    return jax.ops.segment_sum(rows, segment_ids, n_segments)


def _softmax(
    rows: jax.Array,
    segment_ids: jax.Array,
    n_segments: int,
) -> jax.Array:
    """Rows of score and answer `[r, 2]` to cross entropy and hit `[n_segments, 2]`; a hit needs a score above all others."""
    score = rows[:, 0]
    answer = rows[:, 1]
    top = jax.lax.stop_gradient(
        jnp.maximum(jax.ops.segment_max(score, segment_ids, n_segments), -1e30)
    )
    exps = jnp.exp(score - top.at[segment_ids].get(mode="clip"))
    log_sum = top + jnp.log(jnp.maximum(_sum(exps, segment_ids, n_segments), 1e-30))
    chosen = _sum(score * answer, segment_ids, n_segments)
    others = jax.ops.segment_max(
        jnp.where(answer > 0, -jnp.inf, score),
        segment_ids,
        n_segments,
    )
    return jnp.stack(
        [
            log_sum - chosen,
            jax.lax.stop_gradient((chosen > others).astype(rows.dtype)),
        ],
        axis=-1,
    )


def _selected(row: jax.Array) -> Any:
    return row[0], {"accuracy": (row[1], 1.0)}


def _mix(
    candidate: jax.Array,
    h: jax.Array,
    z: jax.Array,
) -> jax.Array:
    return (1 - z) * h + z * candidate
