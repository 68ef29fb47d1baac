"""Calls the compiled loops, grows the tables when they are full, and turns the results into dispatches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import NamedTuple

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched import columns as c
from ampjax.sched.decisions.dispatch import DIRECTIONS, Dispatch
from ampjax.sched.decisions.packs import PackMemory
from ampjax.sched.decisions.parameter_changes import Change, Update
from ampjax.sched.tables.plan_tables import longer
from ampjax.sched.tables.program_store import ProgramStore
from ampjax.sched.tables.scheduler_tables import SchedulerTables
from ampjax.sched.updates.counters import ways_of
from ampjax.sched.updates.replica_sync import ReplicaGroups
from ampjax.sched.updates.stashed_weights import WeightStashes
from ampjax.sched.virtual_time import VirtualTime


class _Queue(NamedTuple):
    """What is the same for all dispatches of a queue."""

    stage: int
    direction: str
    n_sections: int
    plain: bool
    """Whether its dispatches have neither edges nor versions."""


class Decisions:
    """Dispatches that have been decided together; each is made of what loops have told when somebody asks for it.

    Args:
      told: `[n, columns]`: what loops have told of them.
      make: Makes them, from a part of that.
    """

    def __init__(self, told: np.ndarray, make: Callable[[np.ndarray], list[Dispatch]]):
        self._told, self._make = told, make

    def __len__(self) -> int:
        return len(self._told)

    def __iter__(self) -> Iterator[Dispatch]:
        return iter(self._make(self._told))

    @property
    def n_messages(self) -> int:
        """Messages in all of them."""
        return int(self._told[:, c.N_MESSAGES].sum())


class Decider:
    """Decides on dispatches.

    Args:
      plan: The plan.
      tables: The tables.
      store: The programs.
      replicas: Which replicas meet when.
      loops: The compiled loops.

    Attributes:
      stashes: The versions that are kept.
    """

    def __init__(
        self, plan: Plan, tables: SchedulerTables, store: ProgramStore, replicas: ReplicaGroups, loops: ModuleType
    ):
        self._tables, self._store, self._replicas, self._loops = tables, store, replicas, loops
        self._nodes, self._ways, self.stashes = list(plan.graph.parameterised), ways_of(plan), WeightStashes()
        self._told, self._pack = np.zeros((2, c.DECIDED_FOR + 1), np.int64), np.zeros(1 << 16, np.int32)
        self._memory = PackMemory()
        self._due = np.zeros((1 + 16 * len(self._nodes), 3), np.int64)
        stashed = tables.t.stages[:, c.STASHES] * (tables.t.stages[:, c.KIND] == c.COMPUTES)
        self._meets = set(np.flatnonzero(tables.t.nodes[:, c.MEETS]).tolist())
        self._stashed = set(np.flatnonzero(stashed).tolist())
        self._queues: list[_Queue] = []
        for stage in plan.stages:
            plain = stage.number not in self._ways and stage.number not in self._stashed
            sections = len(stage.ports) + len(stage.outputs)
            self._queues += [_Queue(stage.number, direction, sections, plain) for direction in DIRECTIONS[:3]]
        self._changes_nothing = not self._meets and all(queue.plain for queue in self._queues)

    def decide(self, worker: int, chosen: int, policy: int, ahead: int) -> list[Dispatch] | int:
        """The next dispatches, at least one, or why there is none: `columns.NOTHING` or `WAITS`. See `loops.decide`."""
        self._make_room(max(1, ahead))
        while True:
            buffers = self._told, self._pack, self._due
            n = self._loops.decide(worker, chosen, policy, ahead, self._tables.spare, *buffers, *self._tables.t)
            if n:
                self._told[:n, c.DECIDED_FOR] = worker
                return self._dispatches(self._told[:n], *self._copied(n))
            if not self._has_made_room():
                return int(self._told[0, c.QUEUE])

    def advance(self, time: VirtualTime, chosen: int, policy: int, most: int) -> Decisions | int:
        """The next dispatches in virtual time, or why there are none and never will be: `columns.NOTHING` or `WAITS`. See `loops.advance`."""
        self._make_room(most)
        rates = time.rates.queues, time.rates.terms, time.rates.updates, time.rates.machine
        while True:
            how = most, chosen, policy, *rates, time.moments, time.workers, self._tables.spare
            n = self._loops.advance(*how, self._told, self._pack, self._due, *self._tables.t)
            if n or self._told[0, c.QUEUE] == 0:
                break
            if not self._has_made_room():
                return int(self._told[0, c.QUEUE])
            chosen = max(chosen, -1)  # that a worker waits has been heeded; a chosen queue has not been taken yet
        told, buffers = self._told[:n].copy(), self._copied(n)
        if not self._changes_nothing:  # what follows from them must be known before more is decided
            made = self._dispatches(told, *buffers)
            return Decisions(told, lambda _: made)
        return Decisions(told, lambda told: self._dispatches(told, *buffers))

    def _make_room(self, n: int) -> None:
        """Makes buffers in which `n` dispatches can be told of."""
        self._told = longer(self._told, n + 1)

    def _has_made_room(self) -> bool:
        """Whether the loops had no room to tell of the next dispatch, or for its rows, and have it now."""
        reason, need = int(self._told[0, c.QUEUE]), int(self._told[0, c.N_ROWS_IN])
        if reason == c.ARENA_FULL:
            self._tables.grow_arena(int(self._told[0, c.N_MESSAGES]), need)
        elif reason == c.BUFFER_FULL:
            self._pack = longer(self._pack, need)
        return reason in (c.ARENA_FULL, c.BUFFER_FULL)

    def _copied(self, n: int) -> tuple[np.ndarray, int, np.ndarray]:
        """What loops have written of the first `n` dispatches: memory with their packs, one behind the other; where these begin in it; and their updates."""
        if not n:
            return self._pack[:0], 0, self._due[:0]
        last = self._told[n - 1]
        packs, start = self._memory.keep(self._pack[: last[c.PACK] + last[c.N_PACK]])
        return packs, start, self._due[: last[c.DUE] + last[c.N_DUE]].copy()

    def _dispatches(self, told: np.ndarray, packs: np.ndarray, start: int, due: np.ndarray) -> list[Dispatch]:
        """What has been told of some dispatches, as dispatches."""
        found, updates = list[Dispatch](), due.tolist()
        for q, number, n, rows, n_due, first, at, length, size, worker in told.tolist():
            stage, direction, n_sections, plain = self._queues[q]
            changes = self._changes(updates[first : first + n_due]) if n_due else ()
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
            edges = self._tables.t.edges[places, self._ways[stage]].sum(axis=0)
            dispatch = dispatch._replace(edges=tuple(edges.tolist()))
        return self.stashes.told(self._tables.t, dispatch) if stage in self._stashed else dispatch

    def _changes(self, due: list[list[int]]) -> tuple[Change, ...]:
        """Updates that are due, and what follows them."""
        changes: list[Change] = []
        for number, count, stale in due:
            node = self._nodes[number]
            changes.append(Update(node, count, stale / count))
            if number in self._meets:
                changes += self._replicas.after(node)
        return tuple(changes)
