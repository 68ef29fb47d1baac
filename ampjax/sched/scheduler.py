"""The scheduler: a pure state machine. Events in (instances pumped, dispatch done), actions out (dispatch this batch).

It knows nothing of JAX, asyncio or clocks, and reads no state: what will happen is known from programs.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from types import ModuleType

import numpy as np

from ampjax.ir.instances import Messages
from ampjax.plan.planner import Plan
from ampjax.sched.abandon import forget_all
from ampjax.sched.admission import Admission
from ampjax.sched.choosing.policy_numbers import BY_ASKING
from ampjax.sched.choosing.ready_queues import ReadyQueues
from ampjax.sched.decider import Decider
from ampjax.sched.decisions.decided_lines import Decisions
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.diagnose.dispatch_log import DispatchLog
from ampjax.sched.diagnose.invariants import check as check_laws
from ampjax.sched.diagnose.snapshot import Snapshot
from ampjax.sched.diagnose.statistics import RunCounts
from ampjax.sched.dispatch_contents import DispatchContents
from ampjax.sched.layout import columns as c
from ampjax.sched.programs.feeds import Feed
from ampjax.sched.tables.scheduler_tables import SchedulerTables
from ampjax.sched.updates.counters import UpdateCounters
from ampjax.sched.updates.rounds import UpdateRounds
from ampjax.sched.virtual_time import VirtualClock


@functools.cache
def loops() -> ModuleType:
    """Gives the compiled loops. Numba takes a while to be imported, so that waits until a scheduler is made.

    Returns:
      The package `sched.loops`.
    """
    from ampjax.sched import loops as module

    return module


class Scheduler:
    """The state machine. It takes events and gives actions; its parts, which are attributes, answer questions.

    Args:
      plan: The graph, cut into stages.
      settings: Throttle, intervals, policy, limits.
      check: True checks the invariants after every event (slow; for tests).

    Attributes:
      tables: The tables, and the sizes of arenas.
      admission: The instances: how many may enter, which are in flight, their programs.
      queues: What waits for each worker, and the policy.
      rounds: Updates by the controller: at the end of rounds, of data and of epochs.
      updates: Versions of nodes, and the gradients that they have counted since.
      contents: What is in dispatches.
      counts: Statistics.
    """

    def __init__(self, plan: Plan, settings: SchedulerSettings, check: bool = False):
        self.plan = plan
        self.settings = settings
        self._check = check
        self.tables = SchedulerTables(plan, settings)
        self.rounds = UpdateRounds(plan, settings, self.tables)
        self.updates = UpdateCounters(plan, self.tables.t.nodes, self.rounds)
        self.counts = RunCounts(plan, self.tables)
        self.admission = Admission(
            plan,
            settings,
            self.tables,
            self.rounds,
            loops(),
        )
        self.queues = ReadyQueues(
            plan,
            self.tables,
            settings.policy,
            loops(),
            snapshot=self.snapshot,
            moves=lambda: bool(self.admission.under_way or self.rounds.changes),
            has_partial_inputs=self.admission.waits_on,
        )
        store = self.admission.programs.store
        self.contents = DispatchContents(plan, store, self.admission.topologies, self.tables)
        self._decider = Decider(
            plan,
            self.tables,
            store,
            self.queues,
            self.rounds,
            loops(),
            settings,
        )
        self._log: DispatchLog[Dispatch] = DispatchLog(settings.history)

    # -- events

    def open(
        self,
        ids: np.ndarray,
        purpose: str = "train",
        may_update: bool = True,
        grows: bool = False,
    ) -> np.ndarray:
        """Admits instances that will be pumped to. `close` the instances when everything has been pumped.

        Args:
          ids: `[n]`: the instances' numbers.
          purpose: What they are run for, one of `passes.PURPOSES`: what only another purpose needs is left out.
          may_update: Whether training may change parameters; gradients are counted all the same.
          grows: Whether more may be pumped later, as user-written controllers do.

        Returns:
          `[n]` int64: their handles, which are used again when they have ended.
        """
        if purpose == "train":
            goes_on = may_update and not self.rounds.may_update
            self.rounds.begin(len(ids), may_update)
            if goes_on:
                self.updates.note_overdue()
        return self.admission.open(
            np.asarray(ids, np.int64),
            purpose,
            grows,
        )

    def pump(
        self,
        handles: np.ndarray,
        batch: Mapping[str, Messages],
    ) -> list[Feed]:
        """Pumps messages for open instances.

        Args:
          handles: `[n]`: the instances' handles; `Messages.instance` counts positions in it.
          batch: Their messages, by pump.

        Returns:
          Where the driver must put their payloads: after the dispatches so far have read theirs, before the next one does.

        Raises:
          MessageError: If a pump is unknown, a message, a state function's result or a topology does not fit, or an instance seems never to end.
          DeadlockError: If messages of an instance for which no more is pumped wait for others that never come.
        """
        feeds = self.admission.pump(
            np.asarray(handles, np.int64),
            batch,
        )
        self._settle()
        return feeds

    def close(self, handles: np.ndarray) -> None:
        """Notes that nothing more will be pumped for some instances.

        Args:
          handles: `[n]`: their handles.
        """
        self.admission.close(handles)
        self._settle()

    def done(
        self,
        dispatch: Dispatch,
        choices: np.ndarray | None = None,
    ) -> None:
        """Lets a dispatch's messages travel on: called by a driver at once (order on a device is enough), or when the dispatch has ended.

        Args:
          dispatch: The dispatch.
          choices: `[n]` or `[n, names]`: what was read from the payloads of one that `contents.reads`; None takes what its node assumes.

        Raises:
          MessageError: If what follows from the choices does not fit the graph.
        """
        dispatch = self.admission.under_way[dispatch.number]
        if self.contents.reads(dispatch):
            self.admission.choose(dispatch, choices)
        del self.admission.under_way[dispatch.number]
        self._decider.travel(dispatch)
        self._settle()

    def resize(self, settings: SchedulerSettings) -> None:
        """Takes new arena sizes and limits; nothing may be in flight.

        Args:
          settings: The settings so far, with other sizes and limits.
        """
        self.settings = settings
        self.tables.size_arenas(settings)

    def abandon(self) -> list[Dispatch]:
        """Forgets everything in flight (after an interrupt or an error). What nodes have accumulated stays counted, and programs stay known.

        Returns:
          The parameter changes that were due, and held back or not asked for yet. Their gradients count as used, so they must still be made.
        """
        due = self.rounds.abandon()
        self.admission.forget_all()
        forget_all(self.tables.t, self.tables.capacities)
        self._decider.forget_all()
        return due

    # -- actions

    def next(self, worker: int) -> Dispatch | None:
        """Gives a worker's next action, which is then under way.

        Returns:
          The action, or None if there is none now.
        """
        dispatches = self._decider.decide(worker, 0)
        if not dispatches:
            return None
        self.admission.under_way[dispatches[0].number] = dispatches[0]
        self._log.append(dispatches[0])
        return dispatches[0]

    def ahead(self, worker: int, most: int) -> list[Dispatch]:
        """Gives a worker's next actions, each done as soon as decided.

        Args:
          worker: The worker.
          most: How many, at most.

        Returns:
          The actions: fewer than `most` where an instance ends, or nothing is ready. One that reads payloads is the last and is not done: `done`
          follows when they have been read.
        """
        if self.admission.under_way or worker in self.rounds.changes:
            dispatch = self.next(worker)
            if dispatch is None:
                return []
            if not self.contents.reads(dispatch):
                self.done(dispatch)
            return [dispatch]
        dispatches = self._decider.decide(worker, most)
        if dispatches and self.contents.reads(dispatches[-1]):
            self.admission.under_way[dispatches[-1].number] = dispatches[-1]
        self._log.extend(tuple(dispatches))
        self._settle()
        return dispatches

    @property
    def foresees(self) -> bool:
        """Whether nobody outside, and no law that is checked, must be asked between two dispatches. Then `advance` can be used, if the controller's parameter changes are taken before each call."""
        return self.queues.number != BY_ASKING and self.admission.foresees and not self._check

    @property
    def decides_alone(self) -> bool:
        """Whether `advance` can be used, as the controller changes no parameters."""
        return self.foresees and self.settings.flush_every is None and not self.rounds.changes

    def advance(self, time: VirtualClock, most: int) -> Decisions | None:
        """Lets virtual time go on until more dispatches have been decided, or instances have ended. Those that have ended meanwhile are done.

        Args:
          time: The time, and who is busy.
          most: How many dispatches, at most.

        Returns:
          The dispatches. None if no worker has anything to do: then `take_ended` may have more to tell, or instances can be admitted.
        """
        decisions = self._decider.advance(time, most)
        if decisions is not None:
            self._log.extend(decisions)
        self._settle()
        return decisions

    # -- questions

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and no action is left."""
        clock = self.tables.t.clock
        return not (
            clock[c.N_TRAIN] or clock[c.N_INFER] or self.rounds.changes or self.admission.under_way
        )

    def can_move(self, worker: int | None = None) -> bool:
        """Tells whether there is an action.

        Args:
          worker: Whose; None for that of any worker, or one that is under way.
        """
        if worker is not None:
            return self._decider.can_move(worker)
        return bool(self.admission.under_way) or any(
            map(self._decider.can_move, range(self.plan.workers))
        )

    def snapshot(self) -> Snapshot:
        """Gives the scheduler's parts that stories and diagnoses read.

        Returns:
          The scheduler's parts as they are now; they hold until the next event.
        """
        return Snapshot(
            plan=self.plan,
            settings=replace(self.settings, policy=self.queues.policy),
            tables=self.tables.t,
            store=self.admission.programs.store,
            capacities=self.tables.capacities,
            log=self._log,
            under_way=[*self.admission.under_way.values(), *self._decider.under_way],
            unfoldings=self.admission.unfoldings,
            overdue=self.updates.overdue,
        )

    def _settle(self) -> None:
        """Ends a round whose instances have all ended, and checks the laws."""
        self.rounds.settle()
        if self._check:
            check_laws(self.snapshot())
