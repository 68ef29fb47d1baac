"""The checks that need the whole graph, made on closing: open ports, loops, types, wires without consumers."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ampjax.errors import GraphError
from ampjax.ir.nodes import Node, infer, type_of
from ampjax.ir.ops.control_nodes import Phi


def check_whole(nodes: Collection[Node]) -> None:
    """Checks the nodes of a graph, and infers the types that are not known yet.

    Raises:
      GraphError: The first mistake, with node and port.
    """
    _check_ports(nodes)
    _check_loops(nodes)
    _infer_all(nodes)
    _check_consumers(nodes)


def _check_ports(nodes: Collection[Node]) -> None:
    """Every port has a wire, and every phi a port."""
    for node in nodes:
        for port, wire in enumerate(node.inputs):
            if wire is None:
                raise GraphError(
                    f"node `{node.name}`, port {node.port_name(port)}",
                    "a wire",
                    "an unconnected port",
                    "Connect it before the graph is closed.",
                )
        if isinstance(node.op, Phi) and not node.inputs:
            raise GraphError(
                f"node `{node.name}`",
                "inputs",
                "an unconnected phi",
                f"Call `{node.name}.connect(...)` before the graph is closed.",
            )


def _check_loops(nodes: Collection[Node]) -> None:
    """Every loop passes a phi: a depth-first search over the wires that do not enter one."""
    done: set[str] = set()
    for start in nodes:
        path: list[tuple[Node, Iterator[Node]]] = [(start, iter(_next(start)))]
        on_path = {start.name: None}
        while path:
            node, ahead = path[-1]
            following = next(ahead, None)
            if following is None:
                path.pop()
                on_path.pop(node.name, None)
                done.add(node.name)
            elif following.name in on_path:
                loop = [
                    *list(on_path)[list(on_path).index(following.name) :],
                    following.name,
                ]
                raise GraphError(
                    f"node `{following.name}`",
                    "a phi wherever a loop closes",
                    "the loop " + " -> ".join(loop),
                    "Merge the loop's entry and its return with `amp.graphs.phi`.",
                )
            elif following.name not in done:
                path.append((following, iter(_next(following))))
                on_path[following.name] = None


def _infer_all(nodes: Collection[Node]) -> None:
    """Infers types until nothing changes; then checks the phis once more, with all inputs known."""
    progress = True
    while progress:
        progress = any([infer(node) for node in nodes])
    for node in nodes:
        for wire in node.outputs:
            if wire.type is None:
                raise GraphError(
                    f"node `{node.name}`",
                    "inputs whose shapes are known without it",
                    "a loop whose phi nothing enters from outside, so that its shape would have to tell itself",
                    "Connect the phi to a pump, or to a node before the loop, too.",
                )
    for node in nodes:
        if isinstance(node.op, Phi):
            node.op.infer(
                node,
                tuple(type_of(wire) for wire in node.inputs),
            )


def _check_consumers(nodes: Collection[Node]) -> None:
    """Every wire has a consumer, or is discarded."""
    for node in nodes:
        for wire in node.outputs:
            if not wire.consumers and not wire.discarded:
                raise GraphError(
                    f"node `{node.name}`, output {wire.port}",
                    "a consumer",
                    "a wire that goes nowhere",
                    "Connect it, or end it with `amp.graphs.sink` or `amp.graphs.discard`.",
                )


def _next(node: Node) -> list[Node]:
    result = []
    for wire in node.outputs:
        for consumer, _ in wire.consumers:
            if not isinstance(consumer.op, Phi):
                result.append(consumer)
    return result
