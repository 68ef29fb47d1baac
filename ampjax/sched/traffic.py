"""Traffic: messages from their emission to their end. Who waits where, who still owes whom a gradient, what is ready to be dispatched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ampjax.ir.payload import RouteBy
from ampjax.ir.state import SLOT, Layout, State
from ampjax.sched.backlog import Backlog
from ampjax.sched.build import Builder
from ampjax.sched.cells import Cells
from ampjax.sched.dispatch import Dispatch
from ampjax.sched.group import Groups
from ampjax.sched.inflight import InFlight
from ampjax.sched.join import Join
from ampjax.sched.plan import Plan
from ampjax.sched.policy import Policy
from ampjax.sched.queues import BACKWARD, FORWARD, INFER, Queue
from ampjax.sched.route import Batch, Router
from ampjax.sched.runs import Chunk
from ampjax.sched.slots import SlotPool
from ampjax.sched.stages import HOST, ArenaKey, Leaf, Stage, Targets
from ampjax.sched.updates import Updates

ONE = np.ones((), np.int64)
"""NumPy adds an array to an array in half the time that it needs for a Python number."""

JOIN_LINES = 1 << 23
"""Lines of all joins' tables, an equal part for each, beyond which a join looks its keys up in a dictionary: as fast for a message at a time, several times
slower for many. So up to eight joins have all that they can use; a thousand copies of a node, whose dispatches are small, have few."""


class Queues(dict[tuple[int, str], Queue]):
    """Queues by stage and direction, made when they are first asked for: few of the ways between a thousand copies of a node are ever taken.

    Args:
      plan: The plan.
      max_rows: Rows in one dispatch of a stage in a direction at most.
    """

    def __init__(self, plan: Plan, max_rows: Callable[[Stage, str], int]):
        super().__init__()
        self._plan, self._max_rows = plan, max_rows

    def __missing__(self, key: tuple[int, str]) -> Queue:
        number, direction = key
        stage = self._plan.stages[number]
        queue = self[key] = Queue(stage, direction, self._max_rows(stage, direction))
        return queue


class Traffic:
    """All messages of the instances in flight.

    Args:
      plan: The plan.
      updates: Parameter versions, and what is due.
      stashed: Nodes whose adjoint uses the forward pass's parameters.
      pool: The slots of an arena.
      max_rows: Rows in one dispatch of a stage in a direction at most.
      policy: Which queue a worker takes next.

    Attributes:
      now: The number of the latest dispatch: when what becomes ready was born.
      left_out: The numbers of stages that inference does not reach.
      backlogs: For each worker, the queues that hold messages.
      stirred: Workers for whom something has come since somebody last looked; who looks clears it.
      tables: For each worker, the joins and groups in which messages wait for one another.
    """

    def __init__(
        self,
        plan: Plan,
        updates: Updates,
        stashed: tuple[str, ...],
        pool: Callable[[ArenaKey], SlotPool],
        max_rows: Callable[[Stage, str], int],
        policy: Policy,
    ):
        layout = plan.layout
        links = max((len(s.ports) + max(1, len(s.outputs)) - 1 + len(s.params) for s in plan.stages), default=0)
        self.plan, self._pool, self.now, self.left_out = plan, pool, 0, frozenset[int]()
        self.cells = Cells(layout.width, links)
        self.inflight = InFlight()
        self.builder = Builder(plan, self.cells, self.inflight, updates, stashed, pool)
        self._router = Router(layout, self.cells, self.inflight.topologies, self._deliver)
        joining = [s for s in plan.stages if len(s.ports) > 1 and s.kind != "group"]
        self.joins = {s.number: _join(s, layout, JOIN_LINES // len(joining)) for s in joining}
        self.groups = {s.number: Groups(s, layout) for s in plan.stages if s.kind == "group"}
        self.tables: list[list[Join | Groups]] = [[] for _ in range(plan.workers)]
        for number, table in (*self.joins.items(), *self.groups.items()):
            self.tables[plan.stages[number].worker].append(table)
        self.parts: dict[int, np.ndarray] = {}
        self.queues = Queues(plan, max_rows)
        self.backlogs = [Backlog(policy) for _ in range(plan.workers)]
        self.stirred: set[int] = set()
        types = [node.op.type for node in plan.graph.pumps.values()]
        self._pumped = [((HOST, t.shape, t.dtype.name), t.ragged) for t in types]

    # -- from emission to delivery

    def emit(self, routes: Sequence[Targets], batches: Sequence[Batch], uses: int | None) -> None:
        """Routes new messages, a batch for each output.

        Args:
          routes: Where each output's messages go.
          batches: The messages; those of the first output own the count of references.
          uses: How often each will be consumed; None if that is counted now. Then the emission itself holds a reference until all of
            it is routed, so that nothing settles too early.
        """
        for targets, batch in zip(routes, batches, strict=True):
            self._router.route(targets, batch)
        owners, train = batches[0].cells, batches[0].train
        if uses is None:
            self._settle(self._released(owners), train)
        elif not uses:
            self._settle(owners, train)

    def forward(self, dispatch: Dispatch, stage: Stage) -> None:
        """Emits a forward dispatch's messages."""
        train, cells = dispatch.direction == FORWARD, dispatch.cells
        uses = stage.uses if train else None
        states = dispatch.states if stage.route_by is None else self._chosen(stage.route_by, dispatch, stage)
        batches = [Batch(states, cells, train, uses is not None)]
        for extra in self.builder.extras(stage, cells):
            batches.append(Batch(states, extra, train, uses is not None))
        if not train:
            self.inflight.hold(dispatch.states[:, SLOT])
        self.emit(stage.routes, batches, uses)

    def _chosen(self, op: RouteBy, dispatch: Dispatch, stage: Stage) -> np.ndarray:
        """The states with what was read from payloads, or what is assumed where nothing was."""
        layout, states = self.plan.layout, dispatch.states.copy()
        choices = dispatch.choices
        if choices is None:
            choices = op.assumed(f"node `{stage.name}`", State(states, layout, stage.ports[0].type.fields))
        states[:, [layout.column(name) for name in op.names]] = choices.reshape(len(states), len(op.names))
        return states

    def _deliver(self, leaf: Leaf, batch: Batch) -> None:
        """Messages have arrived at a stage's port: they wait in its join, group or queue, holding a reference each."""
        stage = self.plan.stages[leaf.stage]
        if not stage.trains if batch.train else leaf.stage in self.left_out:
            return
        states, cells = batch.states, batch.cells
        if not batch.counted:
            self._hold(stage, leaf.port, cells)
        if stage.kind == "group":
            self._group(stage, leaf.port, batch)
            return
        if len(stage.ports) > 1:
            states, inputs = self.joins[leaf.stage].put(leaf.port, states, cells)
            if not len(inputs):
                return
        else:
            inputs = cells[:, None]
        self._enqueue(stage, FORWARD if batch.train else INFER, states, inputs, inputs)

    def _group(self, stage: Stage, port: int, batch: Batch) -> None:
        closed = self.groups[stage.number].put(port, batch.states, batch.cells)
        if not closed:
            return
        uses = stage.uses if batch.train else None
        states = np.array([c.state for c in closed])
        cells = self.cells.take(len(closed), stage.number, None, 1 if uses is None else uses)
        self.cells.instance[cells] = states[:, SLOT]
        self.cells.set_parts(cells, [self.cells.row[group.members] for group in closed])
        for cell, group in zip(cells.tolist(), closed, strict=True):
            self.parts[cell] = np.append(group.members, group.opener) if group.opener else group.members
        if not batch.train:
            self.inflight.hold(states[:, SLOT])
        self.emit(stage.routes, [Batch(states, cells, batch.train, uses is not None)], uses)

    def _enqueue(self, stage: Stage, direction: str, states: np.ndarray, cells: np.ndarray, inputs: np.ndarray) -> None:
        """Adds ready messages to a queue; for ragged stages `inputs` `[n, ports]` tell their sizes."""
        sizes = self.cells.sizes_of(inputs[:, 0]) if stage.ragged else None
        queue = self.queues[stage.number, direction]
        queue.put(Chunk(states, cells, sizes, self.now))
        self.backlogs[stage.worker].add(queue)
        self.stirred.add(stage.worker)

    # -- references

    def _hold(self, stage: Stage, port: int, cells: np.ndarray) -> None:
        """Takes a reference for each message that arrives."""
        refs, owners = self.cells.refs, self._owners(stage, port, cells)
        if stage.distinct:
            refs[owners] += ONE
        else:
            np.add.at(refs, owners, 1)

    def _owners(self, stage: Stage, port: int, cells: np.ndarray) -> np.ndarray:
        return cells if stage.direct[port] else self.cells.owner[cells]

    def _released(self, owners: np.ndarray) -> np.ndarray:
        """Gives one reference back for each of these cells, no two of them the same; returns those with none left."""
        left = self.cells.refs[owners] - ONE
        self.cells.refs[owners] = left
        n_held = np.count_nonzero(left)
        return owners if not n_held else owners[:0] if n_held == len(owners) else owners[left == 0]

    def _released_often(self, owners: np.ndarray) -> np.ndarray:
        """The same for cells that may be mentioned several times."""
        refs = self.cells.refs
        np.subtract.at(refs, owners, 1)
        settled = owners[refs[owners] == 0]
        if len(settled) > 1:  # an owner that was mentioned twice is there twice: its last mention counts
            order = -1 - np.arange(len(settled))
            refs[settled] = order
            settled = settled[refs[settled] == order]
            refs[settled] = 0
        return settled

    # -- from answer to end

    def answer(self, dispatch: Dispatch, stage: Stage) -> None:
        """A stage has answered its input messages: each owner is owed one gradient less."""
        train = dispatch.direction != INFER
        for port in range(len(stage.ports)):
            owners = self._owners(stage, port, dispatch.inputs[:, port])
            if train and stage.alone[port]:
                self._settle(owners, train)
            else:
                self._settle(self._released(owners) if stage.distinct else self._released_often(owners), train)

    def _settle(self, cells: np.ndarray, train: bool) -> None:
        """All consumers have answered: the producers' backward messages are ready, or the rows' lives end."""
        if not len(cells):
            return
        producers = self.cells.stage[cells]
        first = int(producers[0])
        if len(cells) == 1 or not np.count_nonzero(producers != first):
            self._settle_from(first, cells, train)
            return
        for number in dict.fromkeys(producers.tolist()):
            self._settle_from(number, cells[producers == number], train)

    def _settle_from(self, number: int, cells: np.ndarray, train: bool) -> None:
        if number < 0:
            self._end_pumped(-1 - number, cells)
            return
        stage = self.plan.stages[number]
        if stage.kind == "group":
            self._end_groups(cells, train)
            return
        lines = self.cells.lines.take(cells)
        if train:
            self._enqueue(stage, BACKWARD, lines, cells, lines[:, self.cells.width :])
        else:
            self.end(stage, cells, self.builder.output_rows(stage, cells))
            self.inflight.release(lines[:, SLOT])

    def end(self, stage: Stage, cells: np.ndarray, rows: Sequence[np.ndarray]) -> None:
        """Frees invocations and their output rows."""
        for pool, own in zip(self.builder.pools(stage), rows, strict=True):
            pool.give(own)
        self.cells.give(cells)

    def _end_groups(self, cells: np.ndarray, train: bool) -> None:
        """Frees groups; their members and openers are answered."""
        members = np.concatenate([self.parts.pop(c) for c in cells.tolist()])
        slots = self.cells.instance[cells]
        self.cells.give(cells)
        if not train:
            self.inflight.release(slots)
        self._settle(self._released_often(self.cells.owner[members]), train)

    def _end_pumped(self, number: int, cells: np.ndarray) -> None:
        """Frees pumped messages; instances of which nothing is left end."""
        arena, ragged = self._pumped[number]
        instances = self.cells.instance[cells]
        self._pool(arena).give(self.cells.rows_of(cells)[0] if ragged else self.cells.row[cells])
        self.cells.give(cells)
        self.inflight.release(instances)


def _join(stage: Stage, layout: Layout, room: int) -> Join:
    """The join of a stage's ports."""
    ports, fields = (tuple(of) for of in zip(*((p.name, p.type.fields) for p in stage.ports), strict=True))
    return Join(stage.name, ports, stage.join, fields, layout, room)
