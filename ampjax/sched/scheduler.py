"""The scheduler: a pure state machine. Events in (instances pumped, dispatch done), actions out (dispatch this batch).

It knows nothing of JAX, asyncio or clocks, and reads no state: what will happen is known from programs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import ModuleType

import numpy as np

from ampjax.ir.instances import Messages
from ampjax.plan.planner import Plan
from ampjax.plan.stages import ArenaKey
from ampjax.sched import columns as c
from ampjax.sched.abandon import forget_all
from ampjax.sched.admission import Admission
from ampjax.sched.choosing.policy_numbers import BY_ASKING, number_of
from ampjax.sched.choosing.python_policies import NONE, Asking
from ampjax.sched.choosing.queue_views import Queue
from ampjax.sched.columns import Tables
from ampjax.sched.decider import Decider, Decisions
from ampjax.sched.decisions.dispatch import DIRECTIONS, Dispatch
from ampjax.sched.decisions.policy import Policy
from ampjax.sched.decisions.scheduler_settings import SchedulerSettings
from ampjax.sched.diagnose.dispatch_log import DispatchLog
from ampjax.sched.diagnose.invariants import check as check_laws
from ampjax.sched.diagnose.snapshot import Snapshot
from ampjax.sched.diagnose.statistics import Statistics, reset, statistics
from ampjax.sched.dispatch_contents import DispatchContents
from ampjax.sched.programs.feeds import Feed
from ampjax.sched.programs.program_cache import ProgramCache
from ampjax.sched.tables.program_store import ProgramStore
from ampjax.sched.tables.scheduler_tables import SchedulerTables
from ampjax.sched.updates.counters import UpdateCounters, gradient_rows
from ampjax.sched.updates.pending_changes import PendingChanges
from ampjax.sched.updates.replica_sync import ReplicaGroups
from ampjax.sched.virtual_time import VirtualTime


@functools.cache
def loops() -> ModuleType:
    """The compiled loops. Numba takes a while to be imported, so that waits until a scheduler is made."""
    from ampjax.sched import loops as module

    return module


class Scheduler:
    """The state machine.

    Args:
      plan: The graph, cut into stages.
      settings: Throttle, intervals, policy, limits.
      check: True checks the invariants after every event (slow; for tests).

    Attributes:
      store: The programs in the tables.
      programs: How instances get them.
      replicas: Which replicas meet when.
      updates: Versions of nodes, and what they have counted since.
      contents: What is in dispatches.
    """

    def __init__(self, plan: Plan, settings: SchedulerSettings, check: bool = False):
        self.plan, self.settings, self._check = plan, settings, check
        self._loops = loops()
        self._tables = SchedulerTables(plan, settings)
        self.store = ProgramStore(plan, self._tables.arenas)
        self.programs = ProgramCache(plan, self.store, settings.program_bytes, self._loops)
        self.nodes = list(plan.graph.parameterised)
        self.replicas = ReplicaGroups(plan, settings.sync, self._t.nodes)
        self.updates = UpdateCounters(self.nodes, self._t.nodes, self.replicas)
        self._admission = Admission(plan, self._tables, self.store, self.programs, self._loops)
        self._decider = Decider(plan, self._tables, self.store, self.replicas, self._loops)
        self._asks = {stage.number for stage in plan.stages if stage.route_by is not None}
        self._policy = number_of(settings.policy)
        self._asking = Asking(plan, settings.policy, self.snapshot, self._ready)
        self._log: DispatchLog[Dispatch] = DispatchLog(settings.history)
        self._changes = PendingChanges(self.nodes, plan.worker_of, self.replicas)
        self._time: VirtualTime | None = None
        self._since_flush, self._may_update = 0, True
        self._intervals = self._t.nodes[:, c.INTERVAL].copy()
        self.contents = DispatchContents(plan, self.store, self._admission.topologies, self._tables)

    # -- events: instances

    def room(self, train: bool = True) -> int:
        """Instances that `max_active_keys`, `min_admission` and the controller's next update allow to be admitted now."""
        room = self.settings.max_active_keys - int(self._t.clock[c.N_TRAIN if train else c.N_INFER])
        if room < self.settings.min_admission:
            return 0
        if train and self.settings.flush_every is not None:
            room = min(room, self.settings.flush_every - self._since_flush)
        return max(0, room)

    def open(self, ids: np.ndarray, purpose: str = "train", may_update: bool = True, grows: bool = False) -> np.ndarray:
        """Admits instances that will be pumped to; returns their slots `[n]`. `close` them when everything has been pumped.

        Args:
          ids: The instances' numbers `[n]`.
          purpose: What they are run for, one of `passes.PURPOSES`: what only another purpose needs is left out.
          may_update: Whether training may change parameters; gradients are counted all the same.
          grows: Whether more may be pumped later, as user-written controllers do.
        """
        if purpose == "train":
            self._t.nodes[:, c.INTERVAL] = self._intervals if may_update else -1
            self._may_update = may_update
            self._since_flush += len(ids)
        return self._admission.open(np.asarray(ids, np.int64), purpose, grows)

    def pump(self, slots: np.ndarray, batch: Mapping[str, Messages]) -> list[Feed]:
        """Pumps messages for open instances; returns where the driver must put their payloads: after the dispatches so far have read theirs, before the next one does.

        Args:
          slots: The instances' slots `[n]`; `Messages.instance` counts positions in it.
          batch: Their messages, by pump.

        Raises:
          MessageError: If a pump is unknown, a message, a state function's result or a topology does not fit, or an instance seems never to end.
          DeadlockError: If messages of an instance for which no more is pumped wait for others that never come.
        """
        feeds = self._admission.pump(np.asarray(slots, np.int64), batch)
        self._checked()
        return feeds

    def close(self, slots: np.ndarray) -> None:
        """Says that nothing more will be pumped for these instances."""
        self._loops.close(np.asarray(slots, np.int64), *self._t)
        self._controller()
        self._checked()

    @property
    def foresees(self) -> bool:
        """Whether anything can be found out beforehand: where payloads decide, programs are made while instances are in flight."""
        return self._admission.foresees

    def foresee(self, ids: np.ndarray, batch: Mapping[str, Messages], purpose: str = "train") -> None:
        """Finds out what will happen to instances that are to be pumped soon: many together cost little more than one.

        Args:
          ids: The instances' numbers `[n]`.
          batch: Their messages.
          purpose: What they will be run for.

        Raises:
          MessageError, DeadlockError: As `pump` does.
        """
        self._admission.foresee(np.asarray(ids, np.int64), batch, purpose)

    # -- actions

    def next(self, worker: int) -> Dispatch | None:
        """The worker's next action, or None if there is none now; it counts as issued."""
        found = self._decide(worker, 0)
        return self._issue(found[0]) if found else None

    def ahead(self, worker: int, most: int) -> list[Dispatch]:
        """The worker's next actions, each done as soon as it is decided, as on the clock: fewer than `most` where an instance ends, or nothing is ready.

        One that reads payloads is the last and is not done: `done` follows when they have been read.
        """
        if self._under_way or worker in self._changes:
            dispatch = self.next(worker)
            if dispatch is None:
                return []
            if not self.reads(dispatch):
                self.done(dispatch)
            return [dispatch]
        found = self._decide(worker, most)
        if found and self.reads(found[-1]):
            self._under_way[found[-1].number] = found[-1]
        self._log.extend(tuple(found))
        self._controller()
        self._checked()
        return found

    @property
    def decides_alone(self) -> bool:
        """Whether `advance` can be used: nobody outside, and no law that is checked, must be asked between two dispatches."""
        outside = self._policy == BY_ASKING or self._asks or self._check or self.settings.flush_every is not None
        return not (outside or self._changes)

    def advance(self, time: VirtualTime, most: int) -> Decisions | None:
        """Lets virtual time go on until `most` more dispatches have been decided, or instances have ended; those that have ended meanwhile are done.

        None if nobody has anything to do: then `finished` may have more to tell, or instances can be admitted.
        """
        chosen, self._time = NONE, time
        while isinstance(found := self._decider.advance(time, chosen, self._policy, most), int):
            if found == c.NOTHING:
                return None
            chosen = self._asking.when_all_wait(self._t, time.next_asked, moves=False)
            chosen = c.WAITS if chosen == NONE else chosen
        self._log.extend(found)
        return found

    def done(self, dispatch: Dispatch, choices: np.ndarray | None = None) -> None:
        """Lets a dispatch's messages travel on: a driver says so at once (order on a device is enough), or when it has ended.

        Args:
          dispatch: The dispatch.
          choices: What was read from the payloads of one that `reads`, `[n]` or `[n, names]`; None takes what its node assumes.
        """
        dispatch = self._under_way[dispatch.number]
        if self.reads(dispatch):
            self._admission.choose(dispatch, choices)
        del self._under_way[dispatch.number]
        if dispatch.stage >= 0:
            self._loops.done(dispatch.messages, DIRECTIONS.index(dispatch.direction), *self._t)
        self._controller()
        self._checked()

    def reads(self, dispatch: Dispatch) -> bool:
        """Whether payloads must be read back to the host before a dispatch's messages travel on."""
        return dispatch.stage in self._asks and dispatch.direction != "backward"

    def flush(self) -> None:
        """Updates every node from what it has accumulated, whatever its interval; the actions come from `next`."""
        if self._may_update:
            self._changes.flush(self._t)

    def end_of_data(self) -> bool:
        """Says that no more training instances come in this epoch: a round that is not full is updated all the same.

        Returns:
          Whether there are updates.
        """
        if self.settings.flush_every is not None and self._since_flush and not self.in_flight[True]:
            self._since_flush = 0
            self.flush()
            return bool(self._changes)
        return False

    def end_of_epoch(self) -> None:
        """Asks the replicas for what the end of an epoch asks of them; the actions come from `next`."""
        self._changes.add(self._t, 0, self.replicas.end_of_epoch())

    def decide_by(self, policy: Policy) -> None:
        """Changes the policy, for what waits already too."""
        self.settings, self._policy = replace(self.settings, policy=policy), number_of(policy)
        self._asking.decide_by(policy)

    def abandon(self) -> list[Dispatch]:
        """Forgets everything in flight (after an interrupt or an error). What nodes have accumulated stays counted, and programs stay known.

        Returns:
          The parameter changes that were due and not asked for yet. Their gradients count as used, so they must still be made.
        """
        self._admission.forget_all()
        forget_all(self._t, self._tables.capacities)
        self._decider.stashes.clear()
        self._time = None
        self.replicas.forget_handed_in()
        self._since_flush = 0
        return self._changes.abandon()

    def take_back(self, dispatches: Iterable[Dispatch]) -> None:
        """Uncounts the gradients and updates of the latest dispatches, in order, which were never carried out."""
        self.updates.take_back((gradient_rows(self.plan.stages[d.stage], d), d.changes) for d in dispatches)

    def resize(self, settings: SchedulerSettings) -> None:
        """Takes new arena sizes and limits; nothing may be in flight."""
        self.settings = settings
        self._tables.size_arenas(settings)

    def cap(self, stage: int, direction: str, rows: int) -> None:
        """Lets no dispatch of a stage hold more than `rows` rows from now on (a single ragged message may); a cap is only ever raised."""
        self._tables.cap(stage, DIRECTIONS.index(direction), rows)

    def cap_of(self, stage: int, direction: str) -> int:
        """The cap of a stage's dispatches; 0 if it has none."""
        return self._tables.caps.get((stage, DIRECTIONS.index(direction)), 0)

    # -- questions

    def capacity(self, arena: ArenaKey) -> int:
        """Rows that an arena must have now, slot 0 included; it only grows."""
        return self._tables.capacity(arena)

    @property
    def n_slots(self) -> int:
        """Rows of all arenas together; while a run lasts these only grow."""
        return self._tables.n_slots

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and no action is left."""
        clock = self._t.clock
        return not (clock[c.N_TRAIN] or clock[c.N_INFER] or self._changes or self._under_way)

    @property
    def can_move(self) -> bool:
        """Whether some worker has an action, or one is under way."""
        return bool(self._under_way) or any(self.can_move_on(worker) for worker in range(self.plan.workers))

    def can_move_on(self, worker: int) -> bool:
        """Whether this worker has an action."""
        return worker in self._changes or self._pick(worker) != NONE

    def waiting_for(self, worker: int) -> list[Queue]:
        """A worker's queues that are not empty, in the order in which they ceased to be empty."""
        return self._asking.waiting_for(self._t, worker)

    def stirred(self) -> set[int]:
        """Workers for whom something has come since this was last asked. Another that had no action, and for whom nothing waits, has none now."""
        stirred = self._t.clock[c.WOKEN :]
        found = set(stirred.nonzero()[0].tolist())
        stirred[:] = 0
        return found

    def held_up(self, worker: int) -> str | None:
        """What keeps a worker that has no action from one; None if nothing waits for it.

        `policy`: it wants to wait. `memory`: there is no room for a result. `join`: what it has lacks a partner, or members of its group.
        """
        if self._t.active[worker, c.N_ACTIVE]:
            ready = self._ready(worker)
            return "policy" if ready is None or len(ready) else "memory"
        return "join" if self._admission.waits_on(worker) else None

    @property
    def in_flight(self) -> Mapping[bool, int]:
        """Instances in flight: training (True) and inference (False)."""
        clock = self._t.clock
        return {True: int(clock[c.N_TRAIN]), False: int(clock[c.N_INFER])}

    @property
    def finished(self) -> list[tuple[int, bool]]:
        """Instances that have ended since this was last asked: number, and whether it was a training instance."""
        return self._admission.finished() if self._t.clock[c.N_ENDED] else []

    @property
    def versions(self) -> dict[str, int]:
        """How often each node has been updated."""
        return dict(zip(self.nodes, self._t.nodes[:, c.VERSION].tolist(), strict=True))

    @property
    def slots_in_use(self) -> int:
        """Arena slots that are taken."""
        return int((self._tables.capacities - self._t.n_free).sum())

    @property
    def stats(self) -> Statistics:
        """What has been counted since the last `reset_statistics`."""
        return statistics(self.plan, self.nodes, self._t)

    def reset_statistics(self) -> None:
        """Starts counting anew."""
        reset(self._t)

    def snapshot(self) -> Snapshot:
        """What stories and diagnoses are read from (`diagnose`); it holds until the next event."""
        under_way = [*self._under_way.values(), *(self._time.under_way(self._t) if self._time is not None else ())]
        parts = self._tables.capacities, self._log, under_way, self._admission.unfoldings
        return Snapshot(self.plan, self.settings, self._t, self.store, *parts)

    def messages_of(self, dispatch: Dispatch) -> tuple[int, np.ndarray]:
        """A dispatch's stage, and the instances and state fields `[n, 1 + fields]` of its messages: what recordings know them by."""
        return dispatch.stage, np.column_stack([dispatch.ids, self.store.states(dispatch.lines)])

    @property
    def _t(self) -> Tables:
        return self._tables.t

    @property
    def _under_way(self) -> dict[int, Dispatch]:
        return self._admission.under_way

    # -- choosing

    def _decide(self, worker: int, ahead: int) -> list[Dispatch]:
        """The next dispatch, or `ahead` that are done."""
        if worker in self._changes:
            return [self._changes.next(self._t, worker)]
        chosen = NONE
        if self._policy == BY_ASKING:
            chosen, ahead = self._pick(worker), min(ahead, 1)
            if chosen == NONE:
                return []
        while True:
            found = self._decider.decide(worker, chosen, self._policy, ahead)
            if not isinstance(found, int):
                return found
            if found == c.NOTHING or (chosen := self._asking.when_all_wait(self._t, worker, self._moves)) == NONE:
                return []

    def _ready(self, worker: int) -> np.ndarray | None:
        """The queues of a worker that can be dispatched; None if all that are not empty can."""
        if not self._tables.limited:
            return None
        found = np.empty(len(self._t.queues), np.int64)
        return found[: self._loops.ready(worker, self._tables.spare, found, *self._t)]

    def _pick(self, worker: int) -> int:
        """The queue that the policy wants; `NONE` if it wants none, and something else moves."""
        return self._asking.pick(self._t, worker, self._moves)

    @property
    def _moves(self) -> bool:
        return bool(self._under_way or self._changes)

    def _issue(self, dispatch: Dispatch) -> Dispatch:
        self._under_way[dispatch.number] = dispatch
        self._log.append(dispatch)
        return dispatch

    def _controller(self) -> None:
        """Synchronous and pipeline training: when all instances of a round have ended, the controller lets every node update."""
        every = self.settings.flush_every
        if every is None or self.in_flight[True] or self._changes or self._since_flush < every:
            return
        self._since_flush = 0
        self.flush()

    def _checked(self) -> None:
        if self._check:
            check_laws(self.snapshot())
