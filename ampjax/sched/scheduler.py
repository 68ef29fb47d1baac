"""The scheduler: a pure state machine. Events in (instances pumped, dispatch done), actions out (dispatch this batch).

It owns the messages: states, cells, queues, joins, references, updates that are due. It knows nothing of JAX, asyncio or clocks:
a driver asks for a worker's next action with `next`, carries it out, and says `done` when its messages may travel on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ampjax.errors import DeadlockError, InvariantError, LimitError, MessageError
from ampjax.ir.instances import Messages, Topology
from ampjax.ir.state import INSTANCE, SLOT, State
from ampjax.sched.dispatch import Change, Dispatch
from ampjax.sched.group import Groups
from ampjax.sched.join import Join
from ampjax.sched.plan import HOST, ArenaKey, Leaf, Plan, Stage
from ampjax.sched.policy import Policy, balanced
from ampjax.sched.queues import BACKWARD, FORWARD, INFER, Chunk, Queue
from ampjax.sched.route import Batch, Router, find_topology
from ampjax.sched.slots import N_FIXED, OWNER, PUMP, REFS, ROW, STAGE, Cells, SlotPool
from ampjax.sched.stats import NodeStats, StageStats, Statistics
from ampjax.sched.updates import ReplicaSync, Updates


@dataclass(frozen=True)
class SchedulerSettings:
    """What the scheduler needs to know beside the plan.

    Args:
      max_active_keys: Training instances in flight at most; so for inference.
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
    max_dispatch_size: int = 64
    intervals: Mapping[str, int] = field(default_factory=dict)
    stashed: tuple[str, ...] = ()
    policy: Policy = balanced
    flush_every: int | None = None
    sync: ReplicaSync = ReplicaSync()
    capacities: Mapping[ArenaKey, int] = field(default_factory=dict)
    capacity: int = 256
    limits: Mapping[ArenaKey, int] = field(default_factory=dict)
    limit: int = 1 << 30
    history: int = 2000


@dataclass(frozen=True)
class Feed:
    """Where pumped payloads go: arena, slots `[r]`, and the payload rows."""

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
        stages = plan.stages
        self._n_ports = [len(stage.ports) for stage in stages]
        self._n_outs = [max(1, len(stage.outputs)) for stage in stages]
        n_links = max(
            (p + o - 1 + len(s.params) for p, o, s in zip(self._n_ports, self._n_outs, stages, strict=True)), default=0
        )
        self.cells = Cells(plan.layout.width, n_links)
        self._link = self.cells.links
        self._topologies: dict[str, dict[int, Topology]] = {}
        self._router = Router(plan.layout, self.cells, self._topologies)
        self._joins = {
            s.number: Join(
                s.name, tuple(p.name for p in s.ports), s.join, tuple(p.type.fields for p in s.ports), plan.layout
            )
            for s in stages
            if len(s.ports) > 1 and s.kind != "group"
        }
        self._groups = {s.number: Groups(s, plan.layout) for s in stages if s.kind == "group"}
        self._parts: dict[int, np.ndarray] = {}
        self._queues = {
            (s.number, d): Queue(s, d, self._max_rows(s))
            for s in stages
            if s.kind != "group"
            for d in (FORWARD, BACKWARD, INFER)
        }
        self._busy: list[dict[Queue, None]] = [{} for _ in range(plan.workers)]
        self.pools: dict[ArenaKey, SlotPool] = {}
        groups: dict[str, list[str]] = {}
        for node in plan.graph.parameterised.values():
            if node.options.replica_of:
                groups.setdefault(node.options.replica_of, []).append(node.name)
        self.replica_groups = groups
        self.updates = Updates(
            {n: settings.intervals.get(n, 1) for n in plan.graph.parameterised},
            groups,
            settings.sync,
            settings.flush_every is None,
        )
        self._held: dict[tuple[int, tuple[int, ...]], int] = {}
        self.stats = Statistics()
        self.reset_statistics()
        self._number = 0
        self._issued = 0
        self.history: deque[Dispatch] = deque(maxlen=settings.history)
        self._flush: deque[Dispatch] = deque()
        # instances in flight
        self._free_slots: list[int] = []
        self._live = np.zeros(0, np.int64)
        self._ids: list[int] = []
        self._train: list[bool] = []
        self.in_flight = {True: 0, False: 0}
        self._since_flush = 0
        self.without_losses = False
        self.finished: list[tuple[int, bool]] = []

    # -- events: instances

    def room(self, train: bool = True) -> int:
        """Instances that `max_active_keys`, and the controller's next update, allow to be admitted now."""
        room = self.settings.max_active_keys - self.in_flight[train]
        if train and self.settings.flush_every is not None:
            room = min(room, self.settings.flush_every - self._since_flush)
        return max(0, room)

    def open(self, ids: np.ndarray, train: bool = True) -> np.ndarray:
        """Admits instances that will be pumped to; returns their slots `[n]`. `close` them when everything has been pumped."""
        slots = []
        for i in np.asarray(ids).tolist():
            if not self._free_slots:
                n = len(self._ids)
                self._free_slots.extend(range(2 * n + 7, n - 1, -1))
                self._ids.extend([0] * (n + 8))
                self._train.extend([True] * (n + 8))
                self._live = np.concatenate([self._live, np.zeros(n + 8, np.int64)])
            slot = self._free_slots.pop()
            self._ids[slot], self._train[slot] = i, train
            slots.append(slot)
        out = np.array(slots, np.int64)
        self._live[out] = 1
        self.in_flight[train] += len(slots)
        self._since_flush += len(slots) if train else 0
        self.stats.most_in_flight = max(self.stats.most_in_flight, sum(self.in_flight.values()))
        return out

    def pump(self, slots: np.ndarray, batch: Mapping[str, Messages]) -> list[Feed]:
        """Pumps messages for open instances; returns where the driver must put their payloads, before the next dispatch.

        Raises:
          MessageError: If a pump is unknown, or a state field is missing or not known.
        """
        feeds: list[Feed] = []
        ready: list[tuple[str, Batch]] = []
        for name, messages in batch.items():
            node = self.plan.graph.pumps.get(name)
            if node is None:
                raise MessageError(
                    f"pump `{name}`",
                    f"one of the graph's pumps {sorted(self.plan.graph.pumps)}",
                    "an unknown name",
                    "Name the pumps of the graph in the instance.",
                )
            if node.op.type.topology:
                maps = self._topologies.setdefault(name, {})
                maps.update(zip(slots[messages.instance].tolist(), messages.payload, strict=True))
            elif len(messages.instance):
                batch_, feed = self._pumped(name, slots, messages)
                ready.append((name, batch_))
                feeds.append(feed)
        for name, messages_ in ready:
            self._emit(messages_, [(self.plan.pumps[name], messages_)])
        self._checked()
        return feeds

    def close(self, slots: np.ndarray) -> None:
        """Says that nothing more will be pumped for these instances."""
        self._unlive(slots)
        self._checked()

    # -- actions

    def next(self, worker: int) -> Dispatch | None:
        """The worker's next action, or None if there is none now; it counts as issued.

        Raises:
          MessageError: If ragged inputs or a topology do not fit each other.
        """
        for i, flush in enumerate(self._flush):
            if flush.worker == worker:
                del self._flush[i]
                return self._issue(flush)
        queues = [q for q in self._busy[worker] if self._fits(q)]
        if not queues:
            return None
        queue = queues[0] if len(queues) == 1 else self.settings.policy(queues, self._number)
        dispatch = self._build(queue)
        if not queue.items:
            self._busy[worker].pop(queue, None)
        return self._issue(dispatch)

    def done(self, dispatch: Dispatch) -> None:
        """Lets a dispatch's messages travel on: a driver says so at once (order on a device is enough), or when it has ended."""
        self._issued -= 1
        stage = dispatch.stage
        if stage is None:
            self._controller()
            return
        train = dispatch.direction != INFER
        if dispatch.direction == BACKWARD:
            self._pay(dispatch.inputs.reshape(-1), True)
            self._end(dispatch.cells, stage)
        else:
            if stage.outputs:
                batches = [Batch(dispatch.states, dispatch.cells, train)]
                extra = self.cells.table[dispatch.cells, self._extra(stage)] if len(stage.outputs) > 1 else None
                for j in range(1, len(stage.outputs)):
                    assert extra is not None
                    batches.append(Batch(dispatch.states, extra[:, j - 1], train))
                self._emit(batches[0], list(zip(stage.routes, batches, strict=True)))
            if not train or stage.kind == "loss":
                self._pay(dispatch.inputs.reshape(-1), train)
        self._controller()
        self._checked()

    def end_of_epoch(self) -> None:
        """Asks the replicas for what the end of an epoch asks of them; the actions come from `next`."""
        changes = self.updates.end_of_epoch()
        if changes:
            self._queue_changes(0, changes)

    def flush(self) -> None:
        """Updates every node from what it has accumulated, whatever its interval; the actions come from `next`."""
        by_worker: dict[int, list[Change]] = {}
        for node, changes in self.updates.flush(self.stats).items():
            by_worker.setdefault(self.plan.worker_of[node], []).extend(changes)
        for worker, changes in by_worker.items():
            self._queue_changes(worker, changes)

    def abandon(self) -> None:
        """Forgets everything in flight (after an interrupt or an error); parameters and accumulated gradients stay counted."""
        plan, settings, check, number, stats, updates = (
            self.plan,
            self.settings,
            self._check,
            self._number,
            self.stats,
            self.updates,
        )
        pools = self.pools
        self.__init__(plan, settings, check)  # type: ignore[misc]
        self._number, self.stats, self.updates = number, stats, updates
        for key, pool in pools.items():
            self.pools[key] = SlotPool(pool.capacity, pool.limit)

    def resize(self, settings: SchedulerSettings) -> None:
        """Takes new arena sizes and limits; nothing may be in flight."""
        self.settings = settings
        self.pools.clear()

    # -- questions

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight and no action is left."""
        return not any(self.in_flight.values()) and not self._flush and not self._issued

    @property
    def can_move(self) -> bool:
        """Whether some worker has an action, or one is under way."""
        return bool(self._issued or self._flush or any(self._fits(q) for busy in self._busy for q in busy))

    def can_move_on(self, worker: int) -> bool:
        """Whether this worker has an action."""
        return any(f.worker == worker for f in self._flush) or any(self._fits(q) for q in self._busy[worker])

    def diagnose(self) -> LimitError | DeadlockError:
        """Why nothing can move."""
        stuck = [q for busy in self._busy for q in busy]
        if stuck:
            q = stuck[0]
            arena = next(
                q.stage.arena(j) for j in range(len(q.stage.outputs)) if self.pool(q.stage.arena(j)).room < 1 or True
            )
            pool = self.pool(arena)
            n = sum(self.in_flight.values())
            who = f"instance {self._ids[int(q.contents()[0].states[0, SLOT])]}"
            return LimitError(
                f"{who}, stage `{q.stage.name}`",
                f"room for its rows of shape {arena[1]} {arena[2]}",
                f"{pool.used} rows in use by {n} instance(s) in flight, at most {pool.limit - 1}",
                "Raise `memory_limit`, or lower `max_active_keys`.",
            )
        lines = self.waiting()
        return DeadlockError(
            f"{sum(self.in_flight.values())} instance(s) in flight",
            "messages that can move",
            "none: "
            + (
                "; ".join(lines[:8]) + (f"; and {len(lines) - 8} more" if len(lines) > 8 else "")
                or "an instance whose pumping has not ended"
            ),
            "Pump what the nodes wait for, or mend the conditions that route it.",
        )

    def waiting(self) -> list[str]:
        """Who waits for what: one line per node and missing port."""
        lines = []
        for number, join in self._joins.items():
            stage = self.plan.stages[number]
            ports, cells = join.pending()
            for cell in dict.fromkeys(cells.tolist()):
                there = {int(p) for p, c in zip(ports, cells, strict=True) if c == cell}
                state = self._state_of(cell, stage.ports[min(there)].type.fields)
                missing = [p.name for i, p in enumerate(stage.ports) if i not in there]
                lines.append(
                    f"node `{stage.name}` has {state!r} on port {stage.ports[min(there)].name} and waits for the same key on port {' or '.join(missing)}"
                )
        for groups in self._groups.values():
            for group in groups.open.values():
                members = len(group.members)
                what = "its opener" if group.size is None else f"{group.size - members} more member(s) of {group.size}"
                cell = group.members[0][1] if members else group.opener
                state = self._state_of(cell, groups.stage.ports[0 if members else 1].type.fields)
                lines.append(f"group `{groups.stage.name}` with {state!r} waits for {what}")
        return lines

    def story(self, instance: int, **fields: int) -> list[str]:
        """What happened to an instance's messages (with these state fields), as far as the history goes back."""
        layout, lines = self.plan.layout, []
        for d in self.history:
            mask = d.states[:, INSTANCE] == instance
            for name, value in fields.items():
                mask &= d.states[:, layout.column(name)] == value
            if d.stage is not None and mask.any():
                state = State(d.states[mask][:1], layout, d.stage.ports[0].type.fields)
                lines.append(
                    f"dispatch {d.number}: {d.direction} `{d.stage.name}` on worker {d.worker}, {state!r}"
                    + (f" and {int(mask.sum()) - 1} more" if mask.sum() > 1 else "")
                )
        return lines

    def pool(self, key: ArenaKey) -> SlotPool:
        """The slots of an arena."""
        if key not in self.pools:
            s = self.settings
            self.pools[key] = SlotPool(s.capacities.get(key, s.capacity), s.limits.get(key, s.limit))
        return self.pools[key]

    def reset_statistics(self) -> None:
        """Starts counting anew."""
        self.stats = Statistics(
            {s.name: StageStats() for s in self.plan.stages if s.kind != "group"},
            {n: NodeStats() for n in self.plan.graph.parameterised},
        )

    # -- messages

    def _pumped(self, name: str, slots: np.ndarray, messages: Messages) -> tuple[Batch, Feed]:
        """Cells and host slots for pumped messages."""
        wire, layout = self.plan.graph.pumps[name].op.type, self.plan.layout
        if set(messages.fields) != set(wire.fields):
            raise MessageError(
                f"pump `{name}`",
                f"messages with the state fields {sorted(wire.fields)}",
                f"{sorted(messages.fields)}",
                "Pump each declared field, and no other.",
            )
        n = len(messages.instance)
        states = np.zeros((n, layout.width), np.int64)
        of = slots[messages.instance]
        states[:, SLOT] = of
        states[:, INSTANCE] = [self._ids[s] for s in of.tolist()]
        for field_, values in messages.fields.items():
            states[:, layout.column(field_)] = values
        arena = (HOST, wire.shape, wire.dtype.name)
        if wire.ragged:
            if messages.sizes is None:
                raise MessageError(
                    f"pump `{name}`",
                    "sizes, the rows of each message of a ragged pump",
                    "none",
                    "Give `Messages.sizes`.",
                )
            rows = self.pool(arena).take(int(messages.sizes.sum()))
            cells = self.cells.take(states, PUMP, None)
            self.cells.rows.update(zip(cells.tolist(), np.split(rows, np.cumsum(messages.sizes)[:-1]), strict=True))
        else:
            rows = self.pool(arena).take(n)
            cells = self.cells.take(states, PUMP, rows)
        self.cells.table[cells, self._link] = self._pump_number(name)
        np.add.at(self._live, of, 1)
        return Batch(states, cells, self._train[int(of[0])]), Feed(arena, rows, messages.payload)

    def _pump_number(self, name: str) -> int:
        return list(self.plan.graph.pumps).index(name)

    def _emit(self, owners: Batch, routes: list) -> None:
        """Routes new messages. The emission itself holds a reference until all of it is routed, so nothing settles too early."""
        self.cells.table[owners.cells, REFS] += 1
        for targets, batch in routes:
            self._router.route(targets, batch, self._deliver)
        self._pay(owners.cells, owners.train)

    def _deliver(self, leaf: Leaf, batch: Batch) -> None:
        """Messages have arrived at a stage's port: they wait in its join, group or queue, holding a reference each."""
        stage = self.plan.stages[leaf.stage]
        if stage.kind == "sink" and batch.train or stage.kind == "loss" and self.without_losses and not batch.train:
            return
        owners = self.cells.table[batch.cells, OWNER]
        np.add.at(self.cells.table[:, REFS], owners, 1)
        if stage.kind == "group":
            self._group(stage, leaf.port, batch)
        elif leaf.stage in self._joins:
            states, inputs = self._joins[leaf.stage].put(leaf.port, batch.states, batch.cells)
            if len(states):
                self._enqueue(stage, FORWARD if batch.train else INFER, states, inputs)
        else:
            self._enqueue(stage, FORWARD if batch.train else INFER, batch.states, batch.cells[:, None])

    def _group(self, stage: Stage, port: int, batch: Batch) -> None:
        closed = self._groups[stage.number].put(port, batch.states, batch.cells)
        if not closed:
            return
        states = np.array([c.state for c in closed])
        cells = self.cells.take(states, stage.number, None)
        for cell, group in zip(cells.tolist(), closed, strict=True):
            self.cells.rows[cell] = self.cells.table[group.members, ROW]
            self._parts[cell] = np.append(group.members, group.opener) if group.opener else group.members
        np.add.at(self._live, states[:, SLOT], 1)
        out = Batch(states, cells, batch.train)
        self._emit(out, [(stage.routes[0], out)])

    def _enqueue(self, stage: Stage, direction: str, states: np.ndarray, cells: np.ndarray) -> None:
        sizes = None
        if stage.ragged:
            first = cells if cells.ndim == 1 else cells[:, 0]
            if direction == BACKWARD:
                first = self.cells.table[cells, self._link]
            rows = self.cells.rows
            sizes = np.fromiter((len(rows[c]) for c in first.tolist()), np.int64, len(first))
        queue = self._queues[stage.number, direction]
        queue.put(Chunk(states, cells, sizes, self._number))
        self._busy[stage.worker][queue] = None

    def _pay(self, cells: np.ndarray, train: bool) -> None:
        """Gives back one reference for each cell; what is owed nothing any more settles."""
        table = self.cells.table
        owners = table[cells, OWNER]
        np.subtract.at(table[:, REFS], owners, 1)
        settled = owners[table[owners, REFS] == 0]
        if not len(settled):
            return
        if len(settled) > 1:  # a cell that was paid twice is there twice: keep the last mention
            order = -1 - np.arange(len(settled))
            table[settled, REFS] = order
            settled = settled[table[settled, REFS] == order]
            table[settled, REFS] = 0
        producers = table[settled, STAGE]
        first = int(producers[0])
        if len(producers) == 1 or (producers == first).all():
            self._settle(first, settled, train)
        else:
            for number in dict.fromkeys(producers.tolist()):
                self._settle(number, settled[producers == number], train)

    def _settle(self, number: int, cells: np.ndarray, train: bool) -> None:
        """All consumers have answered: the producer's backward message is ready, or the row's life ends."""
        if number == PUMP:
            self._end(cells, None)
            return
        stage = self.plan.stages[number]
        if stage.kind == "group":
            parts = [self._parts.pop(c) for c in cells.tolist()]
            self._end(cells, stage)
            self._pay(np.concatenate(parts), train)
        elif train:
            self._enqueue(stage, BACKWARD, self.cells.table[cells, self.cells.state], cells)
        else:
            self._end(cells, stage)

    def _end(self, cells: np.ndarray, stage: Stage | None) -> None:
        """Frees owner cells with their slots; instances without any end too."""
        table = self.cells.table
        slots = table[cells, N_FIXED + SLOT]
        if stage is None:
            self._free_pumped(cells)
        elif stage.kind != "group":
            for j in range(len(stage.outputs)):
                outs = cells if j == 0 else table[cells, self._extra(stage)][:, j - 1]
                ragged = stage.outputs[j].ragged
                self.pool(stage.arena(j)).give(self.cells.rows_of(outs)[0] if ragged else table[outs, ROW])
        self.cells.give(cells)
        self._unlive(slots)

    def _free_pumped(self, cells: np.ndarray) -> None:
        pumps = list(self.plan.graph.pumps.values())
        numbers = self.cells.table[cells, self._link]
        for number in dict.fromkeys(numbers.tolist()):
            wire = pumps[number].op.type
            mine = cells[numbers == number]
            rows = self.cells.rows_of(mine)[0] if wire.ragged else self.cells.table[mine, ROW]
            self.pool((HOST, wire.shape, wire.dtype.name)).give(rows)

    def _unlive(self, slots: np.ndarray) -> None:
        np.subtract.at(self._live, slots, 1)
        over = slots[self._live[slots] == 0]
        for slot in dict.fromkeys(over.tolist()):
            train = self._train[slot]
            self.in_flight[train] -= 1
            self.finished.append((self._ids[slot], train))
            self.stats.instances += 1
            for maps in self._topologies.values():
                maps.pop(slot, None)
            self._free_slots.append(slot)

    # -- dispatches

    def _max_rows(self, stage: Stage) -> int:
        own = [n.options.max_dispatch_size for n in stage.nodes if n.options.max_dispatch_size]
        return min([self.settings.max_dispatch_size, *own])

    def _extra(self, stage: Stage) -> slice:
        """The columns of an invocation's further output cells."""
        start = self._link + len(stage.ports)
        return slice(start, start + len(stage.outputs) - 1)

    def _version_columns(self, stage: Stage) -> slice:
        start = self._link + len(stage.ports) + max(0, len(stage.outputs) - 1)
        return slice(start, start + len(stage.params))

    def _fits(self, queue: Queue) -> bool:
        """Whether the oldest message's output rows have room."""
        if queue.backward or not queue.stage.outputs:
            return True
        return self._room(queue) > 0

    def _room(self, queue: Queue) -> int:
        """Input rows that the output arenas have room for now; 0 if not even the oldest message fits."""
        stage = queue.stage
        room = min(self.pool(stage.arena(j)).room // self._arena_shares(stage, j) for j in range(len(stage.outputs)))
        chunk = queue.contents()[0]
        if stage.kind == "collect":
            first = self._collected(stage, chunk.states[:1])[0]
            return room if first <= room else 0
        first = int(chunk.sizes[0]) if chunk.sizes is not None and stage.kind != "reduce" else 1
        return max(room, 1) if first <= room else 0

    def _arena_shares(self, stage: Stage, output: int) -> int:
        return sum(stage.arena(j) == stage.arena(output) for j in range(len(stage.outputs)))

    def _collected(self, stage: Stage, states: np.ndarray) -> np.ndarray:
        """Rows that a collect makes for each message."""
        node, pump = stage.nodes[0], str(stage.topology)
        return np.array(
            [find_topology(node, pump, self._topologies, s).n_rows for s in states[:, SLOT].tolist()], np.int64
        )

    def _build(self, queue: Queue) -> Dispatch:
        stage, direction = queue.stage, queue.direction
        limit = queue.max_rows
        if direction == BACKWARD:
            versions = None
            if self._is_stashed(stage):
                chunk, mark = queue.take_like(limit, self.cells.table[:, self._version_columns(stage)])
                versions = tuple(mark.tolist())
            else:
                chunk = queue.take(limit)
            inputs = self.cells.table[chunk.cells, self._link : self._link + len(stage.ports)]
            dispatch = Dispatch(
                0,
                stage.worker,
                stage,
                direction,
                chunk.states,
                chunk.cells,
                inputs,
                versions=versions,
                sizes=chunk.sizes,
            )
            self._input_rows(dispatch)
            for j in range(len(stage.outputs)):
                outs = chunk.cells if j == 0 else self.cells.table[chunk.cells, self._extra(stage)][:, j - 1]
                dispatch.out_rows.append(
                    self.cells.rows_of(outs)[0] if stage.outputs[j].ragged else self.cells.table[outs, ROW]
                )
            self._count_gradients(dispatch)
            self._release_versions(dispatch)
            return dispatch
        if stage.outputs:
            limit = min(limit, self._room(queue))
        chunk = queue.take(self._collect_limit(queue, limit) if stage.kind == "collect" else limit)
        dispatch = Dispatch(
            0, stage.worker, stage, direction, chunk.states, np.zeros(0, np.int64), chunk.cells, sizes=chunk.sizes
        )
        self._input_rows(dispatch)
        if stage.outputs:
            self._outputs(dispatch)
        elif stage.kind == "loss" and direction == FORWARD:
            self._count_gradients(dispatch)
        return dispatch

    def _collect_limit(self, queue: Queue, limit: int) -> int:
        """A collect makes as many rows as its topologies say: the input rows to take so that these fit."""
        chunk = queue.contents()[0]
        assert chunk.sizes is not None
        rows = np.cumsum(self._collected(queue.stage, chunk.states))
        n = max(1, int(np.searchsorted(rows, limit, side="right")))
        return int(chunk.sizes[:n].sum())

    def _input_rows(self, dispatch: Dispatch) -> None:
        """The arena slots of the input rows, per port; for a collect also where they go."""
        stage = dispatch.stage
        assert stage is not None
        for port in range(len(stage.ports)):
            cells = dispatch.inputs[:, port]
            if not stage.ragged:
                dispatch.in_rows.append(self.cells.table[cells, ROW])
                continue
            rows, sizes = self.cells.rows_of(cells)
            dispatch.in_rows.append(rows)
            if stage.kind == "collect":
                dispatch.scatter.append(self._scatter(stage, port, dispatch.states, sizes))
            elif port and not np.array_equal(sizes, dispatch.sizes):
                bad = int(np.flatnonzero(sizes != dispatch.sizes)[0])
                state = State(dispatch.states[bad : bad + 1], self.plan.layout, stage.ports[0].type.fields)
                raise MessageError(
                    f"node `{stage.name}`, port {stage.ports[port].name}",
                    f"{int(dispatch.sizes[bad])} rows, as on port {stage.ports[0].name}",
                    f"{int(sizes[bad])} rows with {state!r}",  # type: ignore[index]
                    "Give both messages the same rows.",
                )
        dispatch.n_rows = len(dispatch.in_rows[0])

    def _scatter(self, stage: Stage, port: int, states: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        node, pump = stage.nodes[0], str(stage.topology)
        parts, start = [], 0
        for i, slot in enumerate(states[:, SLOT].tolist()):
            maps = find_topology(node, pump, self._topologies, slot)
            if port >= len(maps.scatter) or len(maps.scatter[port]) != sizes[i]:
                got = f"{len(maps.scatter)} maps" if port >= len(maps.scatter) else f"{len(maps.scatter[port])} places"
                raise MessageError(
                    f"node `{stage.name}`, topology `{pump}`",
                    f"a scatter map of {int(sizes[i])} places for port {stage.ports[port].name}",
                    got,
                    "Make the Topology with one place per row.",
                )
            parts.append(maps.scatter[port] + start)
            start += maps.n_rows
        return np.concatenate(parts)

    def _outputs(self, dispatch: Dispatch) -> None:
        """Takes cells and slots for the outputs of a forward dispatch."""
        stage, states, table = dispatch.stage, dispatch.states, self.cells
        assert stage is not None
        n = len(states)
        sizes = None
        if stage.outputs[0].ragged:
            sizes = self._collected(stage, states) if stage.kind == "collect" else dispatch.sizes
        n_rows = n if sizes is None else int(sizes.sum())
        owners = None
        for j in range(len(stage.outputs)):
            rows = self.pool(stage.arena(j)).take(n_rows)
            cells = table.take(states, stage.number, rows if sizes is None else None)
            if sizes is not None:
                table.rows.update(zip(cells.tolist(), np.split(rows, np.cumsum(sizes)[:-1]), strict=True))
            if owners is None:
                owners = cells
            else:
                table.table[cells, OWNER] = owners
                table.table[owners, self._extra(stage).start + j - 1] = cells
                table.adopt(owners, cells)
            dispatch.out_rows.append(rows)
        assert owners is not None
        dispatch.cells = owners
        table.table[owners, self._link : self._link + len(stage.ports)] = dispatch.inputs
        if stage.params:
            versions = [self.updates.versions[node] for node in stage.params]
            table.table[owners, self._version_columns(stage)] = versions
            if self._is_stashed(stage) and dispatch.direction == FORWARD:
                dispatch.versions = tuple(versions)
                key = (stage.number, dispatch.versions)
                self._held[key] = self._held.get(key, 0) + n
        np.add.at(self._live, states[:, SLOT], 1)

    def _is_stashed(self, stage: Stage) -> bool:
        return bool(self.settings.stashed) and any(node in self.settings.stashed for node in stage.params)

    def _release_versions(self, dispatch: Dispatch) -> None:
        if dispatch.versions is None or dispatch.stage is None:
            return
        key = (dispatch.stage.number, dispatch.versions)
        self._held[key] -= len(dispatch.states)
        if not self._held[key]:
            del self._held[key]
            dispatch.drop.append(key)

    def _count_gradients(self, dispatch: Dispatch) -> None:
        stage = dispatch.stage
        assert stage is not None
        for i, node in enumerate(stage.params):
            if dispatch.direction == BACKWARD:
                versions = self.cells.table[dispatch.cells, self._version_columns(stage).start + i]
            else:
                versions = np.full(len(dispatch.states), self.updates.versions[node])
            dispatch.changes += self.updates.gradients(node, versions, dispatch.sizes, self.stats.nodes[node])

    def _issue(self, dispatch: Dispatch) -> Dispatch:
        self._number += 1
        self._issued += 1
        dispatch.number = self._number
        self.history.append(dispatch)
        if dispatch.stage is not None:
            stats, n = self.stats.stages[dispatch.stage.name], dispatch.n_messages
            stats.dispatches += 1
            stats.rows += dispatch.n_rows
            stats.largest_dispatch = max(stats.largest_dispatch, dispatch.n_rows)
            setattr(stats, dispatch.direction, getattr(stats, dispatch.direction) + n)
            queue = self._queues[dispatch.stage.number, dispatch.direction]
            stats.longest_queue = max(stats.longest_queue, queue.longest)
        return dispatch

    def _queue_changes(self, worker: int, changes: list[Change]) -> None:
        none = np.zeros((0, self.plan.layout.width), np.int64)
        empty = np.zeros(0, np.int64)
        self._flush.append(Dispatch(0, worker, None, "update", none, empty, empty, changes=changes))

    def _controller(self) -> None:
        """Synchronous and pipeline training: when all instances of a round have ended, the controller lets every node update."""
        every = self.settings.flush_every
        if every is None or self.in_flight[True] or self._flush or self._since_flush < every:
            return
        self._since_flush = 0
        self.flush()

    def end_of_data(self) -> None:
        """Says that no more training instances come in this epoch: a round that is not full is updated all the same."""
        if self.settings.flush_every is not None and self._since_flush and not self.in_flight[True]:
            self._since_flush = 0
            self.flush()

    # -- laws

    def _checked(self) -> None:
        if self._check:
            self.check_invariants()

    def check_invariants(self) -> None:
        """Recounts references and slots from scratch (DESIGN, laws 1, 4 and 5).

        Raises:
          InvariantError: If a count is off.
        """
        held: dict[int, int] = {}

        def hold(cells: np.ndarray) -> None:
            for owner in self.cells.table[cells.reshape(-1), OWNER].tolist():
                held[owner] = held.get(owner, 0) + 1

        for join in self._joins.values():
            hold(join.pending()[1])
        for groups in self._groups.values():
            for group in groups.open.values():
                hold(np.array([c for _, c in group.members] + ([group.opener] if group.opener else []), np.int64))
        for queue in self._queues.values():
            for chunk in queue.contents():
                if not queue.backward:
                    hold(chunk.cells)
        for parts in self._parts.values():
            hold(parts)
        self._compare(held)

    def _compare(self, held: dict[int, int]) -> None:
        if any(count > self.settings.max_active_keys for count in self.in_flight.values()):
            raise InvariantError(
                "throttle",
                f"at most {self.settings.max_active_keys} instances in flight",
                f"{self.in_flight}",
                "This is a mistake in ampjax: please report it.",
            )
        if self.idle and (self.cells.alive or any(pool.used for pool in self.pools.values()) or held):
            used = {key: pool.used for key, pool in self.pools.items() if pool.used}
            raise InvariantError(
                "after everything ended",
                "no message, no slot in use, nothing waiting",
                f"{self.cells.alive} cells, slots {used}, {len(held)} held",
                "This is a mistake in ampjax: please report it.",
            )
