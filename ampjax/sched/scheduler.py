"""The scheduler: a pure state machine. Events in (instances pumped, dispatch done), actions out (dispatch this batch).

It owns the messages: states, cells, queues, joins, references. It knows nothing of JAX, asyncio or clocks: a driver asks for a
worker's next action with `next`, carries it out, and says `done` when its messages may travel on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ampjax.errors import DeadlockError, InvariantError, LimitError, MessageError
from ampjax.ir.instances import Messages
from ampjax.ir.payload import RouteBy
from ampjax.ir.state import INSTANCE, SLOT, State
from ampjax.sched import explain
from ampjax.sched.build import NO_CELLS, Builder
from ampjax.sched.dispatch import Change, Dispatch
from ampjax.sched.group import Groups
from ampjax.sched.inflight import InFlight
from ampjax.sched.join import Join
from ampjax.sched.plan import HOST, ArenaKey, Leaf, Plan, Stage, Targets
from ampjax.sched.policy import Policy, backward_first, balanced
from ampjax.sched.queues import BACKWARD, FORWARD, INFER, Chunk, Queue
from ampjax.sched.route import Batch, Router
from ampjax.sched.slots import N_FIXED, OWNER, ROW, STAGE, Cells, SlotPool
from ampjax.sched.stats import NodeStats, StageStats, Statistics
from ampjax.sched.updates import ReplicaSync, Updates


@dataclass(frozen=True, kw_only=True)
class SchedulerSettings:
    """What the scheduler needs to know beside the plan.

    Args:
      max_active_keys: Training instances in flight at most; so for inference.
      min_admission: Instances are admitted when there is room for so many at once.
      max_dispatch_size: Rows in one dispatch at most (a single ragged message may hold more).
      intervals: `min_update_interval` of each parameterised node.
      stashed: Nodes whose adjoint uses the forward pass's parameters.
      policy: Which queue goes next.
      flush_every: For synchronous and pipeline training: instances between updates by the controller; None for asynchronous.
      sync: How replicas are kept together.
      capacities: First size of each arena, in rows; others start at `capacity`.
      capacity: See `capacities`.
      limits: Largest size of each arena, in rows; others have `limit`.
      limit: See `limits`.
      history: Dispatches that `story` can tell of.
    """

    max_active_keys: int = 16
    min_admission: int = 1
    max_dispatch_size: int = 64
    intervals: Mapping[str, int] = field(default_factory=dict)
    stashed: tuple[str, ...] = ()
    policy: Policy = balanced
    flush_every: int | None = None
    sync: ReplicaSync = field(default_factory=ReplicaSync)
    capacities: Mapping[ArenaKey, int] = field(default_factory=dict)
    capacity: int = 256
    limits: Mapping[ArenaKey, int] = field(default_factory=dict)
    limit: int = 1 << 30
    history: int = 2000


@dataclass(frozen=True)
class Feed:
    """Where pumped payloads go: arena, slots `[r]`, and the payload rows; and the pump's name."""

    pump: str
    arena: ArenaKey
    slots: np.ndarray
    payload: np.ndarray


class Scheduler:
    """The state machine.

    Args:
      plan: The graph, cut into stages.
      settings: Throttle, intervals, policy, limits.
      check: True checks the invariants after every event (slow; for tests).
    """

    def __init__(self, plan: Plan, settings: SchedulerSettings, check: bool = False):
        self.plan, self.settings, self._check = plan, settings, check
        types = {name: node.op.type for name, node in plan.graph.pumps.items()}
        self._pumps = [(name, wire, (HOST, wire.shape, wire.dtype.name)) for name, wire in types.items()]
        self.replica_groups = _replica_groups(plan)
        intervals = {node: settings.intervals.get(node, 1) for node in plan.graph.parameterised}
        self.updates = Updates(intervals, self.replica_groups, settings.sync, settings.flush_every is None)
        self.pools: dict[ArenaKey, SlotPool] = {}
        self.history: deque[Dispatch] = deque(maxlen=settings.history)
        self._number = 0
        self.without_losses = False
        self._caps: dict[tuple[int, str], int] = {}
        self._clear()
        self.reset_statistics()

    def _clear(self) -> None:
        """Starts with nothing in flight."""
        plan, layout = self.plan, self.plan.layout
        links = max((len(s.ports) + max(1, len(s.outputs)) - 1 + len(s.params) for s in plan.stages), default=0)
        self._cells = Cells(layout.width, links)
        self._inflight = InFlight()
        self._router = Router(layout, self._cells, self._inflight.topologies)
        self._builder = Builder(plan, self._cells, self._inflight, self.updates, self.settings.stashed, self.pool)
        joining = [s for s in plan.stages if len(s.ports) > 1 and s.kind != "group"]
        self._joins = {
            s.number: Join(
                s.name, tuple(p.name for p in s.ports), s.join, tuple(p.type.fields for p in s.ports), layout
            )
            for s in joining
        }
        self._groups = {s.number: Groups(s, layout) for s in plan.stages if s.kind == "group"}
        self._parts: dict[int, np.ndarray] = {}
        stages = [s for s in plan.stages if s.kind != "group"]
        self._queues = {
            (s.number, d): Queue(s, d, self._max_rows(s, d)) for s in stages for d in (FORWARD, BACKWARD, INFER)
        }
        self._busy: list[dict[Queue, None]] = [{} for _ in range(plan.workers)]
        self._changes: deque[Dispatch] = deque()
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

    def open(self, ids: np.ndarray, train: bool = True) -> np.ndarray:
        """Admits instances that will be pumped to; returns their slots `[n]`. `close` them when everything has been pumped."""
        slots = self._inflight.open(np.asarray(ids), train)
        self._since_flush += len(slots) if train else 0
        self.stats.most_in_flight = max(self.stats.most_in_flight, self._inflight.total)
        return slots

    def pump(self, slots: np.ndarray, batch: Mapping[str, Messages]) -> list[Feed]:
        """Pumps messages for open instances; returns where the driver must put their payloads, before the next dispatch.

        Args:
          slots: The instances' slots `[n]`; `Messages.instance` counts positions in it.
          batch: Their messages, by pump.

        Raises:
          MessageError: If a pump is unknown, or a state field is missing or not known.
        """
        known = {name: number for number, (name, *_) in enumerate(self._pumps)}
        for name in batch:
            if name not in known:
                raise MessageError(
                    f"pump `{name}`",
                    f"one of the graph's pumps {sorted(known)}",
                    "an unknown name",
                    "Name the pumps of the graph in the instance.",
                )
        feeds: list[Feed] = []
        routed: list[tuple[str, Batch]] = []
        for name, messages in batch.items():
            wire = self._pumps[known[name]][1]
            if wire.topology:
                maps = self._inflight.topologies.setdefault(name, {})
                maps.update(zip(slots[messages.instance].tolist(), messages.payload, strict=True))
            elif len(messages.instance):
                pumped, feed = self._pumped(known[name], slots, messages)
                routed.append((name, pumped))
                feeds.append(feed)
        for name, pumped in routed:
            self._emit([(self.plan.pumps[name], pumped)])
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
        for i, changes in enumerate(self._changes):
            if changes.worker == worker:
                del self._changes[i]
                return self._issue(changes)
        queue = self._pick(worker)
        if queue is None:
            return None
        dispatch = self._builder.build(queue, self.stats)
        if dispatch.direction == FORWARD and not queue.backward:
            queue.under_way += dispatch.n_messages
        elif dispatch.direction == BACKWARD:
            self._queues[queue.stage.number, FORWARD].under_way -= dispatch.n_messages
        if not queue.items:
            del self._busy[worker][queue]
        return self._issue(dispatch)

    def done(self, dispatch: Dispatch) -> None:
        """Lets a dispatch's messages travel on: a driver says so at once (order on a device is enough), or when it has ended."""
        self._issued -= 1
        stage = dispatch.stage
        if stage is not None:
            train = dispatch.direction != INFER
            if dispatch.direction == BACKWARD:
                self._answer(stage, dispatch)
                self._end(stage, dispatch.cells, dispatch.out_rows)
            else:
                if stage.outputs:
                    self._emit(list(zip(stage.routes, self._outputs(stage, dispatch, train), strict=True)))
                if not train or stage.kind == "loss":
                    self._answer(stage, dispatch)
        self._controller()
        self._checked()

    def end_of_epoch(self) -> None:
        """Asks the replicas for what the end of an epoch asks of them; the actions come from `next`."""
        self._queue_changes(0, self.updates.end_of_epoch())

    def flush(self) -> None:
        """Updates every node from what it has accumulated, whatever its interval; the actions come from `next`."""
        by_worker: dict[int, list[Change]] = {}
        for node, changes in self.updates.flush(self.stats).items():
            by_worker.setdefault(self.plan.worker_of[node], []).extend(changes)
        for worker, changes in by_worker.items():
            self._queue_changes(worker, changes)

    def end_of_data(self) -> None:
        """Says that no more training instances come in this epoch: a round that is not full is updated all the same."""
        if self.settings.flush_every is not None and self._since_flush and not self._inflight.count[True]:
            self._since_flush = 0
            self.flush()

    def abandon(self) -> None:
        """Forgets everything in flight (after an interrupt or an error). What nodes have accumulated stays counted."""
        for key, pool in list(self.pools.items()):
            self.pools[key] = SlotPool(pool.capacity, pool.limit)
        self._clear()

    def resize(self, settings: SchedulerSettings) -> None:
        """Takes new arena sizes and limits; nothing may be in flight."""
        self.settings = settings
        self._caps.clear()
        self.pools.clear()
        self._clear()

    def cap(self, stage: Stage, direction: str, rows: int) -> bool:
        """Lets no dispatch of a stage hold more than `rows` rows from now on (a single ragged message may); a cap is only ever raised.

        Returns:
          Whether it is new or higher than before.
        """
        if rows <= self._caps.get((stage.number, direction), 0):
            return False
        self._caps[stage.number, direction] = rows
        self._queues[stage.number, direction].max_rows = self._max_rows(stage, direction)
        return True

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
        return any(c.worker == worker for c in self._changes) or self._pick(worker) is not None

    @property
    def finished(self) -> list[tuple[int, bool]]:
        """Instances that have ended since this was last asked: number, and whether it was a training instance."""
        ended, self._inflight.finished = self._inflight.finished, []
        self.stats.instances += len(ended)
        return ended

    @property
    def in_flight(self) -> Mapping[bool, int]:
        """Instances in flight: training (True) and inference (False)."""
        return dict(self._inflight.count)

    def waiting(self) -> list[str]:
        """Who waits for what: one line per message in a join, and per open group."""
        return explain.waiting(self.plan, self._joins, self._groups)

    def story(self, instance: int, **fields: int) -> list[str]:
        """What happened to an instance's messages (with these state fields), as far as the history goes back."""
        return explain.story(self.plan, self.history, instance, fields)

    def diagnose(self) -> LimitError | DeadlockError:
        """Why nothing can move."""
        for queue in (q for busy in self._busy for q in busy):
            return explain.no_room(queue, [self.pool(key) for key in queue.stage.arenas], self._inflight.total)
        return explain.deadlock(self.waiting(), self._inflight.total)

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

    def _ready(self, worker: int) -> list[Queue]:
        """A worker's queues that can be dispatched."""
        return [q for q in self._busy[worker] if q.backward or self._builder.room(q)]

    def _pick(self, worker: int) -> Queue | None:
        """The queue that the policy wants; if it wants none and nothing else moves, `backward_first`'s choice."""
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

    # -- messages: from emission to delivery

    def _pumped(self, number: int, slots: np.ndarray, messages: Messages) -> tuple[Batch, Feed]:
        """Cells and host slots for pumped messages."""
        name, wire, arena = self._pumps[number]
        layout = self.plan.layout
        if set(messages.fields) != set(wire.fields):
            raise MessageError(
                f"pump `{name}`",
                f"messages with the state fields {sorted(wire.fields)}",
                f"{sorted(messages.fields)}",
                "Pump each declared field, and no other.",
            )
        if wire.ragged and messages.sizes is None:
            raise MessageError(
                f"pump `{name}`", "sizes, the rows of each message of a ragged pump", "none", "Give `Messages.sizes`."
            )
        of = slots[messages.instance]
        states = np.zeros((len(of), layout.width), np.int64)
        states[:, SLOT] = of
        states[:, INSTANCE] = self._inflight.ids[of]
        for field_, values in messages.fields.items():
            states[:, layout.column(field_)] = values
        rows = self.pool(arena).take(
            int(messages.sizes.sum()) if wire.ragged and messages.sizes is not None else len(of)
        )
        cells = self._cells.take(states, -1 - number, None if wire.ragged else rows)
        if wire.ragged and messages.sizes is not None:
            self._cells.set_rows(cells, rows, np.asarray(messages.sizes))
        self._inflight.hold(of)
        return Batch(states, cells, self._inflight.is_train(int(of[0]))), Feed(name, arena, rows, messages.payload)

    def _outputs(self, stage: Stage, dispatch: Dispatch, train: bool) -> list[Batch]:
        """A forward dispatch's new messages, per output."""
        states = dispatch.states if stage.route_by is None else self._chosen(stage.route_by, dispatch)
        batches = [Batch(states, dispatch.cells, train)]
        if len(stage.outputs) > 1:
            extras = self._cells.table[dispatch.cells, self._builder.columns[stage.number].extras]
            batches += [Batch(dispatch.states, extras[:, j], train) for j in range(extras.shape[1])]
        if not train:
            self._inflight.hold(dispatch.states[:, SLOT])
        return batches

    def _chosen(self, op: RouteBy, dispatch: Dispatch) -> np.ndarray:
        """The states with what was read from payloads, or what is assumed where nothing was."""
        layout, stage, states = self.plan.layout, dispatch.stage, dispatch.states.copy()
        assert stage is not None
        choices = dispatch.choices
        if choices is None:
            choices = op.assumed(f"node `{stage.name}`", State(states, layout, stage.ports[0].type.fields))
        states[:, [layout.column(name) for name in op.names]] = choices.reshape(len(states), len(op.names))
        return states

    def _emit(self, routes: list[tuple[Targets, Batch]]) -> None:
        """Routes new messages. The emission itself holds a reference until all of it is routed, so nothing settles too early."""
        owners, train = routes[0][1].cells, routes[0][1].train
        for targets, batch in routes:
            self._router.route(targets, batch, self._deliver)
        left = self._cells.refs[owners] - 1
        self._cells.refs[owners] = left
        self._settle(owners[left == 0], train)

    def _deliver(self, leaf: Leaf, batch: Batch) -> None:
        """Messages have arrived at a stage's port: they wait in its join, group or queue, holding a reference each."""
        stage = self.plan.stages[leaf.stage]
        if (batch.train and stage.kind == "sink") or (not batch.train and stage.kind == "loss" and self.without_losses):
            return
        cells = batch.cells
        owners = cells if stage.direct[leaf.port] else self._cells.table[cells, OWNER]
        if stage.distinct:
            self._cells.refs[owners] += 1
        else:
            np.add.at(self._cells.refs, owners, 1)
        if stage.kind == "group":
            self._group(stage, leaf.port, batch)
            return
        states, inputs = batch.states, cells[:, None]
        if len(stage.ports) > 1:
            states, inputs = self._joins[leaf.stage].put(leaf.port, states, cells)
        if len(states):
            self._enqueue(stage, FORWARD if batch.train else INFER, states, inputs, inputs[:, 0])

    def _group(self, stage: Stage, port: int, batch: Batch) -> None:
        closed = self._groups[stage.number].put(port, batch.states, batch.cells)
        if not closed:
            return
        states = np.array([c.state for c in closed])
        cells = self._cells.take(states, stage.number, None)
        for cell, group in zip(cells.tolist(), closed, strict=True):
            self._cells.rows[cell] = self._cells.table[group.members, ROW]
            self._parts[cell] = np.append(group.members, group.opener) if group.opener else group.members
        if not batch.train:
            self._inflight.hold(states[:, SLOT])
        self._emit([(stage.routes[0], Batch(states, cells, batch.train))])

    def _enqueue(
        self, stage: Stage, direction: str, states: np.ndarray, cells: np.ndarray, first_inputs: np.ndarray
    ) -> None:
        """Adds ready messages to a queue; for ragged stages `first_inputs` tells their sizes."""
        sizes = None
        if stage.ragged:
            rows = self._cells.rows
            sizes = np.fromiter((len(rows[c]) for c in first_inputs.tolist()), np.int64, len(first_inputs))
        queue = self._queues[stage.number, direction]
        queue.put(Chunk(states, cells, sizes, self._number))
        self._busy[stage.worker][queue] = None

    # -- messages: from answer to end

    def _answer(self, stage: Stage, dispatch: Dispatch) -> None:
        """A stage has answered its input messages: each owner is owed one gradient less."""
        refs, train = self._cells.refs, dispatch.direction != INFER
        for port in range(len(stage.ports)):
            cells = dispatch.inputs[:, port]
            owners = cells if stage.direct[port] else self._cells.table[cells, OWNER]
            if stage.distinct:
                left = refs[owners] - 1
                refs[owners] = left
                self._settle(owners[left == 0], train)
            else:
                self._pay(owners, train)

    def _pay(self, owners: np.ndarray, train: bool) -> None:
        """Gives back one reference for each mention of an owner."""
        refs = self._cells.refs
        np.subtract.at(refs, owners, 1)
        settled = owners[refs[owners] == 0]
        if len(settled) > 1:  # an owner that was mentioned twice is there twice: its last mention counts
            order = -1 - np.arange(len(settled))
            refs[settled] = order
            settled = settled[refs[settled] == order]
            refs[settled] = 0
        self._settle(settled, train)

    def _settle(self, cells: np.ndarray, train: bool) -> None:
        """All consumers have answered: the producers' backward messages are ready, or the rows' lives end."""
        if not len(cells):
            return
        producers = self._cells.table[cells, STAGE]
        first = int(producers[0])
        if len(producers) == 1 or not np.count_nonzero(producers != first):
            self._settle_from(first, cells, train)
            return
        for number in dict.fromkeys(producers.tolist()):
            self._settle_from(number, cells[producers == number], train)

    def _settle_from(self, number: int, cells: np.ndarray, train: bool) -> None:
        if number < 0:
            self._end_pumped(-1 - number, cells)
            return
        stage = self.plan.stages[number]
        table = self._cells.table
        if stage.kind == "group":
            parts = [self._parts.pop(c) for c in cells.tolist()]
            slots = table[cells, N_FIXED + SLOT]
            self._cells.give(cells)
            if not train:
                self._inflight.release(slots)
            self._pay(table[np.concatenate(parts), OWNER], train)
        elif train:
            mine = table[cells]
            self._enqueue(stage, BACKWARD, mine[:, self._cells.state], cells, mine[:, self._cells.links])
        else:
            mine = table[cells]
            self._end(stage, cells, self._builder.output_rows(stage, mine))
            self._inflight.release(mine[:, N_FIXED + SLOT])

    def _end(self, stage: Stage, cells: np.ndarray, rows: list[np.ndarray]) -> None:
        """Frees invocations and their output rows."""
        for pool, own in zip(self._builder.pools(stage), rows, strict=True):
            pool.give(own)
        self._cells.give(cells)

    def _end_pumped(self, number: int, cells: np.ndarray) -> None:
        """Frees pumped messages; instances of which nothing is left end."""
        _, wire, arena = self._pumps[number]
        mine = self._cells.table[cells]
        self.pool(arena).give(self._cells.rows_of(cells)[0] if wire.ragged else mine[:, ROW])
        self._cells.give(cells)
        self._inflight.release(mine[:, N_FIXED + SLOT])

    # -- dispatches and the controller

    def _max_rows(self, stage: Stage, direction: str) -> int:
        own = [n.options.max_dispatch_size for n in stage.nodes if n.options.max_dispatch_size]
        return min([self.settings.max_dispatch_size, self._caps.get((stage.number, direction), 1 << 60), *own])

    def _issue(self, dispatch: Dispatch) -> Dispatch:
        self._number += 1
        self._issued += 1
        dispatch.number = self._number
        self.history.append(dispatch)
        stage = dispatch.stage
        if stage is not None:
            longest = self._queues[stage.number, dispatch.direction].longest
            self.stats.stages[stage.name].add(dispatch.direction, len(dispatch.states), dispatch.n_rows, longest)
        return dispatch

    def _queue_changes(self, worker: int, changes: list[Change]) -> None:
        if changes:
            states = np.zeros((0, self.plan.layout.width), np.int64)
            self._changes.append(Dispatch(0, worker, None, "update", states, NO_CELLS, NO_CELLS, changes=changes))

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
        """Recounts references from scratch, and checks the throttle and that nothing leaks (DESIGN, laws 1 and 5).

        Raises:
          InvariantError: If a count is off.
        """
        owed: dict[int, int] = {}
        for cells in self._holders():
            for owner in self._cells.table[cells.reshape(-1), OWNER].tolist():
                owed[owner] = owed.get(owner, 0) + 1
        wrong = [owner for owner, count in owed.items() if self._cells.refs[owner] < count]
        if wrong:
            raise _broken(
                f"message {wrong[0]}",
                f"at least {owed[wrong[0]]} references, one per holder",
                f"{int(self._cells.refs[wrong[0]])}",
            )
        if max(self._inflight.count.values()) > self.settings.max_active_keys:
            raise _broken(
                "throttle", f"at most {self.settings.max_active_keys} instances in flight", f"{self._inflight.count}"
            )
        used = {key: pool.used for key, pool in self.pools.items() if pool.used}
        if self.idle and (self._cells.alive or used or owed):
            raise _broken(
                "after everything ended",
                "no message, no slot in use, nothing waiting",
                f"{self._cells.alive} cells, slots {used}, {len(owed)} held",
            )

    def _holders(self) -> list[np.ndarray]:
        """The cells that joins, open groups, closed groups and forward queues hold."""
        held = [np.array([cell for *_, cell in join.pending()], np.int64) for join in self._joins.values()]
        for groups in self._groups.values():
            held += [
                np.array([c for _, c in g.members] + ([g.opener] if g.opener else []), np.int64)
                for g in groups.open.values()
            ]
        held += list(self._parts.values())
        return held + [
            chunk.cells for queue in self._queues.values() if queue.direction != BACKWARD for chunk in queue.contents()
        ]


def _replica_groups(plan: Plan) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for node in plan.graph.parameterised.values():
        if node.options.replica_of:
            groups.setdefault(node.options.replica_of, []).append(node.name)
    return groups


def _broken(where: str, expected: str, got: str) -> InvariantError:
    return InvariantError(where, expected, got, "This is a mistake in ampjax: please report it.")
