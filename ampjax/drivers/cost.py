"""Cost models: how long a dispatch takes on a device that one need not own."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ampjax.errors import SettingsError
from ampjax.ir.nodes import Node
from ampjax.ir.ops.body_shapes import init_shapes
from ampjax.ir.ops.payload_nodes import Compute
from ampjax.plan.planner import Plan
from ampjax.plan.stages import Stage
from ampjax.sched.decisions.dispatch import BACKWARD, DIRECTIONS, FORWARD, INFER, Dispatch
from ampjax.sched.decisions.parameter_changes import JointUpdate, Update, nodes_of
from ampjax.sched.layout.columns import OF_INPUT, OF_OUTPUT, DispatchRates
from ampjax.sched.updates.counters import edge_columns

Cost = Callable[[Dispatch], int]
"""From a dispatch to its time on its worker, in whole nanoseconds, its updates included. Its stage is a number: of the plan's `stages`, or
-1 for updates alone."""

_KNOWN: weakref.WeakKeyDictionary[Node, tuple[int, int]] = weakref.WeakKeyDictionary()
"""What `_layer_sizes` gave for nodes of living graphs: to trace their bodies takes longer than to simulate some thousand messages."""


@dataclass(frozen=True)
class FlopsCost:
    """The hypothetical device of AMPNet's Appendix C: fully connected layers take time by their operations, everything else takes `other_ns`.

    A layer `d_in × d_out` on `k` rows takes `2 k d_in d_out` flops for the forward pass, the same for the backward pass and again
    for its weight gradient; an update takes `d_in d_out`.

    Args:
      plan: The plan, which has each node's layers.
      flops: Operations per second.
      other_ns: Nanoseconds that any dispatch takes in addition to its layers.
      latency_ns: Nanoseconds for any transfer between workers.
      bytes_per_s: Bandwidth of a transfer between workers.
      workers_per_host: Workers that share a host, in their order; None for one host.
      host_latency_ns: As `latency_ns`, between workers of different hosts.
      host_bytes_per_s: As `bytes_per_s`, between workers of different hosts. A transfer has the link to itself.
      overlap: Whether a worker can begin something else while rows are on their way to it from another host.

    Raises:
      SettingsError: If a rate, or the number of workers on a host, is not above 0.
    """

    plan: Plan
    flops: float = 1e12
    other_ns: int = 0
    latency_ns: int = 0
    bytes_per_s: float = math.inf
    workers_per_host: int | None = None
    host_latency_ns: int = 0
    host_bytes_per_s: float = math.inf
    overlap: bool = False
    _layers: dict[str, tuple[int, int]] = field(
        default_factory=dict,
        compare=False,
        repr=False,
    )
    _bodies: dict[Any, tuple[int, int]] = field(
        default_factory=dict,
        compare=False,
        repr=False,
    )
    _stages: dict[tuple[int, str], list[tuple[str, float]]] = field(
        default_factory=dict, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        if not (self.flops > 0 and self.bytes_per_s > 0 and self.host_bytes_per_s > 0):
            raise SettingsError(
                "FlopsCost, `flops`, `bytes_per_s` and `host_bytes_per_s`",
                "numbers above 0",
                f"{self.flops}, {self.bytes_per_s} and {self.host_bytes_per_s}",
                "Give operations and bytes in a second; `math.inf` where they take no time.",
            )
        if self.workers_per_host is not None and self.workers_per_host < 1:
            fix = "Leave it out where all workers are on one host."
            raise SettingsError(
                "FlopsCost, `workers_per_host`", "at least 1", f"{self.workers_per_host}", fix
            )

    def __call__(self, dispatch: Dispatch) -> int:
        """Nanoseconds that a dispatch takes."""
        operations = self.operations(dispatch)
        for change in dispatch.changes:
            if isinstance(change, Update | JointUpdate):
                operations += sum(self._update_sizes[node] for node in nodes_of(change))
        return _whole_ns(operations / self.flops) + self.other_ns + self._transfer(dispatch)

    def operations(self, dispatch: Dispatch) -> float:
        """Counts the operations of a dispatch's layers, without the operations of its updates.

        Args:
          dispatch: The dispatch.

        Returns:
          Multiplications and additions.
        """
        if dispatch.stage < 0:
            return 0.0
        stage = self.plan.stages[dispatch.stage]
        work = self._work(stage, dispatch.direction)
        if stage.chain is None:  # all its nodes work on the same rows
            return sum([of_row for _, of_row in work]) * dispatch.n_rows
        return sum(of_row * dispatch.rows_at(stage, node) for node, of_row in work)

    def rates(self) -> DispatchRates:
        """Gives the costs as a table, from which compiled loops compute the same times to the nanosecond.

        Returns:
          Costs by stage and direction, and by node for updates.
        """
        queues = list[tuple[float, ...]]()
        terms = list[tuple[float, float]]()
        columns = edge_columns(self.plan)
        for stage in self.plan.stages:
            latency_ns, row_bytes = self._crossing(stage)
            fixed = self.other_ns + latency_ns
            for direction in DIRECTIONS[:3]:
                of_stage = self._terms(stage, self._work(stage, direction), columns)
                queues.append(
                    (
                        len(terms),
                        len(of_stage),
                        fixed,
                        row_bytes,
                        self.overlap and self.is_between_hosts(stage),
                    )
                )
                terms += of_stage
        return DispatchRates(
            np.array(queues, np.float64).reshape(-1, 5),
            np.array(terms, np.float64).reshape(-1, 2),
            np.array([*self._update_sizes.values()], np.float64),
            np.array([self.flops, self._reference], np.float64),
        )

    def _terms(
        self,
        stage: Stage,
        work: list[tuple[str, float]],
        columns: Mapping[int, slice],
    ) -> list[tuple[float, float]]:
        """Lists the kinds of rows of a stage's dispatches with the operations of each row, in the order in which `operations` adds terms up."""
        if stage.chain is None:
            if work:
                return [(OF_INPUT, sum([of_row for _, of_row in work]))]
            return []
        first = columns[stage.number].start
        edge_types = stage.edge_type_of
        result = []
        for node, of_row in work:
            result.append((first + edge_types[node] if node in edge_types else OF_OUTPUT, of_row))
        return result

    def has_layers(self, dispatch: Dispatch) -> bool:
        """Whether any of a dispatch's nodes multiplies by a matrix.

        Args:
          dispatch: The dispatch.

        Returns:
          True if there is one.
        """
        return dispatch.stage >= 0 and bool(
            self._work(self.plan.stages[dispatch.stage], dispatch.direction)
        )

    def _work(
        self,
        stage: Stage,
        direction: str,
    ) -> list[tuple[str, float]]:
        """The operations of a stage's layers for one row, by node."""
        work = self._stages.get((stage.number, direction))
        if work is None:
            passes = {FORWARD: 1, INFER: 1, BACKWARD: 2}[direction]
            if stage.kind.starts_backward and direction == FORWARD:
                passes = 3
            layers = []
            for node in stage.nodes:
                if node.has_params:
                    layers.append((node.name, self._layer(node)[0]))
            work = [(name, 2.0 * passes * products) for name, products in layers if products]
            self._stages[stage.number, direction] = work
        return work

    def _layer(self, node: Node) -> tuple[int, int]:
        """A node's multiply-adds per message, and the size of its matrices."""
        if node.name not in self._layers:
            types = []
            for wire in node.inputs:
                if wire is not None and wire.type is not None:
                    types.append(wire.type)
            of = (
                id(node.op.body),
                tuple((t.shape, t.dtype.name) for t in types),
            )  # replicas are alike
            if of not in self._bodies:
                self._bodies[of] = _KNOWN.get(node) or _KNOWN.setdefault(
                    node,
                    _layer_sizes(node),
                )
            self._layers[node.name] = self._bodies[of]
        return self._layers[node.name]

    @functools.cached_property
    def _update_sizes(self) -> dict[str, int]:
        """The size of each parameterised node's matrices, as seen by the nodes that multiply by these matrices."""
        result = {}
        for name, users in self.plan.graph.users.items():
            result[name] = max(self._layer(user)[1] for user in users)
        return result

    @property
    def overlapping(self) -> frozenset[int]:
        """The transfers, by number, during which the worker that receives can begin something else."""
        return frozenset(
            stage.number
            for stage in self.plan.stages
            if self.overlap and self.is_between_hosts(stage)
        )

    def is_between_hosts(self, stage: Stage) -> bool:
        """Whether a stage is a transfer between workers of different hosts.

        Args:
          stage: The stage.
        """
        size = self.workers_per_host
        return (
            stage.crossing_bytes is not None
            and size is not None
            and stage.ports[0].space // size != stage.space // size
        )

    def _transfer(self, dispatch: Dispatch) -> int:
        if dispatch.stage < 0:
            return 0
        latency_ns, row_bytes = self._crossing(self.plan.stages[dispatch.stage])
        return latency_ns + _whole_ns(dispatch.n_rows * row_bytes / self._reference)

    @property
    def _reference(self) -> float:
        """The bandwidth for which bytes are counted: bytes on a faster link count less."""
        if self.workers_per_host:
            return min(self.bytes_per_s, self.host_bytes_per_s)
        return self.bytes_per_s

    def _crossing(self, stage: Stage) -> tuple[int, float]:
        """The cost of a transfer on its link: latency, and bytes of a row at the reference bandwidth; nothing for any other stage."""
        if stage.crossing_bytes is None:
            return 0, 0.0
        is_local = not self.is_between_hosts(stage)
        per_s = self.bytes_per_s if is_local else self.host_bytes_per_s
        if per_s == self._reference:
            bytes_here = float(stage.crossing_bytes)
        else:
            bytes_here = stage.crossing_bytes * self._reference / per_s
        return (self.latency_ns if is_local else self.host_latency_ns), bytes_here


@dataclass(frozen=True)
class Stragglers:
    """A machine some of whose workers are slower than the others.

    Args:
      cost: What a dispatch would take on a worker like the others.
      factors: By worker, how many times as long it takes.
    """

    cost: Cost
    factors: Mapping[int, float]

    def __call__(self, dispatch: Dispatch) -> int:
        """Nanoseconds that a dispatch takes."""
        return round(self.cost(dispatch) * self.factors.get(dispatch.worker, 1.0))


def _whole_ns(seconds: float) -> int:
    """Whole nanoseconds, rounded up: no work is done in no time."""
    return math.ceil(seconds * 1e9 - 1e-6)


def _layer_sizes(node: Node) -> tuple[int, int]:
    """Multiply-adds of a node's matrix products for one message, and the sum of its matrices' sizes (tables of ids count none)."""
    shapes = product_shapes(node)
    return sum(rows * n_in * n_out for rows, n_in, n_out in shapes), sum(
        n_in * n_out for _, n_in, n_out in shapes
    )


def product_shapes(node: Node) -> list[tuple[int, int, int]]:
    """Finds the matrix products in a node's body for one message; products in a loop's body count once, however long the loop.

    Returns:
      For each product `[rows, in] x [in, out]` the three sizes.
    """
    op = node.op
    if not isinstance(op, Compute):
        return []
    types = []
    for wire in node.inputs:
        if wire is not None and wire.type is not None:
            types.append(wire.type)
    structs = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    if op.body.rng:
        key = {"key": jax.eval_shape(lambda: jax.random.key(0))}
    else:
        key = {}
    shapes = init_shapes(node, op.body)
    jaxpr = jax.make_jaxpr(functools.partial(op.body.apply))(
        shapes,
        *structs,
        **key,
    )
    return _products(jaxpr.jaxpr)


def _products(jaxpr: Any) -> list[tuple[int, int, int]]:
    products = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, of_right), (batched, also) = equation.params["dimension_numbers"]
            left, right = (atom.aval.shape for atom in equation.invars)
            n_in, n_batch = (math.prod(left[d] for d in dims) for dims in (contracted, batched))
            rows = math.prod(
                size for d, size in enumerate(left) if d not in (*contracted, *batched)
            )
            n_out = math.prod(size for d, size in enumerate(right) if d not in (*of_right, *also))
            products += [(rows, n_in, n_out)] * n_batch
        for value in equation.params.values():
            inner_jaxpr = getattr(value, "jaxpr", value)
            if hasattr(inner_jaxpr, "eqns"):
                products += _products(inner_jaxpr)
    return products
