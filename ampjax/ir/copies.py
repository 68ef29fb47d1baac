"""Copies of a part of the graph, during building: names of their nodes, and wires that may cross their borders."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ampjax.errors import GraphError
from ampjax.ir.nodes import Copy, Node, NodeOptions
from ampjax.ir.ops.control_nodes import Phi
from ampjax.ir.ops.payload_nodes import Pump
from ampjax.ir.wires import Wire


class CopyStack:
    """The copies that nodes are added to: one inside the other.

    Attributes:
      around: The copies that a node is in if it is made now, the outermost first.
    """

    def __init__(self) -> None:
        self.around: tuple[Copy, ...] = ()
        self._parts: dict[str, tuple[str, ...]] = {}  # by a node's name, the parts that it is in

    @contextmanager
    def copy(
        self,
        name: str,
        number: int,
        entries: Sequence[Wire],
        dealt: int,
    ) -> Iterator[Copy]:
        """Nodes that are made in this `with` block are in a copy of a part of the graph; its exits are to be set.

        Their names get the copy's number. Nodes of one name are replicas of each other: their parameters are kept together, they draw the
        same random numbers, losses add up, and what sinks receive is put together.

        Args:
          name: The part's name.
          number: The copy's number.
          entries: The wires that lead into the copy.
          dealt: Among how many copies instances are dealt in turn; 1 if a function of the state routes them.
        """
        outside = self.around
        copy = Copy(name, number, tuple(entries), dealt)
        self.around = (*outside, copy)
        try:
            yield copy
        finally:
            self.around = outside

    @property
    def dealt(self) -> int:
        """Among how many copies instances have been dealt in turn where nodes are being built: instance `i` is the `i // dealt`-th here."""
        return math.prod(copy.dealt for copy in self.around)

    def full_name(self, name: str) -> str:
        """A node's name with the numbers of the copies around the node."""
        return "/".join([name, *(str(copy.number) for copy in reversed(self.around))])

    def names_from_here(self, name: str) -> Iterator[str]:
        """The names that a node may have which is called `name` where nodes are being built: in the innermost copy first, then further out."""
        numbers = [str(copy.number) for copy in reversed(self.around)]
        for i in range(len(numbers) + 1):
            yield "/".join([name, *numbers[i:]])

    def options_for(
        self,
        name: str | None,
        op: Any,
        options: NodeOptions,
    ) -> NodeOptions:
        """Notes in a node's options the original of which the node is a replica, if made in a copy.

        Args:
          name: The node's name, without copies' numbers; None if the user gave none.
          op: What the node does.
          options: Its options.

        Returns:
          The options, with `replica_of`.

        Raises:
          GraphError: If it is a pump, or a node of another part has its name: these two would be taken for replicas of each other.
        """
        parts = tuple(copy.name for copy in self.around)
        if name is not None and self._parts.setdefault(name, parts) != parts:
            place, place_of_first = (
                f"in `{'/'.join(p)}`" if p else "outside of all copies"
                for p in (parts, self._parts[name])
            )
            raise GraphError(
                f"node `{name}` {place}",
                "a name that no other node has",
                f"the name of one {place_of_first}",
                "Give each node its own name.",
            )
        if not self.around:
            return options
        if isinstance(op, Pump):
            raise GraphError(
                f"replicate `{self.around[-1].name}`",
                "no pumps in what is copied",
                f"the pump `{name}`",
                "Make it outside, and pass its wire to the function; a topology's can be used as it is.",
            )
        return replace(options, replica_of=name)


def check_border(where: str, node: Node, wire: Wire) -> None:
    """Checks that a wire crosses the border of a copy only where `replicate` has put a cond or a phi.

    Any other wire would reach every copy, or come from one of them.

    Args:
      where: What an error calls the port.
      node: The node that the wire is connected to.
      wire: The wire.

    Raises:
      GraphError: If one does not.
    """
    source = wire.source
    enters = bool(node.copies) and any(wire is entry for entry in node.copies[-1].entries)
    leaves = (
        bool(source.copies)
        and any(wire is out for out in source.copies[-1].exits)
        and isinstance(node.op, Phi)
    )
    if source.copies == node.copies or wire.is_topology or enters or leaves:
        return
    if len(node.copies) >= len(source.copies):
        got = f"`{wire.name}`, which is outside of it"
        fix = f"Pass it to what `replicate` of `{node.copies[-1].name}` gives, so that it is routed with the others."
    else:
        got = f"`{wire.name}`, which is inside of one"
        fix = f"Let the function of `{source.copies[-1].name}` return it, so that the copies' wires are joined."
    raise GraphError(where, "a wire of the same copy", got, fix)
