"""Turns the lines that compiled loops have written into dispatches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched.decisions.decided_lines import DecidedLines
from ampjax.sched.decisions.dispatch import DIRECTIONS, Dispatch
from ampjax.sched.decisions.parameter_changes import Change, Update
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.layout import columns as c
from ampjax.sched.tables.program_store import ProgramStore
from ampjax.sched.tables.scheduler_tables import SchedulerTables
from ampjax.sched.updates.counters import edge_columns
from ampjax.sched.updates.replica_sync import ReplicaGroups
from ampjax.sched.updates.stashed_weights import WeightStashes
from ampjax.sched.updates.weight_ages import WeightAges


class _QueueTraits(NamedTuple):
    """The properties that all dispatches of a queue share."""

    stage: int
    direction: str
    n_sections: int
    plain: bool
    """Whether its dispatches have neither edges nor versions nor a staleness."""


class DispatchMaker:
    """Makes dispatches from the lines of loops.

    Args:
      plan: The plan.
      tables: The tables.
      store: The programs.
      replicas: Which replicas are averaged when.
      settings: Which nodes estimate their weights, and which drop gradients.

    Attributes:
      stashes: The parameter versions that messages in flight still need.
      has_effects: Whether making a dispatch changes anything, so that it can't be put off.
    """

    def __init__(
        self,
        plan: Plan,
        tables: SchedulerTables,
        store: ProgramStore,
        replicas: ReplicaGroups,
        settings: SchedulerSettings,
    ):
        self._tables = tables
        self._store = store
        self._replicas = replicas
        self._nodes = list(plan.graph.parameterised)
        self._edge_columns = edge_columns(plan)
        self.stashes = WeightStashes()
        stashed = tables.t.stages[:, c.STASHES] * (tables.t.stages[:, c.KIND] == c.COMPUTES)
        self._stashed = set(np.flatnonzero(stashed).tolist())
        self._ages = WeightAges(plan, settings.estimated, settings.stalest, tables)
        special = self._edge_columns.keys() | self._stashed | self._ages.stages
        self._meets = set(np.flatnonzero(tables.t.nodes[:, c.MEETS]).tolist())
        self._queues: list[_QueueTraits] = []
        for stage in plan.stages:
            plain = stage.number not in special
            sections = len(stage.ports) + len(stage.outputs)
            self._queues += [
                _QueueTraits(stage.number, direction, sections, plain)
                for direction in DIRECTIONS[: c.N_DIRECTIONS]
            ]
        self.has_effects = bool(self._meets) or not all(queue.plain for queue in self._queues)

    def make(self, decided: DecidedLines) -> list[Dispatch]:
        """Makes dispatches.

        Args:
          decided: What loops have written about them.

        Returns:
          The dispatches, in the order in which they were decided.
        """
        dispatches = list[Dispatch]()
        updates = decided.due.tolist()
        packs = decided.packs
        self._ages.begin(decided.due)
        for q, number, n, rows, n_due, first, at, length, size, worker in decided.lines.tolist():
            stage, direction, n_sections, plain = self._queues[q]
            if n_due:
                changes = self._changes(updates[first : first + n_due])
            else:
                changes = ()
            at += decided.start
            pack = packs[at : at + length]
            dispatch = Dispatch(
                number,
                worker,
                stage,
                direction,
                n,
                rows,
                n_sections,
                pack,
                size,
                at,
                changes,
            )
            dispatches.append(dispatch if plain else self._complete(dispatch))
            self._ages.update(updates[first : first + n_due])
        return dispatches

    def _complete(self, dispatch: Dispatch) -> Dispatch:
        """Completes a dispatch with its edges, versions, staleness and dropped nodes."""
        stage = dispatch.stage
        if stage in self._edge_columns:
            places = self._store.find(dispatch.lines)[0]
            edges = self._tables.t.edges[places, self._edge_columns[stage]].sum(axis=0)
            dispatch = dispatch._replace(edges=tuple(edges.tolist()))
        if stage in self._ages.stages:
            dispatch = self._ages.with_ages(dispatch)
        if stage in self._stashed:
            return self.stashes.with_versions(self._tables.t, dispatch)
        return dispatch

    def _changes(
        self,
        due: list[list[int]],
    ) -> tuple[Change, ...]:
        """Makes the changes for updates that are due, with the averages that follow."""
        changes: list[Change] = []
        for number, count, stale, version in due:
            node = self._nodes[number]
            changes.append(Update(node, count, stale / count, version))
            if number in self._meets:
                changes += self._replicas.after(node)
        return tuple(changes)
