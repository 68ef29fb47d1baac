"""Control nodes that make messages of several rows, or take such messages apart, reading states and topologies only, and no payload."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ampjax.errors import GraphError
from ampjax.ir.ops.join_keys import check_key
from ampjax.ir.ops.op_classes import ControlOp
from ampjax.ir.ops.state_trials import try_column, try_states
from ampjax.ir.state import State, StateFn, sample

if TYPE_CHECKING:
    from ampjax.ir.nodes import Node
    from ampjax.ir.wires import WireType


@dataclass(frozen=True)
class Repeat(ControlOp):
    """Turns a row into a ragged message of `count` equal rows (the paper's Replicate); gradients are summed.

    Args:
      count: State function: how many rows; may be 0.
    """

    kind: ClassVar[str] = "Repeat"
    count: StateFn

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the type of the output; tries the count on sample states.

        Raises:
          GraphError: If the count fails or gives no integers, or the input is ragged already.
        """
        require_ragged(node, types[0], False)
        try_column(node, "count", self.count, types[0].fields)
        return (replace(types[0], ragged=True),)


@dataclass(frozen=True)
class Ungroup(ControlOp):
    """Turns a ragged message into one message for each row (AMPNet §4).

    Args:
      state: `state(s, i)`: the rows' states, from the ragged message's state and the row's number in it.
    """

    kind: ClassVar[str] = "Ungroup"
    function_name: ClassVar[str] = "state"
    state: Callable[[State, np.ndarray], State]

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the type of the output; tries the state function on sample states.

        Raises:
          GraphError: If it fails or gives no states, or the input is not ragged.
        """
        require_ragged(node, types[0], True)
        after, _ = try_states(
            node,
            "state",
            lambda s: self.state(s, np.arange(len(s))),
            sample(types[0].fields),
        )
        return (replace(types[0], ragged=False, fields=after.fields),)


@dataclass(frozen=True)
class Group(ControlOp):
    """Collects the messages that share a key into one ragged message (AMPNet §4).

    A group closes when it holds as many messages as its size says; a message on the opener's port opens it and gives the size,
    so that a group of size 0 is emitted at once. Without an opener the members' own states give the size.

    Args:
      by: Fields that form the key (with the instance), or a keying function of the state.
      size: State function of the opener's state (of the members' where there is no opener).
      order: State function that sorts the rows of a group; by default the members' whole state does.
      opened: True if port 1 is an opener.
    """

    kind: ClassVar[str] = "Group"
    by: tuple[str, ...] | StateFn
    size: StateFn
    order: StateFn | None
    opened: bool

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the type of the output: its state is the opener's, or the key's.

        Raises:
          GraphError: If a key, size or order does not work on the states, or the input is ragged already.
        """
        require_ragged(node, types[0], False)
        for port, wire in enumerate(types):
            check_key(node, port, self.by, wire)
        if self.order is not None:
            try_column(node, "order", self.order, types[0].fields)
        try_column(node, "size", self.size, types[-1].fields)
        if self.opened:
            fields = types[1].fields
        elif isinstance(self.by, tuple):
            fields = self.by
        else:
            fields = types[0].fields
        return (
            replace(
                types[0],
                ragged=True,
                fields=tuple(f for f in fields if f != "instance"),
            ),
        )


@dataclass(frozen=True)
class Distribute(ControlOp):
    """Picks rows of a ragged message for each of `n` outputs, by the instance's topology (ICLR version, figure 3).

    Port 0 is the ragged message, port 1 the topology pump; a row picked several times gets the sum of the gradients.
    """

    kind: ClassVar[str] = "Distribute"
    n: int

    def infer(
        self,
        node: Node,
        types: tuple[WireType, ...],
    ) -> tuple[WireType, ...]:
        """Infers the types of the outputs.

        Raises:
          GraphError: If port 0 is not ragged, or port 1 no topology pump.
        """
        require_ragged(node, types[0], True)
        require_topology(node, 1, types[1])
        return (types[0],) * self.n


def require_topology(node: Node, port: int, wire: WireType) -> None:
    """Checks that a port is fed by a topology pump.

    Raises:
      GraphError: If not.
    """
    source = node.inputs[port]
    if not wire.topology or source is None or source.source.op.kind != "Pump":
        raise GraphError(
            f"node `{node.name}`, port {port}",
            "the wire of a topology pump",
            f"{wire.payload} from `{node.source_name(port)}`",
            "Make one with `amp.graphs.topology(name)` and connect it directly.",
        )


def require_ragged(node: Node, wire: WireType, ragged: bool) -> None:
    """Checks that port 0 of a node gets messages of the right sort, ragged or not.

    Args:
      node: The node.
      wire: What the port's wire carries.
      ragged: Whether it takes ragged messages; if not, it takes ordinary ones.

    Raises:
      GraphError: If it gets others, or a topology.
    """
    if wire.ragged == ragged and not wire.topology:
        return
    fix = (
        "Group the messages first, or pump them with `ragged=True`."
        if ragged
        else "Ungroup it first."
    )
    raise GraphError(
        f"node `{node.name}`, port 0",
        "a ragged message" if ragged else "an ordinary message",
        f"{wire.payload} from `{node.source_name(0)}`",
        fix,
    )
