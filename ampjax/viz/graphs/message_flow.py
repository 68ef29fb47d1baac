"""A trace's figures for a graph: time at each node, updates, and messages on each wire. Knows no drawing library."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ampjax.ir.graph import Graph
from ampjax.ir.nodes import Node
from ampjax.ir.ops.control_nodes import Bcast
from ampjax.ir.ops.op_classes import ControlOp
from ampjax.ir.wires import Wire
from ampjax.trace.trace import Trace, duration

FORWARD = "→"
BACKWARD = "←"

WireKey = tuple[str, int]
"""The name of the node that a wire leaves, and the number of its output."""


@dataclass(frozen=True)
class Notes:
    """The texts at a picture's nodes and wires.

    Args:
      nodes: Lines for a node, by its name.
      wires: Messages that went over a wire; wires of which a trace does not tell are left out.
      shares: For each stage's last node, the part of all workers' busy time that the stage took: forward, and backward.
    """

    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    wires: dict[WireKey, int] = field(default_factory=dict)
    shares: dict[str, tuple[float, float]] = field(default_factory=dict)


def notes_of(graph: Graph, trace: Trace) -> Notes:
    """Collects a trace's figures for the nodes and wires of a graph.

    Nodes that run together in one stage have one time, which stands at the last of them. Messages are those on the way forward, which
    in training is also how many gradients came back.

    Args:
      graph: The graph.
      trace: A trace of runs of this graph.
    """
    time: Counter[tuple[str, str]] = Counter()
    messages: Counter[str] = Counter()
    for s in trace:
        time[s.node, s.kind] += s.duration_ns
        messages[s.node] += s.messages if s.kind in ("forward", "infer") else 0
    updates = Counter(sample.node for sample in trace.staleness)
    total = sum(time.values())
    lines: dict[str, list[str]] = {}
    shares: dict[str, tuple[float, float]] = {}
    known: dict[WireKey, int] = {}
    for stage, names in trace.stages.items():
        nodes = [graph.nodes[name] for name in names if name in graph.nodes]
        if not nodes or not messages[stage]:
            continue
        time_ns = time[stage, "forward"] + time[stage, "infer"]
        back = time[stage, "backward"]
        last = nodes[-1].name
        lines[last] = [
            f"{FORWARD} {duration(time_ns)}" + (f"   {BACKWARD} {duration(back)}" if back else "")
        ]
        lines.update({node.name: [f"runs in {last}"] for node in nodes[:-1]})
        if total:
            shares[last] = (time_ns / total, back / total)
        else:
            shares[last] = (0.0, 0.0)
        for node in nodes:
            known.update({(wire.source.name, wire.port): messages[stage] for wire in _wires(node)})
    for name, n in updates.items():
        lines.setdefault(name, []).append(f"{n:,} update{'s' * (n > 1)}")
    return Notes(
        {name: tuple(found) for name, found in lines.items()},
        _spread(graph, known),
        shares,
    )


def _wires(node: Node) -> list[Wire]:
    return [wire for wire in node.inputs if wire is not None] + list(node.outputs)


def _spread(
    graph: Graph,
    known: dict[WireKey, int],
) -> dict[WireKey, int]:
    """Adds wires between control nodes that send on every message: each once, or once to each output."""
    known = dict(known)
    while True:
        before = len(known)
        for node in graph.nodes.values():
            into = []
            for w in node.inputs:
                if w is not None:
                    into.append((w.source.name, w.port))
            out = [(w.source.name, w.port) for w in node.outputs]
            if isinstance(node.op, Bcast):
                sides = [(into, [key]) for key in out]
            else:
                if isinstance(node.op, ControlOp) and node.op.sends_exactly_one:
                    sides = [(into, out)]
                else:
                    sides = []
            for one, other in sides:
                _solve(one, other, known)
                _solve(other, one, known)
        if len(known) == before:
            return known


def _solve(
    whole: list[WireKey],
    parts: list[WireKey],
    known: dict[WireKey, int],
) -> None:
    """Finds the one count that is missing where both sides carry as much."""
    missing = {key for key in parts if key not in known}
    if len(missing) == 1 and all(key in known for key in whole):
        (key,) = missing
        rest = sum(known[k] for k in whole) - sum(known[k] for k in parts if k != key)
        if rest >= 0:
            known[key] = rest // parts.count(key)
