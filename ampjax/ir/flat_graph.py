"""A closed graph as flat data: wires by the places of their sources, so that a graph of any depth can be pickled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampjax.ir.nodes import Copy, Node
from ampjax.ir.wires import Wire

Place = tuple[int, int]
"""A wire: the number of its source among the nodes, and the output's number."""


def flatten(nodes: Mapping[str, Node]) -> dict[str, Any]:
    """Gives the nodes of a graph, with their wires, as data that hold no node and no wire."""
    numbers = {name: number for number, name in enumerate(nodes)}
    copies = list(dict.fromkeys(copy for node in nodes.values() for copy in node.copies))

    def place(wire: Wire | None) -> Place | None:
        if wire is None:
            return None
        return (numbers[wire.source.name], wire.port)

    def wire_data(wire: Wire) -> tuple[Any, ...]:
        return (
            wire.type,
            wire.discarded,
            [(numbers[node.name], port) for node, port in wire.consumers],
        )

    return {
        "nodes": [
            (
                (node.name, node.op),
                {"options": node.options, "ports": node.ports, "inferred": node.inferred},
                [place(wire) for wire in node.inputs],
                [wire_data(wire) for wire in node.outputs],
                [copies.index(copy) for copy in node.copies],
            )
            for node in nodes.values()
        ],
        "copies": [
            (
                copy.name,
                copy.number,
                [*map(place, copy.entries)],
                copy.dealt,
                [*map(place, copy.exits)],
            )
            for copy in copies
        ],
    }


def unflatten(data: Mapping[str, Any]) -> dict[str, Node]:
    """Makes the nodes that `flatten` has described.

    Returns:
      The nodes by name, in the same order.
    """
    nodes = []
    for (name, op), rest, *_ in data["nodes"]:
        nodes.append(Node(name, op, [], **rest))
    for node, (_, _, _, outputs, _) in zip(nodes, data["nodes"], strict=True):
        node.outputs = tuple(
            Wire(node, port, type_, [], gone) for port, (type_, gone, _) in enumerate(outputs)
        )
        for wire, (_, _, consumers) in zip(node.outputs, outputs, strict=True):
            wire.consumers = [(nodes[number], port) for number, port in consumers]

    def wires(places: list[Place | None]) -> list[Wire | None]:
        result = []
        for place in places:
            result.append(None if place is None else nodes[place[0]].outputs[place[1]])
        return result

    copies = [
        Copy(name, number, tuple(wires(entries)), dealt, tuple(wires(exits)))  # type: ignore[arg-type] - none is open
        for name, number, entries, dealt, exits in data["copies"]
    ]
    for node, (_, _, inputs, _, node_fields) in zip(nodes, data["nodes"], strict=True):
        node.inputs = wires(inputs)
        node.copies = tuple(copies[number] for number in node_fields)
    return {node.name: node for node in nodes}
