"""The scheduler: a pure state machine. Events in (instances pumped, dispatch done), actions out (dispatch this batch).

It knows nothing of JAX, asyncio or clocks, and reads no state: what will happen is known from programs.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np

from ampjax.ir.instances import Messages
from ampjax.sched.dispatch import Change, Update
from ampjax.sched.dispatch import Dispatch as FullDispatch
from ampjax.sched.plan import Plan
from ampjax.sched.policy import Policy, backward_first
from ampjax.sched.pump import Feed
from ampjax.sched.settings import SchedulerSettings
from ampjax.sched.stages import ArenaKey
from ampjax.schedule import columns as c
from ampjax.schedule.admission import Admission
from ampjax.schedule.cache import ProgramCache
from ampjax.schedule.columns import Tables
from ampjax.schedule.complete import Completion
from ampjax.schedule.dispatch import DIRECTIONS, Dispatch
from ampjax.schedule.policies import BY_ASKING, QueueView, number_of, views
from ampjax.schedule.replicas import Replicas
from ampjax.schedule.space import Space
from ampjax.schedule.stashes import Stashes
from ampjax.schedule.store import Store
from ampjax.schedule.tables import longer

NO_ROWS = np.zeros(0, np.int32)
NONE = -1
"""No queue."""


@functools.cache
def loops() -> ModuleType:
    """The compiled loops. Numba takes a while to be imported, so that waits until a scheduler is made."""
    from ampjax.schedule import loops as module

    return module


class IntegerScheduler:
    """The state machine.

    Args:
      plan: The graph, cut into stages.
      settings: Throttle, intervals, policy, limits.

    Attributes:
      store: The programs in the tables.
      programs: How instances get them.
      replicas: Which replicas meet when.
    """

    def __init__(self, plan: Plan, settings: SchedulerSettings):
        self.plan, self.settings = plan, settings
        self._loops = loops()
        self._space = Space(plan, settings)
        self.store = Store(plan, self._space.arenas)
        self.programs = ProgramCache(plan, self.store, settings.program_bytes)
        self.nodes = list(plan.graph.parameterised)
        self.replicas = Replicas(plan, settings.sync, self._t.nodes)
        self._admission = Admission(plan, self._space, self.store, self.programs, self._loops)
        self._told, self._pack = np.zeros((2, c.N_PACK + 1), np.int64), np.zeros(1 << 14, np.int32)
        self._due = np.zeros((1 + 16 * len(self.nodes), 3), np.int64)
        self._sections = [len(stage.ports) + len(stage.outputs) for stage in plan.stages]
        self._policy = number_of(settings.policy)
        self._limited = _is_limited(settings)
        self._changes: dict[int, deque[tuple[Change, ...]]] = {}
        self._since_flush, self._may_update = 0, True
        self._intervals = self._t.nodes[:, c.INTERVAL].copy()
        self._stashes = Stashes()
        self._completion = Completion(plan, self.store, self._admission.topologies)

    # -- events: instances

    def room(self, train: bool = True) -> int:
        """Instances that `max_active_keys`, `min_admission` and the controller's next update allow to be admitted now."""
        room = self.settings.max_active_keys - self.in_flight[train]
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
        """
        return self._admission.pump(np.asarray(slots, np.int64), batch)

    def close(self, slots: np.ndarray) -> None:
        """Says that nothing more will be pumped for these instances."""
        self._loops.close(np.asarray(slots, np.int64), *self._t)
        self._controller()

    def foresee(self, ids: np.ndarray, batch: Mapping[str, Messages], purpose: str = "train") -> None:
        """Finds out what will happen to instances that are to be pumped soon: many together cost little more than one.

        Args:
          ids: The instances' numbers `[n]`.
          batch: Their messages.
          purpose: What they will be run for.

        Raises:
          MessageError: As `pump` does.
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
        if self._under_way or (self._changes and worker in self._changes):
            dispatch = self.next(worker)
            if dispatch is None:
                return []
            if not self.reads(dispatch):
                self.done(dispatch)
            return [dispatch]
        found = self._decide(worker, most)
        if found and self.reads(found[-1]):
            self._issue(found[-1])
        self._controller()
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

    def reads(self, dispatch: Dispatch) -> bool:
        """Whether payloads must be read back to the host before a dispatch's messages travel on."""
        return dispatch.stage >= 0 and bool(self._t.stages[dispatch.stage, c.ASKS]) and dispatch.direction != "backward"

    def flush(self) -> None:
        """Updates every node from what it has accumulated, whatever its interval; the actions come from `next`."""
        by_worker: dict[int, list[Change]] = {}
        for number in np.flatnonzero(self._t.nodes[:, c.COUNT] * self._may_update).tolist():
            name, node = self.nodes[number], self._t.nodes[number]
            update = Update(name, int(node[c.COUNT]), float(node[c.STALENESS] / node[c.COUNT]))
            node[c.COUNT] = node[c.STALENESS] = 0
            node[c.VERSION] += 1
            worker = self.replicas.flushed_by.get(name, self.plan.worker_of[name])
            by_worker.setdefault(worker, []).extend((update, *self.replicas.after(name)))
        for worker, changes in by_worker.items():
            self._queue_changes(worker, changes)

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
        self._queue_changes(0, self.replicas.end_of_epoch())

    def decide_by(self, policy: Policy) -> None:
        """Changes the policy, for what waits already too."""
        self.settings, self._policy = replace(self.settings, policy=policy), number_of(policy)

    def resize(self, settings: SchedulerSettings) -> None:
        """Takes new arena sizes and limits; nothing may be in flight."""
        self.settings, self._limited = settings, _is_limited(settings)
        self._space.size_arenas(settings)

    def cap(self, stage: int, direction: str, rows: int) -> None:
        """Lets no dispatch of a stage hold more than `rows` rows from now on (a single ragged message may); a cap is only ever raised."""
        self._space.cap(stage, DIRECTIONS.index(direction), rows)

    def cap_of(self, stage: int, direction: str) -> int:
        """The cap of a stage's dispatches; 0 if it has none."""
        return self._space.caps.get((stage, DIRECTIONS.index(direction)), 0)

    # -- questions

    def completed(self, dispatch: Dispatch) -> FullDispatch:
        """A dispatch with all that an executor reads; to be asked for when it has been decided, before more is admitted."""
        return self._completion.of(self._t, dispatch)

    def capacity(self, arena: ArenaKey) -> int:
        """Rows that an arena must have now, slot 0 included; it only grows."""
        return self._space.capacity(arena)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and no action is left."""
        return not sum(self.in_flight.values()) and not self._changes and not self._under_way

    @property
    def can_move(self) -> bool:
        """Whether some worker has an action, or one is under way."""
        return bool(self._under_way) or any(self.can_move_on(worker) for worker in range(self.plan.workers))

    def can_move_on(self, worker: int) -> bool:
        """Whether this worker has an action."""
        return worker in self._changes or self._pick(worker) != NONE

    def waiting_for(self, worker: int) -> list[QueueView]:
        """A worker's queues that are not empty, in the order in which they ceased to be empty."""
        return views(self.plan, self._t, self._t.active[worker, : self._t.n_active[0, worker]])

    def stirred(self) -> set[int]:
        """Workers for whom something has come since this was last asked. Another that had no action, and for whom nothing waits, has none now."""
        found = set(np.flatnonzero(self._t.n_active[1]).tolist())
        self._t.n_active[1] = 0
        return found

    def held_up(self, worker: int) -> str | None:
        """What keeps a worker that has no action from one; None if nothing waits for it.

        `policy`: it wants to wait. `memory`: there is no room for a result. `join`: what it has lacks a partner, or members of its group.
        """
        if self._t.n_active[0, worker]:
            return "policy" if len(self._ready(worker)) else "memory"
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
        return int((self._space.capacities - self._t.n_free).sum())

    @property
    def _t(self) -> Tables:
        return self._space.t

    @property
    def _under_way(self) -> dict[int, Dispatch]:
        return self._admission.under_way

    # -- choosing

    def _decide(self, worker: int, ahead: int) -> list[Dispatch]:
        """The next dispatch, or `ahead` that are done."""
        if self._changes and worker in self._changes:
            return [self._changes_of(worker)]
        chosen = NONE
        if self._policy == BY_ASKING:
            chosen, ahead = self._pick(worker), min(ahead, 1)
            if chosen == NONE:
                return []
        while len(self._told) <= max(1, ahead):
            self._told = longer(self._told, 2 * ahead)
        while True:
            buffers = self._told, self._pack, self._due
            n = self._loops.decide(worker, chosen, self._policy, ahead, self._spare, *buffers, *self._t)
            told = self._told[: n + 1].tolist()
            if n:
                return [self._dispatch(worker, *line) for line in told[:-1]]
            reason, arena, need = told[0][c.Q], told[0][c.N_MESSAGES], told[0][c.N_ROWS_IN]
            if reason == c.NO_SLOTS:
                self._space.grow_arena(arena, need)
            elif reason == c.NO_ROOM:
                self._pack = longer(self._pack, need)
            elif reason == c.NOTHING or (chosen := self._when_all_wait(worker)) == NONE:
                return []

    def _dispatch(self, worker: int, *told: int) -> Dispatch:
        """A dispatch of what has been told of it."""
        q, number, n, rows, n_due, due, at, length = told
        changes: tuple[Change, ...] = ()
        if n_due:
            updates = self._due[due : due + n_due].tolist()
            changes = tuple(change for node, count, stale in updates for change in self._update(node, count, stale))
        pack = self._pack[at : at + length].copy()
        stage = q // 3
        dispatch = Dispatch(number, worker, stage, DIRECTIONS[q % 3], n, rows, self._sections[stage], pack, changes)
        stashes = self._t.stages[stage, c.STASHES] and self._t.stages[stage, c.KIND] == c.COMPUTES
        return self._stashes.told(self._t, dispatch) if stashes else dispatch

    def _update(self, number: int, count: int, stale: int) -> Sequence[Change]:
        """An update that is due, and what follows it."""
        update = Update(self.nodes[number], count, stale / count)
        return (update, *self.replicas.after(update.node)) if self._t.nodes[number, c.MEETS] else (update,)

    @property
    def _spare(self) -> np.ndarray:
        """`[arenas]`: see `loops.decide`."""
        return self._space.spare if self._limited else self._space.capacities[:0]

    def _ready(self, worker: int) -> list[QueueView]:
        """A worker's queues that can be dispatched, as policies see them."""
        return views(self.plan, self._t, self._loops.ready(worker, self._spare, *self._t))

    def _pick(self, worker: int) -> int:
        """The queue that the policy wants; `NONE` if it wants none, and something else moves."""
        queues = self._ready(worker)
        if not queues:
            return NONE
        choice = self.settings.policy(queues, int(self._t.clock[c.NOW]))  # type: ignore[arg-type]
        return self._when_all_wait(worker) if choice is None else choice.number  # type: ignore[attr-defined]

    def _when_all_wait(self, worker: int) -> int:
        """A policy wants a worker to wait: if nothing else moves, the queue that `backward_first` takes; else `NONE`."""
        if self._under_way or self._changes:
            return NONE
        now = int(self._t.clock[c.NOW])
        for other in range(self.plan.workers):
            queues = [] if other == worker else self._ready(other)
            if queues and self.settings.policy(queues, now) is not None:  # type: ignore[arg-type]
                return NONE
        return backward_first(self._ready(worker), now).number  # type: ignore[arg-type, attr-defined]

    def _queue_changes(self, worker: int, changes: Sequence[Change]) -> None:
        if changes:
            self._changes.setdefault(worker, deque()).append(tuple(changes))
            self._t.n_active[1, worker] = 1

    def _issue(self, dispatch: Dispatch) -> Dispatch:
        self._under_way[dispatch.number] = dispatch
        return dispatch

    def _changes_of(self, worker: int) -> Dispatch:
        """The oldest parameter changes that wait for a worker."""
        waiting = self._changes[worker]
        changes = waiting.popleft()
        if not waiting:
            del self._changes[worker]
        self._t.clock[c.NOW] += 1
        number = int(self._t.clock[c.NOW])
        return Dispatch(number, worker, -1, "update", 0, 0, 0, NO_ROWS, changes)

    def _controller(self) -> None:
        """Synchronous and pipeline training: when all instances of a round have ended, the controller lets every node update."""
        every = self.settings.flush_every
        if every is None or self.in_flight[True] or self._changes or self._since_flush < every:
            return
        self._since_flush = 0
        self.flush()


def _is_limited(settings: SchedulerSettings) -> bool:
    return (
        min([settings.limit, *settings.limits.values()]) < 1 << 30
    )  # what `SchedulerSettings` has where there is no limit
