"""Data for `predict` alone, in which leaves are missing that only losses and metrics read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ampjax.errors import DataError
from ampjax.ir.graph import Graph
from ampjax.ir.ways_to_sinks import Fields, fields_before_sinks

if TYPE_CHECKING:
    from ampjax.frontend.draft.graph_draft import GraphDraft
    from ampjax.frontend.instances.instance_columns import Columns


def missing_leaves(
    columns: Columns,
    read: Callable[[], object],
) -> set[str]:
    """Finds the missing leaves that a function reads; errors about the zeros in their place do not count.

    Raises:
      Exception: As `read`, if it reads no leaf that is missing.
    """
    with columns.noting_missing() as leaves:
        try:
            read()
        except Exception:
            if not leaves:
                raise
    return leaves


def require_for_sinks(
    graph: Graph,
    draft: GraphDraft,
    columns: Columns,
) -> set[str]:
    """Checks that no sink depends on a missing leaf: neither by a payload nor by a state field that decides which messages arrive.

    Returns:
      The pumps from which a way leads to a sink.

    Raises:
      DataError: If something does; names the leaves and the user's line.
    """
    fields = fields_before_sinks(graph)
    for name, fields_of_pump in fields.items():
        if missing := missing_leaves(
            columns, lambda name=name, own=fields_of_pump: _read_all(name, own, draft, columns)
        ):
            origin = draft.origins.get(name)
            raise DataError(
                "data, labels=False",
                f"instances with what outputs depend on: {', '.join(f'`{path}`' for path in sorted(missing))}",
                f"none, and {origin.line if origin else name} reads it",
                "Give each instance this leaf. If outputs depend only on its length or on a choice by it, any value of that length serves.",
            )
    return {*fields}


def _read_all(
    name: str,
    fields: Fields,
    draft: GraphDraft,
    columns: Columns,
) -> None:
    """Reads everything on which a pump's messages to sinks depend: payloads, the choice of messages, and some state fields."""
    if name in draft.topologies:
        edges = draft.topologies[name]
        for column in (edges.senders, edges.receivers, edges.kinds, edges.n_nodes):
            if column is not None:
                column.of(columns)
        return
    plan = draft.pumps[name]
    plan.region.rows(columns)
    for column in (*plan.payload, *(plan.told[field] for field in plan.told.keys() & fields)):
        column.of(columns)
    for space in plan.region.space.around():
        space.n_rows(columns)
        for field in space.facts.keys() & fields:
            if (fact := space.facts[field]) is not None:
                fact.of(columns)
