"""An order of a graph's nodes for reading and drawing, and the connections that run against that order.

Knows the graph's structure only: no types, no pictures.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ampjax.ir.ops.control_nodes import Phi

if TYPE_CHECKING:
    from ampjax.ir.nodes import Node
    from ampjax.ir.wires import Wire


@dataclass(frozen=True, eq=False)
class Edge:
    """One wire into one port.

    Args:
      wire: The wire.
      target: The node it enters.
      port: The number of the port.
      back: True if it closes a loop: it enters a phi that comes before its source.
    """

    wire: Wire
    target: Node
    port: int
    back: bool

    @property
    def source(self) -> Node:
        """The node that the edge leaves."""
        return self.wire.source


def order(by_name: Mapping[str, Node]) -> list[Node]:
    """The nodes, sources before consumers, where a loop is entered through its phi.

    A phi that heads a loop is taken only when nothing else can be, so what feeds the loop's body from outside stands before it.
    Among the nodes that could come next, the one that was built first does. Works on graphs that are not closed yet too.

    Args:
      by_name: The nodes, in the order in which they were built.

    Returns:
      All nodes of the graph, each once.
    """
    nodes = list(by_name.values())
    number = {node.name: i for i, node in enumerate(nodes)}
    waits = [sum(wire is not None for wire in node.inputs) for node in nodes]
    ready = [i for i, count in enumerate(waits) if not count]
    placed: dict[int, Node] = {}
    while len(placed) < len(nodes):
        # In the order of building, as long as some node has all of its inputs; else a loop is
        # entered.
        head = heapq.heappop(ready) if ready else _loop_head(nodes, number, placed)
        # A loop's phi has been taken before its last input came.
        if head in placed:
            continue
        placed[head] = nodes[head]
        for i in _consumers(nodes[head], number):
            waits[i] -= 1
            if not waits[i]:
                heapq.heappush(ready, i)
    return list(placed.values())


def edges(nodes: list[Node]) -> list[Edge]:
    """Every connection of some nodes in `order`, by target and port."""
    place = {node.name: i for i, node in enumerate(nodes)}
    result = []
    for node in nodes:
        for port, wire in enumerate(node.inputs):
            if wire is not None:
                result.append(
                    Edge(
                        wire,
                        node,
                        port,
                        place[wire.source.name] >= place[node.name],
                    )
                )
    return result


def _consumers(
    node: Node,
    number: dict[str, int],
) -> list[int]:
    result = []
    for wire in node.outputs:
        for consumer, _ in wire.consumers:
            result.append(number[consumer.name])
    return result


def _loop_head(
    nodes: list[Node],
    number: dict[str, int],
    placed: dict[int, Node],
) -> int:
    """The phi through which the next loop is entered: a phi with an input already placed, on a cycle."""
    left = [i for i in range(len(nodes)) if i not in placed]
    phis = [i for i in left if isinstance(nodes[i].op, Phi)]
    entered = []
    for i in phis:
        if any(w is not None and number[w.source.name] in placed for w in nodes[i].inputs):
            entered.append(i)
    return next(
        (i for i in entered if _reaches_itself(i, nodes, number, placed)),
        (entered or phis or left)[0],
    )


def _reaches_itself(
    start: int,
    nodes: list[Node],
    number: dict[str, int],
    placed: dict[int, Node],
) -> bool:
    seen: set[int] = set()
    stack = [start]
    while stack:
        for i in _consumers(nodes[stack.pop()], number):
            if i == start:
                return True
            # Only through nodes that are still to come: the rest is behind.
            if i not in placed and i not in seen:
                seen.add(i)
                stack.append(i)
    return False
