"""Data for `predict` alone, in which leaves are missing that only losses and metrics read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ampjax.errors import DataError
from ampjax.ir.graph import Graph

if TYPE_CHECKING:
    from ampjax.frontend.draft.graph_draft import GraphDraft
    from ampjax.frontend.instance_columns import Columns


def missing_leaves(columns: Columns, read: Callable[[], object]) -> set[str]:
    """Which of the missing leaves something reads; what it finds wrong with the zeros in their place does not count.

    Args:
      columns: The data set.
      read: Reads columns.

    Raises:
      DataError: As `read`, if it reads no leaf that is missing.
    """
    with columns.noting_missing() as found:
        try:
            read()
        except DataError:
            if not found:
                raise
    return found


def require_for_sinks(graph: Graph, draft: GraphDraft, columns: Columns) -> None:
    """Checks that nothing that a sink depends on reads a leaf that is missing: neither a payload nor a state field.

    Args:
      graph: The graph.
      draft: How it was made.
      columns: The data set.

    Raises:
      DataError: If something does; names the leaves and the user's line.
    """
    for name in _pumps_of_sinks(graph):
        if found := missing_leaves(columns, lambda name=name: _read_all(name, draft, columns)):
            origin = draft.origins.get(name)
            raise DataError(
                "data, labels=False",
                f"instances with what outputs depend on: {', '.join(f'`{path}`' for path in sorted(found))}",
                f"none, and {origin.line if origin else name} reads it",
                "Give each instance this leaf. If outputs depend only on its length or on a choice by it, any value of that length serves.",
            )


def _read_all(name: str, draft: GraphDraft, columns: Columns) -> None:
    """Reads all that a pump's messages depend on: payloads, which messages there are, and their state fields."""
    if name in draft.topologies:
        edges = draft.topologies[name]
        for column in (edges.senders, edges.receivers, edges.n_nodes):
            column.of(columns)
        return
    plan = draft.pumps[name]
    plan.region.rows(columns)
    for column in (*plan.payload, *plan.told.values()):
        column.of(columns)
    for space in plan.region.space.around():
        space.n_rows(columns)
        for fact in space.facts.values():
            if fact is not None:
                fact.of(columns)


def _pumps_of_sinks(graph: Graph) -> list[str]:
    """The pumps from which a way leads to a sink."""
    waiting = [node for node in graph.nodes.values() if node.kind == "Sink"]
    found = {node.name for node in waiting}
    sources = {node.name: [] for node in graph.nodes.values()}
    for node in graph.nodes.values():
        for wire in node.outputs:
            for consumer, _ in wire.consumers:
                sources[consumer.name].append(node)
    while waiting:
        for source in sources[waiting.pop().name]:
            if source.name not in found:
                found.add(source.name)
                waiting.append(source)
    return [name for name in graph.pumps if name in found]
