"""The scheduler: a pure state machine. Events in (instances pumped, dispatch done), actions out (dispatch this batch).

It decides: who is admitted, which queue goes next, when parameters change. It knows nothing of JAX, asyncio or clocks: a driver asks
for a worker's next action with `next`, carries it out, and says `done` when its messages may travel on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ampjax.errors import DeadlockError, LimitError, SettingsError
from ampjax.ir.instances import Messages
from ampjax.ir.state import INSTANCE, State
from ampjax.sched import doctor, explain, laws
from ampjax.sched.build import NO_CELLS
from ampjax.sched.dispatch import Change, Dispatch
from ampjax.sched.passes import PURPOSES, left_out
from ampjax.sched.past import Past
from ampjax.sched.plan import Plan
from ampjax.sched.policy import Policy, backward_first
from ampjax.sched.pump import Feed, Pumps
from ampjax.sched.queues import BACKWARD, FORWARD, INFER, Queue
from ampjax.sched.settings import SchedulerSettings
from ampjax.sched.slots import SlotPool
from ampjax.sched.stages import ArenaKey, Stage
from ampjax.sched.stats import NodeStats, StageStats, Statistics
from ampjax.sched.traffic import Traffic
from ampjax.sched.updates import Updates


class Scheduler:
    """The state machine.

    Args:
      plan: The graph, cut into stages.
      settings: Throttle, intervals, policy, limits.
      check: True checks the invariants after every event (slow; for tests).
    """

    def __init__(self, plan: Plan, settings: SchedulerSettings, check: bool = False):
        self.plan, self.settings, self._check = plan, settings, check
        self._pumps = Pumps(plan, self.pool)
        self.replica_groups = _replica_groups(plan)
        # Replicas that meet at their updates are flushed by one worker: nobody may merge what another has yet to hand in.
        meeting = self.replica_groups.values() if settings.sync.every else ()
        self._flushed_by = {node: plan.worker_of[nodes[0]] for nodes in meeting for node in nodes}
        intervals = {node: settings.intervals.get(node, 1) for node in plan.graph.parameterised}
        self.updates = Updates(intervals, self.replica_groups, settings.sync, settings.flush_every is None)
        self.pools: dict[ArenaKey, SlotPool] = {}
        self.history: Past[Dispatch] = Past(settings.history)
        self._number = 0
        self._left_out = {purpose: left_out(plan, purpose) for purpose in PURPOSES}
        self._inference = "both"  # what it is for, of those in flight
        self._caps: dict[tuple[int, str], int] = {}
        self._clear()
        self.reset_statistics()

    def _clear(self) -> None:
        """Starts with nothing in flight."""
        s = self.settings
        self._traffic = Traffic(self.plan, self.updates, s.stashed, self.pool, self._max_rows, s.policy)
        self._traffic.now = self._number
        self._inflight, self._builder = self._traffic.inflight, self._traffic.builder
        self._backlogs, self._stirred = self._traffic.backlogs, self._traffic.stirred
        self._changes: dict[int, deque[Dispatch]] = {}
        self._issued = self._since_flush = 0

    # -- events: instances

    def room(self, train: bool = True) -> int:
        """Instances that `max_active_keys`, `min_admission` and the controller's next update allow to be admitted now."""
        room = self.settings.max_active_keys - self._inflight.count[train]
        if room < self.settings.min_admission:
            return 0
        if train and self.settings.flush_every is not None:
            room = min(room, self.settings.flush_every - self._since_flush)
        return max(0, room)

    def open(self, ids: np.ndarray, purpose: str = "train", may_update: bool = True) -> np.ndarray:
        """Admits instances that will be pumped to; returns their slots `[n]`. `close` them when everything has been pumped.

        Args:
          ids: The instances' numbers `[n]`.
          purpose: What they are run for, one of `passes.PURPOSES`: what only another purpose needs is left out.
          may_update: Whether training may change parameters.

        Raises:
          SettingsError: If inference for another purpose is in flight.
        """
        train = purpose == "train"
        if train:
            self.updates.may_update = may_update
        else:
            self._infer_for(purpose)
        slots = self._inflight.open(np.asarray(ids), train)
        self._since_flush += len(slots) if train else 0
        self.stats.most_in_flight = max(self.stats.most_in_flight, self._inflight.total)
        return slots

    def pump(self, slots: np.ndarray, batch: Mapping[str, Messages]) -> list[Feed]:
        """Pumps messages for open instances; returns where the driver must put their payloads: after the dispatches so far have read theirs, before the next one does.

        Args:
          slots: The instances' slots `[n]`; `Messages.instance` counts positions in it.
          batch: Their messages, by pump.

        Raises:
          MessageError: If a pump is unknown, or a state field is missing or not known.
        """
        feeds = self._pumps.pump(self._traffic, slots, batch)
        self._checked()
        return feeds

    def close(self, slots: np.ndarray) -> None:
        """Says that nothing more will be pumped for these instances."""
        self._inflight.release(slots)
        self._controller()  # an instance that sent nothing to any node ends here
        self._checked()

    # -- actions

    def next(self, worker: int) -> Dispatch | None:
        """The worker's next action, or None if there is none now; it counts as issued.

        Raises:
          MessageError: If ragged inputs or a topology do not fit each other.
        """
        if self._changes and (changes := self._changes_of(worker)) is not None:
            return self._issue(changes)
        queue = self._pick(worker)
        if queue is None:
            return None
        dispatch = self._builder.build(queue, self.stats)
        self._backlogs[worker].taken(queue)
        self._count(queue, dispatch)
        return self._issue(dispatch)

    def reads(self, dispatch: Dispatch) -> bool:
        """Whether payloads must be read back to the host before a dispatch's messages travel on."""
        return dispatch.reads

    def done(self, dispatch: Dispatch, choices: np.ndarray | None = None) -> None:
        """Lets a dispatch's messages travel on: a driver says so at once (order on a device is enough), or when it has ended.

        Args:
          dispatch: The dispatch.
          choices: What was read from the payloads of one that `reads`; None takes what its node assumes.
        """
        self._issued -= 1
        if choices is not None:
            dispatch.choices = choices
        stage = dispatch.stage
        if stage is not None:
            if dispatch.direction == BACKWARD:
                self._traffic.answer(dispatch, stage)
                self._traffic.end(stage, dispatch.cells, dispatch.out_rows)
            else:
                if stage.outputs:
                    self._traffic.forward(dispatch, stage)
                if dispatch.direction == INFER or stage.kind == "loss":
                    self._traffic.answer(dispatch, stage)
        self._controller()
        self._checked()

    def end_of_epoch(self) -> None:
        """Asks the replicas for what the end of an epoch asks of them; the actions come from `next`."""
        self._queue_changes(0, self.updates.end_of_epoch())

    def flush(self) -> None:
        """Updates every node from what it has accumulated, whatever its interval; the actions come from `next`."""
        by_worker: dict[int, list[Change]] = {}
        for node, changes in self.updates.flush(self.stats).items():
            by_worker.setdefault(self._flushed_by.get(node, self.plan.worker_of[node]), []).extend(changes)
        for worker, changes in by_worker.items():
            self._queue_changes(worker, changes)

    def end_of_data(self) -> bool:
        """Says that no more training instances come in this epoch: a round that is not full is updated all the same.

        Returns:
          Whether there are updates.
        """
        if self.settings.flush_every is not None and self._since_flush and not self._inflight.count[True]:
            self._since_flush = 0
            self.flush()
            return bool(self._changes)
        return False

    def decide_by(self, policy: Policy) -> None:
        """Changes the policy, for what waits already too."""
        self.settings = replace(self.settings, policy=policy)
        for backlog in self._backlogs:
            backlog.decide_by(policy)

    def abandon(self, undone: Sequence[Dispatch] = ()) -> list[Dispatch]:
        """Forgets everything in flight (after an interrupt or an error). What nodes have accumulated stays counted.

        Args:
          undone: After an error, the latest dispatches, in order, which were never carried out: what they brought is uncounted.

        Returns:
          The parameter changes that were due and not asked for yet. Their gradients count as used, so they must still be made. Nothing, where anything is undone.
        """
        due = [changes for waiting in self._changes.values() for changes in waiting]
        self.updates.forget_handed_in()
        for key, pool in list(self.pools.items()):
            self.pools[key] = SlotPool(pool.capacity, pool.limit)
        self._clear()
        if undone:
            self.updates.take_back([*undone, *due])
            due.clear()
        return due

    def resize(self, settings: SchedulerSettings) -> None:
        """Takes new arena sizes and limits; nothing may be in flight."""
        self.settings = settings
        self._caps.clear()
        self.pools.clear()
        self._clear()

    def cap(self, stage: Stage, direction: str, rows: int) -> None:
        """Lets no dispatch of a stage hold more than `rows` rows from now on (a single ragged message may); a cap is only ever raised."""
        self._caps[stage.number, direction] = max(rows, self.cap_of(stage, direction))
        self._traffic.queues[stage.number, direction].max_rows = self._max_rows(stage, direction)

    def cap_of(self, stage: Stage, direction: str) -> int:
        """The cap of a stage's dispatches; 0 if it has none."""
        return self._caps.get((stage.number, direction), 0)

    # -- questions

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and no action is left."""
        return not self._inflight.total and not self._changes and not self._issued

    @property
    def can_move(self) -> bool:
        """Whether some worker has an action, or one is under way."""
        return bool(self._issued) or any(self.can_move_on(worker) for worker in range(self.plan.workers))

    def can_move_on(self, worker: int) -> bool:
        """Whether this worker has an action."""
        return worker in self._changes or self._pick(worker) is not None

    def waiting_for(self, worker: int) -> Collection[Queue]:
        """A worker's queues that are not empty."""
        return self._backlogs[worker].queues

    def stirred(self) -> set[int]:
        """Workers for whom something has come since this was last asked. Another that had no action, and for whom nothing waits, has none now."""
        found = self._stirred.copy()
        self._stirred.clear()
        return found

    def held_up(self, worker: int) -> str | None:
        """What keeps a worker that has no action from one; None if nothing waits for it.

        `policy`: it wants to wait. `memory`: there is no room for a result. `join`: what it has lacks a partner, or members of its group.
        """
        if self._backlogs[worker]:
            return "policy" if self._ready(worker) else "memory"
        return "join" if any(table.waiting for table in self._traffic.tables[worker]) else None

    @property
    def finished(self) -> list[tuple[int, bool]]:
        """Instances that have ended since this was last asked: number, and whether it was a training instance."""
        ended = self._inflight.finished
        if not ended:
            return []
        self._inflight.finished = []
        self.stats.instances += len(ended)
        return ended

    @property
    def in_flight(self) -> Mapping[bool, int]:
        """Instances in flight: training (True) and inference (False)."""
        return dict(self._inflight.count)

    def waiting(self) -> list[str]:
        """Who waits for what: one line per message in a join, and per open group."""
        return [str(one) for one in explain.find_waiting(self.plan, self._traffic.joins, self._traffic.groups)]

    def story(self, instance: int, *, until: int | None = None, **fields: int) -> list[str]:
        """What happened to an instance's messages (with these state fields), as far as the history goes back; up to dispatch `until`, if it is given."""
        past = (d for d in self.history if until is None or d.number <= until)
        return explain.story(self.plan, past, instance, fields)

    def describe(self, dispatch: Dispatch) -> str:
        """A dispatch in words, with the story of its first message: where an error happened."""
        if dispatch.stage is None or not len(dispatch.states):
            return f"in {dispatch!r}"
        state = State(dispatch.states[:1], self.plan.layout, dispatch.stage.ports[0].type.fields)
        story = self.story(int(dispatch.states[0, INSTANCE]), until=dispatch.number)[-6:]
        return "\n".join([f"in {dispatch!r}; first message {state!r}; its story:", *(f"  {line}" for line in story)])

    def diagnose(self) -> LimitError | DeadlockError:
        """Why nothing can move."""
        for queue in (q for backlog in self._backlogs for q in backlog):
            return explain.no_room(queue, [self.pool(key) for key in queue.stage.arenas], self._inflight.total)
        return doctor.deadlock(self._snapshot())

    def report(self) -> list[str]:
        """What there is to know about what is in flight, a line each: who waits, the throttle, queues, the oldest instance's story."""
        return doctor.report(self._snapshot())

    def pool(self, key: ArenaKey) -> SlotPool:
        """The slots of an arena."""
        pool = self.pools.get(key)
        if pool is None:
            s = self.settings
            pool = self.pools[key] = SlotPool(s.capacities.get(key, s.capacity), s.limits.get(key, s.limit))
        return pool

    def reset_statistics(self) -> None:
        """Starts counting anew."""
        names = [s.name for s in self.plan.stages if s.kind != "group"]
        self.stats = Statistics(
            {name: StageStats() for name in names}, {n: NodeStats() for n in self.plan.graph.parameterised}
        )

    def _snapshot(self) -> doctor.Snapshot:
        throttle = self.settings.max_active_keys, self.settings.min_admission
        return doctor.Snapshot(self.plan, self._traffic, self.history, *throttle)

    def _infer_for(self, purpose: str) -> None:
        """Leaves out what inference for a purpose does not need."""
        if self._inflight.count[False] and purpose != self._inference:
            raise SettingsError(
                "inference",
                f"one purpose at a time, now `{self._inference}`",
                f"`{purpose}`",
                "Wait until the instances in flight have ended.",
            )
        self._inference, self._traffic.left_out = purpose, self._left_out[purpose]

    def _ready(self, worker: int) -> list[Queue]:
        """A worker's queues that can be dispatched."""
        return [q for q in self._backlogs[worker] if q.backward or self._builder.room(q)]

    def _pick(self, worker: int) -> Queue | None:
        """The queue that the policy wants; if it wants none and nothing else moves, `backward_first`'s choice."""
        first = self._backlogs[worker].first()
        if first is not None and (first.backward or self._builder.room(first)):
            return first
        queues = self._ready(worker)
        if not queues:
            return None
        policy = self.settings.policy
        choice = policy(queues, self._number)
        if choice is not None or self._issued:
            return choice
        others = (self._ready(other) for other in range(self.plan.workers) if other != worker)
        if self._changes or any(ready and policy(ready, self._number) is not None for ready in others):
            return None
        return backward_first(queues, self._number)

    # -- dispatches and the controller

    def _max_rows(self, stage: Stage, direction: str) -> int:
        own = [n.options.max_dispatch_size for n in stage.nodes if n.options.max_dispatch_size]
        return min([self.settings.max_dispatch_size, self._caps.get((stage.number, direction), 1 << 60), *own])

    def _issue(self, dispatch: Dispatch) -> Dispatch:
        self._number += 1
        self._issued += 1
        self._traffic.now = dispatch.number = self._number
        self.history.append(dispatch)
        return dispatch

    def _count(self, queue: Queue, dispatch: Dispatch) -> None:
        """Notes what has been taken from a queue."""
        n, stage = len(dispatch.states), queue.stage
        self.stats.stages[stage.name].add(queue.direction, n, dispatch.n_rows, queue.longest)
        if queue.direction == BACKWARD:
            self._traffic.queues[stage.number, FORWARD].under_way -= n
        elif queue.direction == FORWARD and not queue.backward:
            queue.under_way += n

    def _changes_of(self, worker: int) -> Dispatch | None:
        """The oldest parameter changes that wait for a worker."""
        waiting = self._changes.get(worker)
        if waiting is None:
            return None
        changes = waiting.popleft()
        if not waiting:
            del self._changes[worker]
        return changes

    def _queue_changes(self, worker: int, changes: list[Change]) -> None:
        if changes:
            states = np.zeros((0, self.plan.layout.width), np.int64)
            dispatch = Dispatch(0, worker, None, "update", states, NO_CELLS, NO_CELLS, changes=changes)
            self._changes.setdefault(worker, deque()).append(dispatch)
            self._stirred.add(worker)

    def _controller(self) -> None:
        """Synchronous and pipeline training: when all instances of a round have ended, the controller lets every node update."""
        every = self.settings.flush_every
        if every is None or self._inflight.count[True] or self._changes or self._since_flush < every:
            return
        self._since_flush = 0
        self.flush()

    # -- laws

    def _checked(self) -> None:
        if self._check:
            self.check_invariants()

    def check_invariants(self) -> None:
        """Recounts references from scratch, and checks the throttle and that nothing leaks.

        Raises:
          InvariantError: If a count is off.
        """
        laws.check(self._traffic, self.settings.max_active_keys, self.pools, self.idle)


def _replica_groups(plan: Plan) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for node in plan.graph.parameterised.values():
        if node.options.replica_of:
            groups.setdefault(node.options.replica_of, []).append(node.name)
    return groups
