"""Ranks: the order in which the messages of one dispatch reach their ports.

Messages that travel together are routed together: all of them to one port, then all to the next. So of two messages for one stage that which comes by
an earlier route stands first there, whatever its place in the dispatch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.plan.stages import StagePort, Targets

UNRANKED = -1


class ArrivalRanks:
    """The ranks of all ports, for each producer, found on demand.

    Args:
      plan: The plan.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        self._pumps = list(plan.graph.pumps)
        ports = [len(stage.ports) for stage in plan.stages]
        self._first_port = np.cumsum([0, *ports])
        self._table = np.full(
            (
                len(self._pumps) + len(plan.stages),
                sum(ports) + 1,
            ),
            UNRANKED,
            np.int16,
        )

    def of(
        self,
        producers: np.ndarray,
        consumers: np.ndarray,
        ports: np.ndarray,
    ) -> np.ndarray:
        """Gives the ranks of ports among all ports that producers' messages reach.

        Args:
          producers: `[n]`: stages, or `-1 - p` for pump `p`.
          consumers: `[n]`: the ports' stages.
          ports: `[n]`: the ports.

        Returns:
          `[n]` int16.
        """
        lines = producers + len(self._pumps)
        columns = self._first_port[consumers] + ports
        ranks = self._table[lines, columns]
        # Ranks are looked up first; a producer's line is filled in when one of its ports is
        # missing.
        if ranks.min(initial=0) == UNRANKED:
            for producer in np.unique(producers[ranks == UNRANKED]).tolist():
                self._find(producer)
            ranks = self._table[lines, columns]
        return ranks

    def _find(self, producer: int) -> None:
        """Fills in a producer's line."""
        plan = self.plan
        if producer < 0:
            routes = [plan.pumps[self._pumps[-1 - producer]]]
        else:
            routes = plan.stages[producer].routes
        for leaf, rank in in_order(routes).items():
            self._table[producer + len(self._pumps), self._first_port[leaf.stage] + leaf.port] = (
                rank
            )


def in_order(routes: Sequence[Targets]) -> dict[StagePort, int]:
    """Numbers the ports that messages reach along some routes, in the order in which the router reaches ports.

    Args:
      routes: The routes of one producer, an output after the other.

    Returns:
      Ranks from 0 on, by port.
    """
    ranks: dict[StagePort, int] = {}
    for route in routes:
        stack = [route]
        seen = set[int]()
        while stack:
            # Last in, first out, as `Router.route` goes: ranks must number ports in its order.
            targets = stack.pop()
            # Routes may lead round a loop of control nodes; each is followed once.
            if id(targets) in seen:
                continue
            seen.add(id(targets))
            for target in targets:
                if isinstance(target, StagePort):
                    ranks.setdefault(target, len(ranks))
                else:
                    stack.extend(target.targets)
    return ranks
