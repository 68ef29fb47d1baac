"""A dispatch with all that an executor reads: the same integers as columns, and the edges and maps of the instances in it.

A `schedule.Dispatch` names a stage and holds slots. What else there is to know about its messages stands in programs and topologies.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ampjax.ir.instances import Topology
from ampjax.ir.state import INSTANCE, SLOT
from ampjax.sched.dispatch import Dispatch as FullDispatch
from ampjax.sched.edges import EdgeIndex
from ampjax.sched.plan import Plan
from ampjax.sched.route import find_topology
from ampjax.sched.stages import Stage
from ampjax.schedule import columns as c
from ampjax.schedule.columns import Tables
from ampjax.schedule.dispatch import DIRECTIONS, Dispatch
from ampjax.schedule.store import Store

NONE = np.zeros(0, np.int64)


class Completion:
    """Completes dispatches. Ask for one while its instances are in flight: before anything else is admitted.

    Args:
      plan: The plan.
      store: The programs.
      topologies: Maps of the instances in flight: pump name to instance slot to `Topology`.
    """

    def __init__(self, plan: Plan, store: Store, topologies: Mapping[str, Mapping[int, Topology]]):
        self._plan, self._store, self._topologies = plan, store, topologies
        self._edges = {s.number: EdgeIndex(s, topologies) for s in plan.stages if s.chain is not None}

    def of(self, t: Tables, d: Dispatch) -> FullDispatch:
        """The dispatch as executors take it; `cells` are its messages, `inputs` are left out.

        Args:
          t: The tables.
          d: The dispatch.
        """
        states = np.zeros((d.n_messages, self._plan.layout.width), np.int64)
        if d.stage < 0:
            return FullDispatch(d.number, d.worker, None, d.direction, states, NONE, NONE, changes=d.changes)
        stage = self._plan.stages[d.stage]
        states[:, INSTANCE], states[:, SLOT] = d.ids, t.live[d.messages, c.SLOT]
        states[:, SLOT + 1 :] = self._store.states(d.lines)
        rows, n_ports = d.rows, len(stage.ports)
        full = FullDispatch(d.number, d.worker, stage, d.direction, states, d.messages, NONE, rows[:n_ports])
        full.n_rows, full.changes, full.versions = d.n_rows, d.changes, d.versions
        full.drop = tuple((d.stage, versions) for versions in d.drop)
        full.out_rows = rows[n_ports:]
        if stage.ragged:
            full.sizes = t.lines[d.lines, c.ROWS].astype(np.int64)
        goes_forth = d.direction != DIRECTIONS[c.BACKWARD]
        if goes_forth and stage.outputs and stage.outputs[0].ragged:
            full.out_sizes = t.lines[d.lines, c.SIZE].astype(np.int64)
        if stage.chain is not None and full.sizes is not None:
            full.edges = self._edges[d.stage].of(states, full.sizes)
        if stage.kind == "collect":
            full.scatter = [self._scatter(stage, port, states[:, SLOT]) for port in range(n_ports)]
        return full

    def _scatter(self, stage: Stage, port: int, slots: np.ndarray) -> np.ndarray:
        """Where a collect's input rows go, counting through the dispatch's output rows."""
        parts, start = [], 0
        for slot in slots.tolist():
            maps = find_topology(stage.nodes[0], str(stage.topology), self._topologies, slot)
            parts.append(maps.scatter[port] + start)
            start += maps.n_rows
        return np.concatenate(parts)
