"""The origins of messages: the pumps and nodes that feed a port, and messages that should have been joined."""

from __future__ import annotations

from collections.abc import Iterator

from ampjax.ir.nodes import Node
from ampjax.ir.ops.ragged_nodes import Group
from ampjax.plan.planner import Plan, input_wires
from ampjax.plan.stages import Stage
from ampjax.unfold.incomplete import Waiting


def origins(
    stage: Stage,
    port: int,
) -> dict[Node, tuple[Node, ...]]:
    """Finds the pumps, payload nodes and groups whose messages can arrive at a stage's port.

    Returns:
      Each of them with the control nodes on the way, in the order in which messages pass these.
    """
    ways: dict[Node, tuple[Node, ...]] = {}
    passed: set[str] = set()
    stack = [((input_wires(stage) or stage.wires)[port].source, ())]
    while stack:
        node, way = stack.pop(0)
        if not node.is_control or isinstance(node.op, Group):
            ways.setdefault(node, way)
        elif node.name not in passed:
            passed.add(node.name)
            wires = []
            for w in node.inputs:
                if w is not None and w.type is not None and not w.type.topology:
                    wires.append(w)
            stack += [(w.source, (node, *way)) for w in wires]
    return ways


def producers_of(plan: Plan, node: Node) -> list[int]:
    """Finds the numbers under which programs know the producers of a node's messages.

    Returns:
      The numbers of its stages, or `-1 - p` for pump `p`, and those of the transfers that copy its messages.
    """
    pumps = list(plan.graph.pumps)
    if node.name in pumps:
        numbers = [-1 - pumps.index(node.name)]
    else:
        numbers = [x.number for x in plan.stages if node in x.nodes]
    return numbers + [x.number for x in plan.stages if x.kind.is_transfer and node in origins(x, 0)]


def unmatched_keys(waiting: list[Waiting]) -> Iterator[str]:
    """Finds messages of one instance that wait for each other at a node and have different keys.

    Yields:
      A line for each such node and instance.
    """
    first: dict[tuple[int, int], Waiting] = {}
    reported: set[tuple[int, int]] = set()
    for one in waiting:
        place = one.stage.number, int(one.state.instance[0])
        other = first.setdefault(place, one)
        if one is not other and one.port in other.missing and place not in reported:
            reported.add(place)
            ports = one.stage.ports
            yield f"the keys at `{one.stage.name}` do not meet: {other.state!r} on port {ports[other.port].name}, {one.state!r} on port {ports[one.port].name}"
