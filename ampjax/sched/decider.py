"""Deciding: the loops are asked, have room made for them, and what they tell becomes dispatches."""

from __future__ import annotations

from types import ModuleType
from typing import NamedTuple

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched import columns as c
from ampjax.sched.decisions.dispatch import DIRECTIONS, Dispatch
from ampjax.sched.decisions.packs import PackMemory
from ampjax.sched.decisions.parameter_changes import Change, Update
from ampjax.sched.tables.plan_tables import longer
from ampjax.sched.tables.program_store import Store
from ampjax.sched.tables.space import Space
from ampjax.sched.updates.counters import ways_of
from ampjax.sched.updates.replica_sync import Replicas
from ampjax.sched.updates.stashed_weights import Stashes


class _Queue(NamedTuple):
    """What is the same for all dispatches of a queue."""

    stage: int
    direction: str
    n_sections: int
    plain: bool
    """Whether its dispatches have neither edges nor versions."""


class Decider:
    """Decides on dispatches.

    Args:
      plan: The plan.
      space: The tables.
      store: The programs.
      replicas: Which replicas meet when.
      loops: The compiled loops.

    Attributes:
      stashes: The versions that are kept.
    """

    def __init__(self, plan: Plan, space: Space, store: Store, replicas: Replicas, loops: ModuleType):
        self._space, self._store, self._replicas, self._loops = space, store, replicas, loops
        self._nodes, self._ways, self.stashes = list(plan.graph.parameterised), ways_of(plan), Stashes()
        self._told, self._pack = np.zeros((2, c.PADDED + 1), np.int64), np.zeros(1 << 16, np.int32)
        self._memory = PackMemory()
        self._due = np.zeros((1 + 16 * len(self._nodes), 3), np.int64)
        stashed = space.t.stages[:, c.STASHES] * (space.t.stages[:, c.KIND] == c.COMPUTES)
        self._meets = set(np.flatnonzero(space.t.nodes[:, c.MEETS]).tolist())
        self._stashed = set(np.flatnonzero(stashed).tolist())
        self._queues: list[_Queue] = []
        for stage in plan.stages:
            plain = stage.number not in self._ways and stage.number not in self._stashed
            sections = len(stage.ports) + len(stage.outputs)
            self._queues += [_Queue(stage.number, direction, sections, plain) for direction in DIRECTIONS[:3]]

    def decide(self, worker: int, chosen: int, policy: int, ahead: int) -> list[Dispatch] | int:
        """The next dispatches, at least one, or why there is none: `columns.NOTHING` or `WAITS`. See `loops.decide`."""
        while len(self._told) <= max(1, ahead):
            self._told = longer(self._told, 2 * ahead)
        while True:
            buffers = self._told, self._pack, self._due
            n = self._loops.decide(worker, chosen, policy, ahead, self._space.spare, *buffers, *self._space.t)
            if n:
                return self._dispatches(worker, self._told[:n].tolist())
            reason, need = int(self._told[0, c.Q]), int(self._told[0, c.N_ROWS_IN])
            if reason == c.NO_SLOTS:
                self._space.grow_arena(int(self._told[0, c.N_MESSAGES]), need)
            elif reason == c.NO_ROOM:
                self._pack = longer(self._pack, need)
            else:
                return reason

    def _dispatches(self, worker: int, told: list[list[int]]) -> list[Dispatch]:
        """What has been told of some dispatches, as dispatches; their packs lie one behind the other."""
        end = told[-1][c.PACK] + told[-1][c.N_PACK]
        packs, start = self._memory.keep(self._pack[:end])
        due = self._due[: told[-1][c.DUE] + told[-1][c.N_DUE]].tolist()
        found: list[Dispatch] = []
        for q, number, n, rows, n_due, first, at, length, size in told:
            stage, direction, n_sections, plain = self._queues[q]
            changes = self._changes(due[first : first + n_due]) if n_due else ()
            at += start
            own = packs[at : at + length]
            dispatch = Dispatch(number, worker, stage, direction, n, rows, n_sections, own, size, at, changes)
            found.append(dispatch if plain else self._completed(dispatch))
        return found

    def _completed(self, dispatch: Dispatch) -> Dispatch:
        """A dispatch with its edges and versions."""
        stage = dispatch.stage
        if stage in self._ways:
            places = self._store.find(dispatch.lines)[0]
            edges = self._space.t.edges[places, self._ways[stage]].sum(axis=0)
            dispatch = dispatch._replace(edges=tuple(edges.tolist()))
        return self.stashes.told(self._space.t, dispatch) if stage in self._stashed else dispatch

    def _changes(self, due: list[list[int]]) -> tuple[Change, ...]:
        """Updates that are due, and what follows them."""
        changes: list[Change] = []
        for number, count, stale in due:
            node = self._nodes[number]
            changes.append(Update(node, count, stale / count))
            if number in self._meets:
                changes += self._replicas.after(node)
        return tuple(changes)
