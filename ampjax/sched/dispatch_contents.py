"""Looks up a dispatch's states, message sizes, edges and scatter maps.

A `Dispatch` names a stage and holds slots. What else there is to know about its messages stands in programs and topologies.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ampjax.ir.instances import Topology
from ampjax.ir.state import HANDLE, INSTANCE
from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import BACKWARD, Dispatch, brings_gradients
from ampjax.sched.layout import columns as c
from ampjax.sched.tables.program_store import ProgramStore
from ampjax.sched.tables.scheduler_tables import SchedulerTables
from ampjax.unfold.rules.edges import DispatchEdges, EdgeIndex
from ampjax.unfold.rules.routes import find_topology


class DispatchContents:
    """The contents of dispatches; to be asked when a dispatch has been decided, before more is admitted.

    Args:
      plan: The plan.
      store: The programs.
      topologies: Maps of the instances in flight: pump name to instance handle to `Topology`.
      tables: The tables.
    """

    def __init__(
        self,
        plan: Plan,
        store: ProgramStore,
        topologies: Mapping[str, Mapping[int, Topology]],
        tables: SchedulerTables,
    ):
        self._plan = plan
        self._store = store
        self._topologies = topologies
        self._tables = tables
        self._asks = {stage.number for stage in plan.stages if stage.route_by is not None}
        edges = {}
        for s in plan.stages:
            if s.chain is not None:
                edges[s.number] = EdgeIndex(s, topologies)
        self._edges = edges

    def reads(self, dispatch: Dispatch) -> bool:
        """Tells whether payloads must be read back to the host before a dispatch's messages travel on."""
        return dispatch.stage in self._asks and dispatch.direction != BACKWARD

    def messages_of(self, dispatch: Dispatch) -> tuple[int, np.ndarray]:
        """Gives the numbers under which recordings know a dispatch's messages.

        Returns:
          Its stage, and `[n, 1 + fields]` int64: the instances and state fields of its messages.
        """
        return dispatch.stage, np.column_stack([dispatch.ids, self._store.states(dispatch.lines)])

    def states(self, d: Dispatch) -> np.ndarray:
        """Gives the states of a dispatch's messages.

        Returns:
          `[n, width]` int64.
        """
        states = np.zeros(
            (d.n_messages, self._plan.layout.width),
            np.int64,
        )
        states[:, INSTANCE] = d.ids
        states[:, HANDLE] = self._handles(d)
        states[:, HANDLE + 1 :] = self._store.states(d.lines)
        return states

    def sizes(self, d: Dispatch) -> np.ndarray | None:
        """Gives the rows of a dispatch's messages.

        Returns:
          `[n]` int64; None where each message has one row.
        """
        if self._plan.stages[d.stage].ragged:
            return self._column(d, c.IN_ROWS)
        return None

    def edges(self, d: Dispatch) -> DispatchEdges | None:
        """Gives the edges of a dispatch's messages.

        Returns:
          The edges; None if its stage is no chain.

        Raises:
          MessageError: If a topology does not fit the graph, or the rows of its message.
        """
        index = self._edges.get(d.stage)
        if index is None:
            return None
        return index.of(
            self._handles(d),
            self._column(d, c.IN_ROWS),
        )

    def gradients(
        self,
        d: Dispatch,
    ) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """Gives the shares of each message of a dispatch in the gradients of its stage's nodes.

        Returns:
          For each parameterised node of its stage, by the name under which its parameters are known, the versions `[n]` that the messages
          have seen and how many gradient rows `[n]` each of them brings; nothing for a dispatch that brings none.
        """
        if not brings_gradients(self._plan.stages[d.stage], d):
            return []
        t = self._tables.t
        nodes = list(self._plan.graph.parameterised)
        first, n = t.stages[d.stage, [c.PARAMS, c.N_PARAMS]].tolist()
        shares = []
        for place, (node, edge_type) in enumerate(t.params[first : first + n].tolist()):
            rows = self._column(
                d,
                c.OUT_ROWS if edge_type == c.OF_OUTPUT else c.IN_ROWS,
            )
            if edge_type >= 0:
                rows = t.edges[t.instances[self._handles(d), c.PROGRAM], edge_type].astype(np.int64)
            shares.append((nodes[node], t.live[d.messages, c.SEEN + place], rows))
        return shares

    def scatter(self, d: Dispatch) -> list[np.ndarray]:
        """Gives the scatter maps of a collect's dispatch.

        Returns:
          For each port the rows `[n]`, counted through the dispatch's output rows, to which its input rows are added; none for other stages.
        """
        stage = self._plan.stages[d.stage]
        if not stage.kind.collects:
            return []
        handles = self._handles(d).tolist()
        maps = []
        for handle in handles:
            maps.append(
                find_topology(
                    stage.nodes[0],
                    str(stage.topology),
                    self._topologies,
                    handle,
                )
            )
        starts = np.cumsum([0, *(one.n_rows for one in maps)])
        result = []
        for port in range(len(stage.ports)):
            result.append(
                np.concatenate(
                    [one.scatter[port] + start for one, start in zip(maps, starts, strict=False)]
                )
            )
        return result

    def _handles(self, d: Dispatch) -> np.ndarray:
        """`[n]`: the handles of its messages' instances."""
        return self._tables.t.live[d.messages, c.HANDLE]

    def _column(self, d: Dispatch, column: int) -> np.ndarray:
        return self._tables.t.lines[d.lines, column].astype(np.int64)
