"""The edges of instances as the topologies that `distribute` and `collect` follow; each made at its first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ampjax.errors import DataError
from ampjax.frontend.combinators.graph_combinators import wrong_edge
from ampjax.ir.instances import Topology

if TYPE_CHECKING:
    from ampjax.frontend.draft.edge_plans import EdgePlan
    from ampjax.frontend.instances.instance_columns import Columns


def check_edges(
    plan: EdgePlan,
    columns: Columns,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Checks the edges of a data set.

    Returns:
      `[edges]` each: senders, receivers and kinds.

    Raises:
      DataError: If an edge leads out of its graph, or its kind is none; names the instance.
    """
    space = plan.space
    senders = plan.senders.of(columns)
    receivers = plan.receivers.of(columns)
    if plan.kinds is None:
        kinds = np.zeros(len(senders), np.int64)
    else:
        kinds = plan.kinds.of(columns)
    around = space.parents(columns)
    bad = wrong_edge(
        (senders, receivers),
        kinds,
        plan.n_nodes.of(columns)[around],
        plan.n_kinds,
    )
    if bad is not None:
        edge, expected, got = bad
        number = edge - space.starts(columns)[around[edge]]
        where = f"{plan.line}, instance {space.instances(columns)[edge]}, edge {number}"
        if expected.startswith("a kind"):
            fix = "Mend the edges, or say in the spec that there are more: `kinds` of `amp.Edges`."
        else:
            fix = "Mend the edges: nodes count from 0 within each instance."
        raise DataError(where, expected, got, fix)
    return senders, receivers, kinds


class InstanceTopologies:
    """The topologies of a data set.

    Args:
      plan: Which edges they have.
      columns: The data set.

    Raises:
      DataError: If an edge leads out of its graph, or its kind is none; names the instance.
    """

    def __init__(self, plan: EdgePlan, columns: Columns):
        space = plan.space
        self._n_kinds = plan.n_kinds
        self._senders, self._receivers, self._kinds = check_edges(plan, columns)
        self._n_nodes = plan.n_nodes.of(columns)
        self._starts = space.starts(columns)
        self._n_edges = space.lengths(columns)
        self._made: dict[int, Topology] = {}

    def of(self, ids: np.ndarray) -> list[Topology]:
        """The topologies of some instances.

        Args:
          ids: `[n]`: which instances.
        """
        result = []
        for i in ids.tolist():
            result.append(self._made.get(i) or self._make(i))
        return result

    def _make(self, i: int) -> Topology:
        edges = slice(
            self._starts[i],
            self._starts[i] + self._n_edges[i],
        )
        ends = self._senders[edges], self._receivers[edges], self._kinds[edges]
        self._made[i] = Topology.from_edges(
            *ends,
            int(self._n_nodes[i]),
            self._n_kinds,
        )
        return self._made[i]
