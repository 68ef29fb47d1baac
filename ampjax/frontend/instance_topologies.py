"""The edges of instances as the topologies that `distribute` and `collect` follow; each is made when it is first asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ampjax.errors import DataError
from ampjax.frontend.combinators.graph_combinators import wrong_edge
from ampjax.ir.instances import Topology

if TYPE_CHECKING:
    from ampjax.frontend.draft.edge_plans import EdgePlan
    from ampjax.frontend.instance_columns import Columns


class InstanceTopologies:
    """The topologies of a data set.

    Args:
      plan: Which edges they have.
      columns: The data set.

    Raises:
      DataError: If an edge leads out of its graph, or its kind is none; names the instance.
    """

    def __init__(self, plan: EdgePlan, columns: Columns):
        space, self._n_kinds = plan.space, plan.n_kinds
        self._senders, self._receivers = plan.senders.of(columns), plan.receivers.of(columns)
        self._kinds = np.zeros(len(self._senders), np.int64) if plan.kinds is None else plan.kinds.of(columns)
        self._n_nodes = plan.n_nodes.of(columns)
        self._starts, self._n_edges = space.starts(columns), space.lengths(columns)
        instance = space.instances(columns)
        bad = wrong_edge((self._senders, self._receivers), self._kinds, self._n_nodes[instance], plan.n_kinds)
        if bad is not None:
            edge, expected, got = bad
            where = f"{plan.line}, instance {instance[edge]}, edge {edge - self._starts[instance[edge]]}"
            raise DataError(where, expected, got, "Mend the edges: nodes count from 0 within each instance.")
        self._made: dict[int, Topology] = {}

    def of(self, ids: np.ndarray) -> list[Topology]:
        """The topologies of some instances.

        Args:
          ids: `[n]`: which instances.
        """
        return [self._made.get(i) or self._make(i) for i in ids.tolist()]

    def _make(self, i: int) -> Topology:
        edges = slice(self._starts[i], self._starts[i] + self._n_edges[i])
        ends = self._senders[edges], self._receivers[edges], self._kinds[edges]
        self._made[i] = Topology.from_edges(*ends, int(self._n_nodes[i]), self._n_kinds)
        return self._made[i]
