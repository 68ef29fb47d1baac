"""The scheduler: a pure state machine. Events in (instances admitted, dispatch done), actions out (dispatch this batch).

It knows nothing of JAX, asyncio or clocks, and reads no state: what will happen is known from programs. What it can't do yet is refused when it is made.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np

from ampjax.errors import SettingsError
from ampjax.sched.dispatch import Average, Change, Update
from ampjax.sched.past import Past
from ampjax.sched.plan import Plan
from ampjax.sched.policy import Policy, backward_first
from ampjax.sched.settings import SchedulerSettings
from ampjax.sched.stats import Statistics
from ampjax.schedule import columns as c
from ampjax.schedule.abandon import forget_all
from ampjax.schedule.backlog import QueueView, WorkerQueues
from ampjax.schedule.columns import Tables
from ampjax.schedule.counters import Counters, gradient_rows
from ampjax.schedule.diagnose.invariants import check
from ampjax.schedule.diagnose.snapshot import Snapshot
from ampjax.schedule.dispatch import DIRECTIONS, Dispatch
from ampjax.schedule.policies import BY_ASKING, number_of
from ampjax.schedule.statistics import reset, statistics
from ampjax.schedule.store import Store
from ampjax.schedule.tables import NO_LIMIT, Arenas, longer, make_tables
from ampjax.unfold.programs import Programs

NO_ROWS = np.zeros(0, np.int32)
NONE = -1
"""No queue."""
UNLIMITED = 1 << 30
"""The limit of arenas that have none, as `SchedulerSettings` has it."""


@functools.cache
def loops() -> ModuleType:
    """The compiled loops. Numba takes a while to be imported, so that waits until a scheduler is made."""
    from ampjax.schedule import loops as module

    return module


class IntegerScheduler:
    """The state machine.

    Args:
      plan: The graph, cut into stages.
      settings: Throttle, intervals, policy.
      check: True checks the invariants after every event (slow; for tests).

    Attributes:
      store: The programs.
      updates: Versions of nodes, and what they have counted since.

    Raises:
      SettingsError: If the plan or the settings ask for what it can't do yet.
    """

    def __init__(self, plan: Plan, settings: SchedulerSettings, check: bool = False):
        _require_known(plan, settings)
        self.plan, self.settings, self._check = plan, settings, check
        self._loops = loops()
        self._arenas = Arenas(plan)
        self._t = make_tables(plan, settings, self._arenas)
        self.store = Store(plan, self._arenas)
        self.nodes = list(plan.graph.parameterised)
        self._told, self._pack = np.zeros((2, c.N_PACK + 1), np.int64), np.zeros(1 << 14, np.int32)
        self._due = np.zeros((1 + 16 * len(self.nodes), 3), np.int64)
        self._sections = [len(stage.ports) + len(stage.outputs) for stage in plan.stages]
        self._policy = number_of(settings.policy)
        self._queues = [WorkerQueues(plan, settings.policy, worker, self.snapshot) for worker in range(plan.workers)]
        self._changes: dict[int, deque[tuple[Change, ...]]] = {}
        self._since_flush = 0
        self._under_way: dict[int, Dispatch] = {}
        self._log: Past[Dispatch] = Past(settings.history)
        self.updates = Counters(self.nodes, self._t.nodes)
        self._capacities = np.zeros(len(self._arenas.keys), np.int64)

    # -- events

    def add(self, programs: Programs) -> range:
        """Makes programs known; returns the places by which their instances are admitted."""
        self._t, places = self.store.add(self._t, programs)
        return places

    def room(self, train: bool = True) -> int:
        """Instances that `max_active_keys`, `min_admission` and the controller's next update allow to be admitted now."""
        room = self.settings.max_active_keys - self.in_flight[train]
        if room < self.settings.min_admission:
            return 0
        if train and self.settings.flush_every is not None:
            room = min(room, self.settings.flush_every - self._since_flush)
        return max(0, room)

    def admit(self, places: Sequence[int] | np.ndarray, train: bool = True) -> None:
        """Lets instances in, with all that is pumped for them."""
        own, store = np.asarray(places, np.int64), self.store
        if not len(own):
            return
        self._make_room(own)
        programs = store.first, store.pick_first, store.n_rows, store.ids
        self._loops.admit(own, *programs, store.order, train, *self._t)
        self._since_flush += len(own) if train else 0
        self._controller()
        self._checked()

    def next(self, worker: int) -> Dispatch | None:
        """The worker's next action, or None if there is none now; it counts as issued."""
        found = self._decide(worker, 0)
        if not found:
            return None
        self._under_way[found[0].number] = found[0]
        self._log.append(found[0])
        return found[0]

    def ahead(self, worker: int, most: int) -> list[Dispatch]:
        """The worker's next actions, each done as soon as it is decided, as on the clock: fewer than `most` where an instance ends, or nothing is ready."""
        if self._under_way or (self._changes and worker in self._changes):
            dispatch = self.next(worker)
            if dispatch is not None:
                self.done(dispatch)
            return [] if dispatch is None else [dispatch]
        found = self._decide(worker, most)
        self._log.extend(found)
        self._controller()
        self._checked()
        return found

    def done(self, dispatch: Dispatch) -> None:
        """Lets a dispatch's messages travel on."""
        del self._under_way[dispatch.number]
        if dispatch.stage >= 0:
            self._loops.done(dispatch.messages, DIRECTIONS.index(dispatch.direction), *self._t)
        self._controller()
        self._checked()

    def flush(self) -> None:
        """Updates every node from what it has accumulated, whatever its interval; the actions come from `next`."""
        by_worker: dict[int, list[Change]] = {}
        for number in np.flatnonzero(self._t.nodes[:, c.COUNT]).tolist():
            node = self._t.nodes[number]
            update = Update(self.nodes[number], int(node[c.COUNT]), float(node[c.STALENESS] / node[c.COUNT]))
            by_worker.setdefault(self.plan.worker_of[self.nodes[number]], []).append(update)
            node[c.COUNT] = node[c.STALENESS] = 0
            node[c.VERSION] += 1
            node[c.UPDATES] += 1
        for worker, changes in by_worker.items():
            self._changes.setdefault(worker, deque()).append(tuple(changes))

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
        """Replicas that are averaged at the end of each epoch are averaged; the action comes from `next`."""
        groups: dict[str, list[str]] = {}
        for node in self.plan.graph.parameterised.values():
            if node.options.replica_of:
                groups.setdefault(node.options.replica_of, []).append(node.name)
        if groups and self.settings.sync.rule != "none":
            changes = tuple(Average(name, tuple(nodes)) for name, nodes in groups.items())
            self._changes.setdefault(0, deque()).append(changes)

    def decide_by(self, policy: Policy) -> None:
        """Changes the policy, for what waits already too."""
        self.settings, self._policy = replace(self.settings, policy=policy), number_of(policy)
        for queues in self._queues:
            queues.decide_by(policy)

    def abandon(self) -> list[Dispatch]:
        """Forgets everything in flight (after an interrupt or an error). What nodes have accumulated stays counted, and programs stay known.

        Returns:
          The parameter changes that were due and not asked for yet. Their gradients count as used, so they must still be made.
        """
        due = [(worker, changes) for worker, waiting in self._changes.items() for changes in waiting]
        forget_all(self._t, self._capacities)
        self._changes.clear()
        self._under_way.clear()
        self._since_flush = 0
        return [Dispatch(0, worker, -1, "update", 0, 0, 0, NO_ROWS, changes) for worker, changes in due]

    def take_back(self, dispatches: Iterable[Dispatch]) -> None:
        """Uncounts the gradients and updates of the latest dispatches, in order, which were never carried out."""
        self.updates.take_back((gradient_rows(self._t, self.store, self.nodes, d), d.changes) for d in dispatches)

    def reset_statistics(self) -> None:
        """Starts counting anew."""
        reset(self._t)

    # -- questions

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and no action is left."""
        return not sum(self.in_flight.values()) and not self._changes and not self._under_way

    @property
    def in_flight(self) -> Mapping[bool, int]:
        """Instances in flight: training (True) and inference (False)."""
        clock = self._t.clock
        return {True: int(clock[c.N_TRAIN]), False: int(clock[c.N_INFER])}

    @property
    def finished(self) -> list[tuple[int, bool]]:
        """Instances that have ended since this was last asked: number, and whether it was a training instance."""
        t, n = self._t, int(self._t.clock[c.N_ENDED])
        if not n:
            return []
        slots = t.ended[:n]
        t.vacant[t.n_vacant[0] : t.n_vacant[0] + n] = slots
        t.n_vacant[0] += n
        t.clock[c.N_ENDED] = 0
        t.clock[c.N_FINISHED] += n
        return list(
            zip(t.instances[slots, c.ID].tolist(), t.instances[slots, c.TRAIN].astype(bool).tolist(), strict=True)
        )

    @property
    def versions(self) -> dict[str, int]:
        """How often each node has been updated."""
        return self.updates.versions

    @property
    def stats(self) -> Statistics:
        """What has been counted since the last `reset_statistics`."""
        return statistics(self.plan, self.nodes, self._t)

    def waiting_for(self, worker: int) -> list[QueueView]:
        """A worker's queues that are not empty, in the order in which they ceased to be."""
        return self._queues[worker].look(self._t)

    def snapshot(self) -> Snapshot:
        """What stories and diagnoses are read from (`diagnose`); valid until the next event."""
        under_way = list(self._under_way.values())
        return Snapshot(self.plan, self.settings, self._t, self.store, self._capacities, self._log, under_way)

    @property
    def slots_in_use(self) -> int:
        """Arena slots that are taken."""
        return int((self._capacities - self._t.n_free).sum())

    def instances_of(self, dispatch: Dispatch) -> np.ndarray:
        """`[n]`: the instances of a dispatch's messages."""
        return self.store.ids[self.store.find(dispatch.lines)[0]]

    def messages_of(self, dispatch: Dispatch) -> tuple[int, np.ndarray]:
        """A dispatch's stage, and the instances and state fields `[n, 1 + fields]` of its messages: what recordings know them by."""
        ids = self.instances_of(dispatch)
        return dispatch.stage, np.column_stack([ids, self.store.states(dispatch.lines)])

    # -- choosing

    def _decide(self, worker: int, ahead: int) -> list[Dispatch]:
        """The next dispatch, or `ahead` that are done."""
        if self._changes and worker in self._changes:
            return [self._changes_of(worker)]
        chosen = NONE
        if self._policy == BY_ASKING:
            chosen, ahead = self._asked(worker), min(ahead, 1)
            if chosen == NONE:
                return []
        while len(self._told) <= max(1, ahead):
            self._told = longer(self._told, 2 * ahead)
        while True:
            buffers = self._told, self._pack, self._due
            n = self._loops.decide(worker, chosen, self._policy, ahead, *buffers, *self._t)
            told = self._told[: n + 1].tolist()
            if n:
                return [self._dispatch(worker, *line) for line in told[:-1]]
            reason, arena, need = told[0][c.Q], told[0][c.N_MESSAGES], told[0][c.N_ROWS_IN]
            if reason == c.NO_SLOTS:
                self._grow_arena(arena, need)
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
            changes = tuple([Update(self.nodes[node], count, stale / count) for node, count, stale in updates])
        pack = self._pack[at : at + length].copy()
        stage = q // 3
        return Dispatch(number, worker, stage, DIRECTIONS[q % 3], n, rows, self._sections[stage], pack, changes)

    def _asked(self, worker: int) -> int:
        """The queue that a user's policy wants; -1 for none."""
        queues = self.waiting_for(worker)
        if not queues:
            return -1
        choice = self._queues[worker].first() or self.settings.policy(queues, int(self._t.clock[c.NOW]))  # type: ignore[arg-type]
        return self._when_all_wait(worker) if choice is None else choice.number  # type: ignore[attr-defined]

    def _when_all_wait(self, worker: int) -> int:
        """A policy wants a worker to wait: if nothing else moves, the queue that `backward_first` takes; else -1."""
        if self._under_way or self._changes:
            return -1
        now = int(self._t.clock[c.NOW])
        for other in range(self.plan.workers):
            queues = [] if other == worker else self.waiting_for(other)
            if queues and self.settings.policy(queues, now) is not None:  # type: ignore[arg-type]
                return -1
        return backward_first(self.waiting_for(worker), now).number  # type: ignore[arg-type, attr-defined]

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

    def _checked(self) -> None:
        if self._check:
            check(self.snapshot())

    # -- room

    def _make_room(self, places: np.ndarray) -> None:
        """Makes tables long enough for instances that are about to be admitted."""
        t, store, n = self._t, self.store, len(places)
        lengths = store.first[places + 1] - store.first[places]
        live = int(t.clock[c.LIVE_TOP]) + int(_ranges(lengths).sum())
        rows = int(t.clock[c.ROWS_TOP]) + int(_ranges(store.n_rows[places]).sum())
        t = t._replace(live=longer(t.live, live), slots=longer(t.slots, rows))
        if t.n_vacant[0] < n:
            t = self._with_instances(t, len(t.instances) + n - int(t.n_vacant[0]))
        self._t = t
        for arena, need in enumerate(store.pumped[places].sum(axis=0).tolist()):
            if need > t.n_free[arena]:
                self._grow_arena(arena, need)

    def _with_instances(self, t: Tables, n: int) -> Tables:
        """Tables with slots for at least `n` instances."""
        old = len(t.instances)
        instances = longer(t.instances, n)
        new, free = len(instances), int(t.n_vacant[0])
        vacant, ended = longer(t.vacant, new), longer(t.ended, new)
        vacant[free : free + new - old] = np.arange(new - 1, old - 1, -1)
        t.n_vacant[0] += new - old
        return t._replace(instances=instances, vacant=vacant, ended=ended)

    def _grow_arena(self, arena: int, need: int) -> None:
        """Doubles an arena until it has so many free slots. Slot 0 is nobody's."""
        t, old = self._t, int(self._capacities[arena])
        free = int(t.n_free[arena])
        new = max(old, self.settings.capacity - 1)
        while new - old + free < need:
            new = 2 * new + 1
        table = longer(t.free, new, axis=1)
        table[arena, free : free + new - old] = np.arange(new, old, -1)
        t.n_free[arena] += new - old
        self._capacities[arena] = new
        self._t = t._replace(free=table)


def _ranges(lengths: np.ndarray) -> np.ndarray:
    """The powers of two in which ranges of these lengths are given out."""
    return 1 << np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)


def _require_known(plan: Plan, settings: SchedulerSettings) -> None:
    """Refuses what is not there yet: see decision 22."""
    replicas = any(node.options.replica_of for node in plan.graph.parameterised.values())
    limited = settings.limit < UNLIMITED or any(limit < min(UNLIMITED, NO_LIMIT) for limit in settings.limits.values())
    unknown = {
        "stashed weights": bool(settings.stashed),
        "a memory limit": limited,
        "replicas that meet at their updates": replicas and bool(settings.sync.every),
        "a `route_by`": any(stage.route_by is not None for stage in plan.stages),
    }
    for what, wanted in unknown.items():
        if wanted:
            raise SettingsError(
                "integer scheduler", "what it can do so far", what, "Use `ampjax.sched.scheduler.Scheduler` for it."
            )
