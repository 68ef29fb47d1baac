"""Nodes: the operation of each, the sources of its inputs, the types of its outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ampjax.ir.host_tables import HostTable
from ampjax.ir.ops.control_nodes import Phi
from ampjax.ir.ops.op_classes import ControlOp
from ampjax.ir.ops.payload_nodes import Compute
from ampjax.ir.wires import Wire, WireType

WEIGHTS = "current", "stashed", "estimated"
"""Which parameters an adjoint uses: those of now; those of the forward pass; an estimate of these."""


@dataclass(frozen=True)
class NodeOptions:
    """The user's options for one node; None means the trainer's setting.

    Args:
      tx: An optax transform.
      min_update_interval: Gradient rows to accumulate at least before an update.
      max_dispatch_size: Rows in one dispatch at most.
      weights: `current` (AMPNet), `stashed` or `estimated`: which parameters the adjoint uses.
      gradient: `mean` or `sum` over the accumulated gradient rows.
      worker: The worker that hosts the node, or its host's name.
      replica_of: Name of the replica group that the node belongs to.
      params_of: Name of the node with whose parameters this one computes; None for its own.
    """

    tx: Any = None
    min_update_interval: int | None = None
    max_dispatch_size: int | None = None
    weights: str | None = None
    gradient: str | None = None
    worker: int | str | None = None
    replica_of: str | None = None
    params_of: str | None = None


@dataclass(eq=False)
class Copy:
    """A copy of a part of the graph: which wires may cross its border.

    Args:
      name: The part's name.
      number: The copy's number; names of its nodes end in it.
      entries: The wires that lead into it.
      dealt: Among how many copies instances are dealt in turn; 1 if a function of the state routes them.
      exits: The wires that lead out of it, to the phis that join the copies.
    """

    name: str
    number: int
    entries: tuple[Wire, ...]
    dealt: int
    exits: tuple[Wire, ...] = ()


@dataclass(eq=False)
class Node:
    """A node of the graph: its operation (`op`), the sources of its inputs, and its outputs.

    A node's input may stay open (None) until `Graph.connect` fills it; every port must be filled when the graph is closed.
    """

    name: str
    op: Any
    inputs: list[Wire | None]
    outputs: tuple[Wire, ...] = ()
    options: NodeOptions = field(default_factory=NodeOptions)
    ports: tuple[str, ...] = ()
    inferred: bool = False
    copies: tuple[Copy, ...] = ()

    @property
    def kind(self) -> str:
        """The node's kind, in the paper's words: PPT, NPT, Cond, Phi, ..."""
        return self.op.kind

    @property
    def is_control(self) -> bool:
        """Whether the node moves states only. Such a node is part of routes and no stage runs the node, except a group, which is a stage without kernels."""
        return isinstance(self.op, ControlOp)

    @property
    def draws(self) -> bool:
        """Whether its body draws random numbers."""
        body = getattr(self.op, "body", None)
        return body is not None and body.rng

    @property
    def role(self) -> str:
        """The name that the user gave the node, without the number of a copy."""
        return self.options.replica_of or self.name

    @property
    def part(self) -> str | None:
        """The outermost copy of a part of the graph that the node belongs to; the affinity `default` keeps a copy on one worker."""
        return f"{self.copies[0].name}/{self.copies[0].number}" if self.copies else None

    @property
    def has_params(self) -> bool:
        """Whether the node computes with parameters: its own, or another's."""
        return isinstance(self.op, Compute) and self.op.body.init is not None

    @property
    def table(self) -> HostTable | None:
        """The table in host memory whose rows are the node's parameters, if there is one."""
        return self.op.body.table if isinstance(self.op, Compute) else None

    @property
    def params_name(self) -> str:
        """The name under which the node's parameters are kept: its own name, or the name of the node that owns the parameters."""
        return self.options.params_of or self.name

    @property
    def owns_params(self) -> bool:
        """Whether the node has parameters of its own."""
        return self.has_params and self.options.params_of is None

    def source_name(self, port: int) -> str:
        """The name of the wire at a port, for messages."""
        wire = self.inputs[port] if port < len(self.inputs) else None
        return wire.name if wire is not None else "nothing"

    def port_name(self, port: int) -> str:
        """A port's name: the body's argument, or its number."""
        return self.ports[port] if port < len(self.ports) else str(port)

    def __repr__(self) -> str:
        sources = ", ".join(self.source_name(i) for i in range(len(self.inputs)))
        results = ", ".join(str(w.type) for w in self.outputs) or "nothing"
        return f"{self.kind} `{self.name}` ({sources}) -> {results}"


def infer(node: Node) -> bool:
    """Infers the types of a node's outputs, if its inputs' types are known and its own are not.

    Returns:
      Whether it did.

    Raises:
      GraphError: If the node can't take its inputs.
    """
    done = node.inferred
    types = tuple(type_of(wire) for wire in node.inputs)
    if isinstance(node.op, Phi):
        ready = any(t is not None for t in types)
    else:
        ready = all(t is not None for t in types)
    if done or not ready or None in node.inputs:
        return False
    for wire, wire_type in zip(
        node.outputs,
        node.op.infer(
            node,
            types,
        ),
        strict=True,
    ):
        wire.type = wire_type
    node.inferred = True
    return True


def type_of(wire: Wire | None) -> WireType | None:
    """The type of a wire; None for an open port, and for a type still unknown."""
    return wire.type if wire is not None else None
