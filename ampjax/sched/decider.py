"""The decider: calls the compiled loops, grows tables and buffers when full, and asks policies that are not compiled."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched.choosing.policy_numbers import BY_ASKING
from ampjax.sched.choosing.ready_queues import NO_QUEUE, ReadyQueues
from ampjax.sched.decisions.decided_lines import DecidedLines, Decisions
from ampjax.sched.decisions.dispatch import DIRECTIONS, Dispatch
from ampjax.sched.decisions.packs import PackMemory
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.layout import columns as c
from ampjax.sched.make_dispatches import DispatchMaker
from ampjax.sched.tables.plan_tables import lengthen_table
from ampjax.sched.tables.program_store import ProgramStore
from ampjax.sched.tables.scheduler_tables import SchedulerTables
from ampjax.sched.updates.rounds import UpdateRounds
from ampjax.sched.virtual_time import VirtualClock


class Decider:
    """Decides on dispatches.

    Args:
      plan: The plan.
      tables: The tables.
      store: The programs.
      queues: The queues, and the policy.
      rounds: The controller's parameter changes.
      loops: The compiled loops.
      settings: The scheduler's.
    """

    def __init__(
        self,
        plan: Plan,
        tables: SchedulerTables,
        store: ProgramStore,
        queues: ReadyQueues,
        rounds: UpdateRounds,
        loops: ModuleType,
        settings: SchedulerSettings,
    ):
        self._tables = tables
        self._queues = queues
        self._loops = loops
        self._pending = rounds.changes
        self._maker = DispatchMaker(plan, tables, store, rounds.replicas, settings)
        self._memory = PackMemory()
        self._time = None
        self._lines = np.zeros(
            (2, c.DECIDED_FOR + 1),
            np.int64,
        )
        self._pack = np.zeros(1 << 16, np.int32)
        self._due = np.zeros(
            (1 + 16 * len(plan.graph.parameterised), 4),
            np.int64,
        )

    def decide(self, worker: int, ahead: int) -> list[Dispatch]:
        """Decides on a worker's next dispatch, or on several that are done as soon as decided.

        Args:
          worker: The worker.
          ahead: How many, at most, that are done at once; 0 for one that is not.

        Returns:
          The dispatches; none if there is nothing to do for the worker now.
        """
        if worker in self._pending:
            return [self._pending.next(self._tables.t, worker)]
        chosen = NO_QUEUE
        if self._queues.number == BY_ASKING:
            chosen = self._queues.pick(worker)
            ahead = min(ahead, 1)
            if chosen == NO_QUEUE:
                return []
        while isinstance(dispatches := self._run_decide(worker, chosen, ahead), int):
            if (
                dispatches == c.NOTHING
                or (chosen := self._queues.pick_if_all_wait(worker)) == NO_QUEUE
            ):
                return []
        return dispatches

    def advance(self, time: VirtualClock, most: int) -> Decisions | None:
        """Lets virtual time go on until more dispatches have been decided, or instances have ended.

        Args:
          time: The time, and who is busy.
          most: How many dispatches, at most.

        Returns:
          The dispatches; None if no worker has anything to do.
        """
        chosen = NO_QUEUE
        self._time = time
        while isinstance(decisions := self._run_advance(time, chosen, most), int):
            if decisions == c.NOTHING:
                return None
            chosen = self._queues.pick_if_all_wait(time.next_asked)
            chosen = c.WAITS if chosen == NO_QUEUE else chosen
        return decisions

    def can_move(self, worker: int) -> bool:
        """Tells whether a worker has an action."""
        return worker in self._pending or self._queues.pick(worker) != NO_QUEUE

    def travel(self, dispatch: Dispatch) -> None:
        """Lets the messages of a dispatch travel on, or be answered."""
        if dispatch.stage >= 0:
            self._loops.done(
                dispatch.messages, DIRECTIONS.index(dispatch.direction), *self._tables.t
            )

    @property
    def under_way(self) -> list[Dispatch]:
        """The dispatches that workers are busy with in virtual time, with the fields that stories read."""
        if self._time is None:
            return []
        return self._time.under_way(self._tables.t)

    def forget_all(self) -> None:
        """Notes that nothing is in flight."""
        self._maker.stashes.clear()
        self._queues.forget_all()
        self._time = None

    def _run_decide(
        self,
        worker: int,
        chosen: int,
        ahead: int,
    ) -> list[Dispatch] | int:
        """The next dispatches, at least one, or why there is none: `columns.NOTHING` or `WAITS`. See `loops.decide`."""
        self._lines = lengthen_table(self._lines, max(1, ahead) + 1)
        while True:
            buffers = self._lines, self._pack, self._due
            how = worker, chosen, self._queues.number, ahead, self._tables.spare
            n = self._loops.decide(
                *how,
                *buffers,
                *self._tables.t,
            )
            if n:
                self._lines[:n, c.DECIDED_FOR] = worker
                return self._maker.make(self._copy_lines(self._lines[:n]))
            if not self._has_made_room():
                return int(self._lines[0, c.QUEUE])

    def _run_advance(
        self,
        time: VirtualClock,
        chosen: int,
        most: int,
    ) -> Decisions | int:
        """The next dispatches in virtual time, or why there are none and never will be: `columns.NOTHING` or `WAITS`. See `loops.advance`."""
        self._lines = lengthen_table(self._lines, most + 1)
        while True:
            how = (
                most,
                chosen,
                self._queues.number,
                *time.rates,
                time.moments,
                time.workers,
                self._tables.spare,
            )
            n = self._loops.advance(
                *how,
                self._lines,
                self._pack,
                self._due,
                *self._tables.t,
            )
            if n or self._lines[0, c.QUEUE] == 0:
                break
            if self._lines[0, c.QUEUE] == c.LINKS_FULL:
                time.make_room()
            elif not self._has_made_room():
                return int(self._lines[0, c.QUEUE])
            chosen = max(
                chosen, NO_QUEUE
            )  # that a worker waits has been heeded; a chosen queue has not been taken yet
        decided = self._copy_lines(self._lines[:n].copy())
        if self._maker.has_effects:  # these must be known before more is decided
            dispatches = self._maker.make(decided)
            return Decisions(decided, lambda: dispatches, False)
        return Decisions(decided, lambda: self._maker.make(decided), True)

    def _has_made_room(self) -> bool:
        """Grows the arena or buffer that was too small for the next dispatch; returns whether one was."""
        reason = int(self._lines[0, c.QUEUE])
        need = int(self._lines[0, c.N_ROWS_IN])
        if reason == c.ARENA_FULL:
            self._tables.grow_arena(
                int(self._lines[0, c.N_MESSAGES]),
                need,
            )
        elif reason == c.BUFFER_FULL:
            self._pack = lengthen_table(self._pack, need)
        return reason in (c.ARENA_FULL, c.BUFFER_FULL)

    def _copy_lines(self, lines: np.ndarray) -> DecidedLines:
        """The arrays that loops have written about some dispatches; except for `lines`, their memory is not written to again."""
        if not len(lines):
            return DecidedLines(
                lines,
                self._pack[:0],
                0,
                self._due[:0],
            )
        last = lines[-1]
        packs, start = self._memory.keep(self._pack[: last[c.PACK] + last[c.N_PACK]])
        return DecidedLines(
            lines,
            packs,
            start,
            self._due[: last[c.DUE] + last[c.N_DUE]].copy(),
        )
