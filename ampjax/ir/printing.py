"""Graphs as text: a readable tree, Mermaid and Graphviz. Reads the graph, changes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import jax

from ampjax.ir.ops.body_shapes import init_shapes
from ampjax.ir.reading_order import Edge, edges, order
from ampjax.utils.drawing.colours import FAMILIES, family

if TYPE_CHECKING:
    from ampjax.ir.nodes import Node
    from ampjax.ir.wires import Wire


def tree(by_name: Mapping[str, Node], params: bool = True) -> str:
    """The graph as a tree of text, a line per node.

    A node hangs under the last of its sources; under the others `→ name` refers to it. `↺ name` is a loop's way back to its phi.

    Args:
      by_name: The graph's nodes; it need not be closed.
      params: Whether to count the parameters of PPTs.

    Returns:
      Lines without a newline at the end.
    """
    nodes = order(by_name)
    place = {node.name: i for i, node in enumerate(nodes)}
    parent: dict[str, str] = {}
    outgoing: dict[str, list[Edge]] = {node.name: [] for node in nodes}
    for edge in edges(nodes):
        outgoing[edge.source.name].append(edge)
        if not edge.back and place[edge.source.name] >= place.get(
            parent.get(edge.target.name, ""), -1
        ):
            parent[edge.target.name] = edge.source.name

    def children(node: Node) -> list[Node | str]:
        below: dict[str, Node | str] = {}
        for edge in sorted(
            outgoing[node.name],
            key=lambda e: (e.wire.port, e.wire.consumers.index((e.target, e.port))),
        ):
            name = edge.target.name
            is_here = not edge.back and parent[name] == node.name
            below[name] = edge.target if is_here else f"{'↺' if edge.back else '→'} {name}"
        return list(below.values())

    lines = [f"Graph: {len(nodes)} node{'s' * (len(nodes) != 1)}"]
    roots: list[Node | str] = [node for node in by_name.values() if node.name not in parent]
    stack = _level(roots, "")  # a stack of our own: a graph may be deeper than Python's
    while stack:
        item, indent, last = stack.pop()
        text = item if isinstance(item, str) else _line(item, params)
        lines.append(f"{indent}{'└─ ' if last else '├─ '}{text}")
        if not isinstance(item, str):
            stack += _level(children(item), indent + ("   " if last else "│  "))
    return "\n".join(lines)


def mermaid(by_name: Mapping[str, Node]) -> str:
    """The graph as a Mermaid flowchart; kinds are coloured, conds are diamonds, a loop's way back is dotted.

    Args:
      by_name: The graph's nodes; it need not be closed.

    Returns:
      The text, for example for a ```` ```mermaid ```` block.
    """
    nodes = order(by_name)
    ids = {node.name: f"n{i}" for i, node in enumerate(nodes)}
    lines = ["flowchart TD"]
    for node in nodes:
        before, after = _MERMAID_SHAPES.get(
            node.kind, ("(", ")") if node.is_control else ("[", "]")
        )
        text = f"<b>{_mermaid(node.name)}</b><br/>{_mermaid(_kind(node))}"
        lines.append(
            f'  {ids[node.name]}{before}"{text}"{after}:::{family(node.kind, node.is_control).name}'
        )
    for edge in edges(nodes):
        arrow = "-.->" if edge.back else "-->"
        text = _mermaid(wire_text(edge.wire))
        lines.append(f'  {ids[edge.source.name]} {arrow}|"{text}"| {ids[edge.target.name]}')
    used = {family(node.kind, node.is_control).name for node in nodes}
    lines += [
        f"  classDef {f.name} fill:{f.fill},stroke:#333333,color:{f.ink}"
        for f in FAMILIES
        if f.name in used
    ]
    return "\n".join(lines)


def dot(by_name: Mapping[str, Node]) -> str:
    """The graph in Graphviz's DOT language; kinds are coloured, conds are diamonds, a loop's way back is dashed.

    Args:
      by_name: The graph's nodes; it need not be closed.

    Returns:
      The text, for the command `dot -Tsvg`.
    """
    nodes = order(by_name)
    ids = {node.name: f"n{i}" for i, node in enumerate(nodes)}
    lines = [
        "digraph ampjax {",
        '  node [shape=box, style=filled, fontname="sans-serif", fontsize=11];',
        '  edge [fontname="sans-serif", fontsize=8];',
    ]
    for node in nodes:
        shape = {"Cond": "diamond", "Pump": "cds", "Loss": "doubleoctagon"}.get(
            node.kind,
            "box",
        )
        style = "filled,rounded" if node.is_control and shape == "box" else "filled"
        family_of = family(node.kind, node.is_control)
        colours = f'fillcolor="{family_of.fill}", fontcolor="{family_of.ink}"'
        lines.append(
            f'  {ids[node.name]} [label="{_dot(node.name)}\\n{_dot(_kind(node))}", shape={shape}, style="{style}", {colours}];'
        )
    for edge in edges(nodes):
        style = ", style=dashed, constraint=false" if edge.back else ""
        lines.append(
            f'  {ids[edge.source.name]} -> {ids[edge.target.name]} [label="{_dot(wire_text(edge.wire))}"{style}];'
        )
    return "\n".join([*lines, "}"])


def wire_text(wire: Wire) -> str:
    """The payload and fields of a wire, with its number if its source has several wires: `0: 128 float32 {t}`."""
    text = str(wire.type) if wire.type else "?"
    return text if len(wire.source.outputs) == 1 else f"{wire.port}: {text}"


def count_params(node: Node) -> int:
    """Counts the numbers in a node's own parameters; 0 for a node without any."""
    if not node.owns_params:
        return 0
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(init_shapes(node, node.op.body)))


_MERMAID_SHAPES = {
    "Cond": ("{", "}"),
    "Pump": ("([", "])"),
    "Loss": ("{{", "}}"),
}
"""How Mermaid draws a kind: a diamond, a stadium, a hexagon."""


def _level(
    items: list[Node | str],
    indent: str,
) -> list[tuple[Node | str, str, bool]]:
    """Siblings for the stack: the first one on top."""
    return [(item, indent, i == len(items) - 1) for i, item in enumerate(items)][::-1]


def _line(node: Node, params: bool) -> str:
    sources = ", ".join(node.source_name(i) for i in range(len(node.inputs)))
    types = [str(wire.type) if wire.type else "?" for wire in node.outputs]
    text = f"{node.name}  {node.kind}" + (f"({sources})" if node.inputs else "")
    if types:
        alike = len(types) > 1 and len(set(types)) == 1
        text += " -> " + (f"{len(types)} wires of {types[0]}" if alike else " | ".join(types))
    if node.has_params and not node.owns_params:
        return f"{text}, params of {node.params_name}"
    return text + (f", {count_params(node):,} parameters" if params and node.has_params else "")


def _kind(node: Node) -> str:
    """A node's kind, with the owner of its parameters if another node is."""
    return (
        node.kind
        if node.options.params_of is None
        else f"{node.kind}, params of {node.params_name}"
    )


def _mermaid(text: str) -> str:
    """Replaces characters that have a meaning to Mermaid or HTML by Mermaid's entity codes."""
    return "".join(f"#{ord(c)};" if c in '#"`<>&\\' or ord(c) < 32 else c for c in text)


def _dot(text: str) -> str:
    return (
        text.replace("\\", "\\\\")
        .replace('"', '\\"')
        .replace(
            "\n",
            "\\n",
        )
    )
