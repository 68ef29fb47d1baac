"""Admits instances: gives each a handle, a program, and host memory for its pumped payloads, and frees all three when the instance has ended."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np

from ampjax.ir.instances import Messages, Topology
from ampjax.plan.passes import PURPOSES
from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.decisions.under_way import UnderWay
from ampjax.sched.layout import columns as c
from ampjax.sched.programs.feeds import Feed
from ampjax.sched.programs.growing import GrowingPrograms
from ampjax.sched.programs.growth_writer import GrowthWriter
from ampjax.sched.programs.program_cache import ProgramCache
from ampjax.sched.pumping import Pumping
from ampjax.sched.tables.scheduler_tables import SchedulerTables
from ampjax.sched.updates.rounds import UpdateRounds
from ampjax.unfold.unfolding import Unfolding


class Admission:
    """Instances from their admission to their end.

    Args:
      plan: The plan.
      settings: The throttle.
      tables: The tables.
      rounds: How many training instances may still enter before the controller's next update.
      loops: The compiled loops.

    Attributes:
      programs: How instances get their programs.
      topologies: Maps of the instances in flight: pump name to instance handle to `Topology`.
      under_way: The dispatches that have been issued and are not done.
    """

    def __init__(
        self,
        plan: Plan,
        settings: SchedulerSettings,
        tables: SchedulerTables,
        rounds: UpdateRounds,
        loops: ModuleType,
    ):
        self._settings = settings
        self._tables = tables
        self._rounds = rounds
        self._loops = loops
        self.programs = ProgramCache(plan, tables.arenas, settings.program_bytes, loops)
        self.topologies: dict[str, dict[int, Topology]] = {}
        self.under_way = UnderWay()
        store = self.programs.store
        unfolder = self.programs.unfolder
        writer = GrowthWriter(plan, tables, store, self.under_way, loops)
        self._growing = GrowingPrograms(tables, store, unfolder, writer)
        self._pumping = Pumping(
            plan,
            tables,
            self.programs,
            self._growing,
            self.topologies,
            loops,
        )
        self._ends = plan.graph.ends
        self._asks = any(stage.route_by is not None for stage in plan.stages)

    @property
    def in_flight(self) -> Mapping[bool, int]:
        """Instances in flight: training (True) and inference (False)."""
        clock = self._tables.t.clock
        return {
            True: int(clock[c.N_TRAIN]),
            False: int(clock[c.N_INFER]),
        }

    def room(self, train: bool = True) -> int:
        """Counts the instances that may be admitted now, by `max_active_keys`, `min_admission`, the controller's next update, and updates that are held back.

        While one is, more instances would make it larger and larger, and none of them would see what follows it.

        Returns:
          How many; 0 if there is room for fewer than `min_admission`.
        """
        clock = self._tables.t.clock
        if train and clock[c.CLOSED] and clock[c.N_TRAIN]:
            return 0
        room = self._settings.max_active_keys - int(clock[c.N_TRAIN if train else c.N_INFER])
        if room < self._settings.min_admission:
            return 0
        return max(0, min(room, self._rounds.room) if train else room)

    def open(
        self,
        ids: np.ndarray,
        purpose: str,
        grows: bool,
    ) -> np.ndarray:
        """Gives instances handles.

        Args:
          ids: `[n]` int64: the instances' numbers.
          purpose: What they are run for, one of `passes.PURPOSES`.
          grows: Whether more may be pumped later.

        Returns:
          `[n]` int64: the handles.
        """
        handles = np.empty(len(ids), np.int64)
        tables = self._tables
        if len(ids):
            tables.reserve_instances(len(ids))
            self._loops.open_all(
                ids, PURPOSES.index(purpose), purpose == "train", handles, *tables.t
            )
        if grows or self._asks:
            self._growing.open(handles, ids, purpose)
        return handles

    def pump(
        self,
        handles: np.ndarray,
        batch: Mapping[str, Messages],
    ) -> list[Feed]:
        """Pumps messages for open instances; see `Scheduler.pump`.

        Args:
          handles: `[n]` int64: the instances' handles.
          batch: Their messages, by pump.

        Returns:
          Where their payloads go.

        Raises:
          MessageError, DeadlockError: As `Scheduler.pump` does.
        """
        if len(handles):
            return self._pumping.pump(handles, batch)
        return []

    def close(self, handles: np.ndarray) -> None:
        """Notes that nothing more will be pumped for some instances.

        Args:
          handles: `[n]`: their handles.
        """
        self._loops.close(
            np.asarray(handles, np.int64),
            *self._tables.t,
        )

    @property
    def foresees(self) -> bool:
        """Whether `foresee` can help: not where payloads decide, since programs are then made while instances are in flight."""
        return not self._asks

    def foresee(
        self,
        ids: np.ndarray,
        batch: Mapping[str, Messages],
        purpose: str = "train",
    ) -> None:
        """Unfolds instances that are to be pumped soon: many together cost little more than one.

        Args:
          ids: `[n]`: the instances' numbers.
          batch: Their messages, by pump.
          purpose: What they will be run for, one of `passes.PURPOSES`.

        Raises:
          MessageError, DeadlockError: As `Scheduler.pump` does.
        """
        if self.foresees:
            self._pumping.find_programs(
                np.asarray(ids, np.int64),
                batch,
                PURPOSES.index(purpose),
            )

    def choose(self, dispatch: Dispatch, choices: np.ndarray | None) -> None:
        """Notes the choices that payloads have made for a dispatch's messages.

        Args:
          dispatch: A dispatch that reads payloads.
          choices: `[n]` or `[n, names]`: what was read; None takes what its node assumes.

        Raises:
          MessageError: If what follows does not fit the graph.
        """
        self._growing.choose(dispatch, choices)

    def take_ended(self) -> list[tuple[int, bool]]:
        """Reports the instances that have ended since this was last called, and frees their handles and programs for others.

        Returns:
          Of each its number, and whether it was a training instance.
        """
        t = self._tables.t
        store = self.programs.store
        if not t.clock[c.N_ENDED]:
            return []
        ended = np.empty(
            (int(t.clock[c.N_ENDED]), 2),
            np.int64,
        )
        for handle in t.ended.tolist() if self._growing.of or self.topologies else ():
            if handle in self._growing.of:
                self._growing.end(handle)
            for maps in self.topologies.values():
                maps.pop(handle, None)
        self._loops.report_ended(ended, store.programs, store.uses, *t)
        self.programs.make_room()
        return list(zip(ended[:, 0].tolist(), ended[:, 1].astype(bool).tolist(), strict=True))

    @property
    def unfoldings(self) -> list[Unfolding]:
        """The unfoldings of instances in flight whose programs grow."""
        return self._growing.unfoldings

    @property
    def may_never_end(self) -> bool:
        """Whether the number of messages still to come is unknown: a payload or a controller decides on more, and no bound of loops is known."""
        return bool(self._growing.of) and not self._ends

    def forget_all(self) -> None:
        """Forgets the instances in flight and frees their programs; the tables still hold the instances."""
        self.programs.release_all()
        self._growing.forget_all()
        self.topologies.clear()
        self.under_way.clear()

    def waits_on(self, worker: int) -> bool:
        """Tells whether a message that a worker is to run has some of its inputs and lacks others."""
        t = self._tables.t
        in_flight = t.instances[np.setdiff1d(np.arange(len(t.instances)), t.vacant)]
        pumped = in_flight[in_flight[:, c.N_INVOCATIONS] > 0]
        for line, live, n in pumped[:, [c.FIRST_LINE, c.FIRST_LIVE, c.N_INVOCATIONS]].tolist():
            lines = t.lines[line : line + n]
            missing = t.live[live : live + n, c.N_MISSING]
            waits = (missing > 0) & (missing < lines[:, c.N_IN])
            if (t.stages[lines[waits, c.STAGE], c.WORKER] == worker).any():
                return True
        return self._growing.waits_on(worker)
