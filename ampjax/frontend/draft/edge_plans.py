"""Edges of instances as pumps of topologies, and the nodes of the graph to be that follow the edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.values import Flow
from ampjax.ir.builders import pump_builders, ragged_builders
from ampjax.ir.wires import Wire

if TYPE_CHECKING:
    from ampjax.frontend.draft.graph_draft import GraphDraft
    from ampjax.frontend.instances.instance_columns import Columns


@dataclass(eq=False)
class EdgePlan:
    """The input of a topology pump: the edges of each instance.

    Args:
      senders: A column over the edges, in the space of instances.
      receivers: Likewise.
      kinds: Likewise; None where all are of kind 0.
      n_kinds: Kinds.
      n_nodes: Nodes of each instance.
      line: The user's line.
      name: The pump's name.
      wire: The pump's wire, once it is built.
    """

    senders: Column
    receivers: Column
    kinds: Column | None
    n_kinds: int
    n_nodes: Column
    line: str
    name: str = ""
    wire: Wire | None = None

    @property
    def space(self) -> IndexSpace:
        """The edges' space."""
        return self.senders.space

    def is_like(self, other: EdgePlan) -> bool:
        """Tells whether both are about the same edges."""
        mine, theirs = (
            (p.senders, p.receivers, p.kinds, p.n_kinds, p.n_nodes) for p in (self, other)
        )
        return mine == theirs

    def kind_space(self, kind: int, around: IndexSpace) -> IndexSpace:
        """The space of the edges of a kind, whose rows travel in one ragged message.

        Args:
          kind: The kind.
          around: The space in which something is sent.
        """
        space = self.space
        kinds = self.kinds
        outer = space.parent
        assert outer is not None

        def count(data: Columns) -> np.ndarray:
            if kinds is None:
                chosen = space.parents(data)
            else:
                chosen = space.parents(data)[kinds.of(data) == kind]
            return np.bincount(chosen, minlength=outer.n_rows(data))

        return around.along(
            f"{self.name}_{kind}", Column(outer, count).inside(around), is_ragged=True
        )


def note_edges(draft: GraphDraft, plan: EdgePlan) -> EdgePlan:
    """Notes a topology pump; one serves all rounds that send over the same edges.

    Returns:
      The plan, or one like it that has been noted before.
    """
    for known in draft.topologies.values():
        if known.is_like(plan):
            return known
    plan.name = draft.name(plan.space.dimension)
    draft.topologies[plan.name] = plan

    def build() -> None:
        plan.wire = draft.enter(
            plan.name,
            lambda: pump_builders.topology(plan.name),
        )

    draft.then(build)
    return plan


def distribute(
    draft: GraphDraft,
    flow: Flow,
    plan: EdgePlan,
    regions: Sequence[Region],
    name: str,
) -> list[Flow]:
    """Notes a Distribute.

    Args:
      draft: The graph to be.
      flow: A row for each node.
      plan: The edges.
      regions: For each kind, where the rows of its edges are.
      name: The node's name.

    Returns:
      For each kind, the senders' rows.
    """
    flows = [Flow(region, flow.types, flow.is_fresh) for region in regions]
    called = draft.name(name)

    def build() -> None:
        assert flow.wire is not None and plan.wire is not None
        wires = ragged_builders.distribute(
            flow.wire,
            plan.wire,
            len(flows),
            name=called,
        )
        for out, wire in zip(flows, wires, strict=True):
            out.wire = wire

    draft.then(build)
    return flows


def collect(
    draft: GraphDraft,
    flows: Sequence[Flow],
    plan: EdgePlan,
    region: Region,
    name: str,
) -> Flow:
    """Notes a Collect.

    Args:
      draft: The graph to be.
      flows: For each kind, a row for each edge, with equal states.
      plan: The edges.
      region: Where the nodes are.
      name: The node's name.

    Returns:
      The sums at the nodes.
    """
    called = draft.name(name)

    def make() -> Wire:
        wires = [flow.wire for flow in flows if flow.wire is not None]
        assert plan.wire is not None
        return ragged_builders.collect(wires, plan.wire, name=called)

    return draft.control(
        region,
        flows[0].types,
        make,
        all(flow.is_fresh for flow in flows),
    )
