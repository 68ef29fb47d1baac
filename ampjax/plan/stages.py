"""Stages and routes: the parts of a plan.

A *stage* is what one dispatch runs: a payload node, or several that are fused because all messages between them stay inside.
A *route* says what happens to a wire's messages until the next stages: the chain of control nodes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field

from ampjax.ir.nodes import Node
from ampjax.ir.ops.join_keys import Key
from ampjax.ir.ops.payload_nodes import RouteBy
from ampjax.ir.wires import Wire, WireType
from ampjax.plan.edge_stages import Chain
from ampjax.plan.stage_kinds import StageKind

HOST = -1
"""The memory space of pumped payloads."""

ArenaKey = tuple[int, tuple[int, ...], str]
"""An arena: its memory space, the shape of a row, and the dtype's name."""


@dataclass(frozen=True)
class Port:
    """An input of a stage: its type and its memory space."""

    type: WireType
    name: str
    space: int

    @functools.cached_property
    def arena(self) -> ArenaKey:
        """The arena that holds its payloads."""
        return (self.space, self.type.shape, self.type.dtype.name)


@dataclass(frozen=True)
class StagePort:
    """The end of a route: a stage's port."""

    stage: int
    port: int


@dataclass(eq=False)
class ControlStep:
    """A control node in a route; `targets[j]` is where its output `j` goes."""

    node: Node
    targets: list[list[StagePort | ControlStep]] = field(default_factory=list)

    @functools.cached_property
    def kind(self) -> type:
        """The type of the node's operation."""
        return type(self.node.op)

    @functools.cached_property
    def where(self) -> str:
        """The node and its state function, for messages."""
        return f"node `{self.node.name}`, {self.node.op.function_name}"

    @functools.cached_property
    def fields(self) -> tuple[str, ...]:
        """The state fields of the messages that come in."""
        return wire_type(input_wire(self.node, 0)).fields

    @functools.cached_property
    def new_fields(self) -> tuple[str, ...]:
        """The state fields of the messages that go out."""
        return wire_type(self.node.outputs[0]).fields


Targets = list[StagePort | ControlStep]


@dataclass(eq=False)
class Stage:
    """A unit that one dispatch runs: one payload node or several fused ones.

    It has more than twelve fields: everything that the scheduler and the engine must know of a stage is determined once, when a plan is made.

    Args:
      number: Its place in `Plan.stages`.
      kind: The traits of its kind.
      nodes: The payload nodes in it, sources first, with the distribute of a chain; empty for a transfer.
      worker: The worker that runs it.
      space: The memory space of its outputs.
      join: The key by which its inputs are joined.
      wires: The wires that leave it.
      ports: Its inputs.
      outputs: The type of each wire.
      routes: For each wire, the stages and control nodes that its messages go to.
      topology: The name of its topology's pump, for a collect or a chain.
      chain: For `edges`: the chain; its message is at port 0.
      sole: For each port, whether it is the sole consumer of every message that arrives there. Its adjoint then writes the message's gradient
        and does not add to it.
      written: For each output, whether all its messages have such a sole consumer, so that no adjoint rows need to be set to zero.
      workers_ahead: The number of workers from here to where its messages end, its own included.
      trains: Whether training reaches it: it is no sink, and is not a second copy of nodes, for sinks alone, that a loss has fused.
    """

    number: int
    kind: StageKind
    nodes: tuple[Node, ...]
    worker: int
    space: int
    _: KW_ONLY
    join: Key = None
    wires: list[Wire] = field(default_factory=list)
    ports: tuple[Port, ...] = ()
    outputs: tuple[WireType, ...] = ()
    routes: list[Targets] = field(default_factory=list)
    topology: str | None = None
    chain: Chain | None = None
    sole: tuple[bool, ...] = ()
    written: tuple[bool, ...] = ()
    workers_ahead: int = 1
    trains: bool = True

    @functools.cached_property
    def name(self) -> str:
        """The names of its nodes."""
        if self.kind.is_transfer:
            return (
                f"{self.wires[0].name}→{self.worker}"
                if self.ports[0].space != HOST
                else f"feed {self.wires[0].name}→{self.worker}"
            )
        return "+".join(node.name for node in self.nodes)

    @functools.cached_property
    def crossing_bytes(self) -> int | None:
        """Bytes of a row that the stage moves from one device's memory to another's; None for any other stage."""
        if self.kind.is_transfer and self.ports[0].space == HOST:
            return None
        return self.moved_bytes

    @functools.cached_property
    def moved_bytes(self) -> int | None:
        """Bytes of a row that a transfer moves, from a device or from the host where the row was pumped; None for any other stage."""
        if not self.kind.is_transfer:
            return None
        return math.prod(self.ports[0].type.shape) * self.ports[0].type.dtype.itemsize

    @property
    def spaces(self) -> tuple[int, ...]:
        """The memory spaces on devices that its kernels read or write: two for a transfer between devices, else its own."""
        source = self.ports[0].space if self.kind.is_transfer else HOST
        return (self.space,) if source == HOST else (source, self.space)

    @functools.cached_property
    def params(self) -> tuple[str, ...]:
        """The names under which the parameters of its nodes are kept, each once."""
        return tuple(dict.fromkeys(node.params_name for node in self.nodes if node.has_params))

    @functools.cached_property
    def parameterised(self) -> tuple[Node, ...]:
        """The stage's nodes that have parameters, in the order of `params`: sharers of parameters stand side by side."""
        users = [node for node in self.nodes if node.has_params]
        result = []
        for name in self.params:
            for node in users:
                if node.params_name == name:
                    result.append(node)
        return tuple(result)

    @functools.cached_property
    def row_nodes(self) -> tuple[Node, ...]:
        """The nodes that work on the rows of its ports: all but a chain's."""
        inside = self.chain.nodes if self.chain is not None else ()
        return tuple(node for node in self.nodes if node not in inside)

    @functools.cached_property
    def edge_type_of(self) -> Mapping[str, int]:
        """For the nodes that work on edges: the edge type that each belongs to."""
        edge_types = self.chain.edge_types if self.chain is not None else ()
        result = {}
        for number, edge_type in enumerate(edge_types):
            for node in edge_type.nodes:
                result[node.name] = number
        return result

    @functools.cached_property
    def aligned(self) -> bool:
        """For `edges`: whether the collected rows meet rows of the stage's ports, and so must be as many."""
        return any(
            w is not None and w.source not in self.nodes
            for node in self.row_nodes
            for w in node.inputs
        )

    @functools.cached_property
    def route_by(self) -> RouteBy | None:
        """The stage's `route_by`, which reads payloads back into the states, if there is one."""
        if self.nodes:
            op = self.nodes[-1].op
        else:
            op = None
        return op if isinstance(op, RouteBy) else None

    @functools.cached_property
    def random(self) -> bool:
        """Whether a body in the stage takes a PRNG key."""
        return any(node.draws for node in self.nodes)

    @functools.cached_property
    def ragged(self) -> bool:
        """Whether its messages hold any number of rows."""
        return bool(self.ports) and self.ports[0].type.ragged

    @property
    def needs_contents(self) -> bool:
        """Whether a launch of the stage needs more of its messages than the slots of their rows."""
        return self.ragged or self.random or self.kind.reads_table

    @functools.cached_property
    def arenas(self) -> tuple[ArenaKey, ...]:
        """The arena of each output."""
        result = []
        for out in self.outputs:
            result.append((self.space, out.shape, out.dtype.name))
        return tuple(result)

    def __repr__(self) -> str:
        ins = ", ".join(
            f"{p.name}: {p.type}{' (host)' if p.space == HOST else ''}" for p in self.ports
        )
        return f"Stage {self.number} {self.kind} `{self.name}` on worker {self.worker} ({ins}) -> {', '.join(map(str, self.outputs)) or 'nothing'}"


def wire_type(wire: Wire) -> WireType:
    """Gives a wire's type.

    Returns:
      The type.
    """
    assert wire.type is not None
    return wire.type


def input_wire(node: Node, port: int) -> Wire:
    """Gives the wire at a node's port.

    Args:
      node: A node of a closed graph.
      port: The port's number; -1 for the last.

    Returns:
      The wire.
    """
    wire = node.inputs[port]
    assert wire is not None
    return wire
