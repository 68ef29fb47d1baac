"""Builds dispatches: takes what waits in a queue, looks up its arena rows, and gives its outputs cells and slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.state import SLOT, State
from ampjax.sched.cells import Cells
from ampjax.sched.dispatch import Change, Dispatch
from ampjax.sched.edges import EdgeIndex
from ampjax.sched.inflight import InFlight
from ampjax.sched.plan import Plan
from ampjax.sched.queues import BACKWARD, FORWARD, Queue
from ampjax.sched.route import find_topology
from ampjax.sched.slots import SlotPool
from ampjax.sched.stages import ArenaKey, Stage
from ampjax.sched.stats import Statistics
from ampjax.sched.updates import Updates

NO_CELLS = np.zeros(0, np.int64)


class Columns:
    """Where a stage's invocations keep what belongs to them, in the cell table's lines: inputs, further outputs, parameter versions."""

    def __init__(self, stage: Stage, links: int):
        inputs, extras = links, links + len(stage.ports)
        versions = extras + max(0, len(stage.outputs) - 1)
        self.inputs = slice(inputs, extras)
        self.extras = slice(extras, versions)
        self.versions = slice(versions, versions + len(stage.params))


class Builder:
    """Turns queues into dispatches.

    Args:
      plan: The plan.
      cells: The cell table.
      inflight: The instances in flight.
      updates: Parameter versions, and what is due.
      stashed: Nodes whose adjoint uses the forward pass's parameters.
      pool: The slots of an arena.
    """

    def __init__(
        self,
        plan: Plan,
        cells: Cells,
        inflight: InFlight,
        updates: Updates,
        stashed: tuple[str, ...],
        pool: Callable[[ArenaKey], SlotPool],
    ):
        self._plan, self._cells, self._inflight, self._updates, self._pool = plan, cells, inflight, updates, pool
        self.columns = [Columns(stage, cells.width) for stage in plan.stages]
        self._stashed = {stage.number for stage in plan.stages if any(node in stashed for node in stage.params)}
        self._edges = {s.number: EdgeIndex(s, inflight.topologies) for s in plan.stages if s.chain is not None}
        self._held: dict[tuple[int, tuple[int, ...]], int] = {}
        self._pools: dict[int, list[SlotPool]] = {}

    def room(self, queue: Queue) -> int:
        """Input rows that the output arenas have room for now; 0 if not even the oldest message fits."""
        stage = queue.stage
        if queue.backward or not stage.outputs:
            return queue.max_rows
        room = self._space(stage)
        if room >= queue.max_rows and not stage.ragged:
            return room
        self._oldest_first(queue)
        chunk = queue.first
        if stage.kind in ("collect", "edges"):
            need = int(self._collected(stage, chunk.states[:1])[0])
        else:
            need = int(chunk.sizes[0]) if chunk.sizes is not None and stage.kind != "reduce" else 1
        return max(room, 1) if need <= room else 0

    def _space(self, stage: Stage) -> int:
        """Rows that every output of a stage can get now."""
        pools = self.pools(stage)
        if len(pools) == 1:
            return pools[0].room
        return min(pool.room // stage.arenas.count(key) for key, pool in zip(stage.arenas, pools, strict=True))

    def pools(self, stage: Stage) -> list[SlotPool]:
        """The slots of each of a stage's outputs."""
        found = self._pools.get(stage.number)
        if found is None:
            found = self._pools[stage.number] = [self._pool(key) for key in stage.arenas]
        return found

    def build(self, queue: Queue, stats: Statistics) -> Dispatch:
        """The next dispatch of a queue that has room. If not everything fits, the oldest instances go first: that keeps staleness low.

        Raises:
          MessageError: If ragged inputs or a topology do not fit each other.
        """
        self._oldest_first(queue)
        return self._backward(queue, stats) if queue.direction == BACKWARD else self._forward(queue, stats)

    def _oldest_first(self, queue: Queue) -> None:
        if queue.rows > queue.max_rows:
            queue.oldest_first(self._inflight.ages)

    # -- forward

    def _forward(self, queue: Queue, stats: Statistics) -> Dispatch:
        stage, limit = queue.stage, queue.max_rows
        if stage.outputs:
            limit = min(limit, self._space(stage))
        if stage.kind == "collect" or (stage.kind == "edges" and not stage.aligned):
            chunk = queue.take(1 << 60 if stage.kind == "collect" else queue.max_rows, self._collectable(queue, limit))
        elif stage.kind == "reduce":
            chunk = queue.take(queue.max_rows, limit)
        else:
            chunk = queue.take(limit)
        dispatch = Dispatch(
            0, stage.worker, stage, queue.direction, chunk.states, NO_CELLS, chunk.cells, sizes=chunk.sizes
        )
        self._input_rows(dispatch, stage)
        if stage.outputs:
            self._outputs(dispatch, stage)
        elif stage.kind == "loss" and queue.direction == FORWARD:
            n, now = len(chunk.states), self._updates.versions
            dispatch.changes = self._gradients(dispatch, [np.full(n, now[node]) for node in stage.params], stats)
        return dispatch

    def _outputs(self, dispatch: Dispatch, stage: Stage) -> None:
        """Takes cells and slots for the outputs."""
        states, cells, columns = dispatch.states, self._cells, self.columns[stage.number]
        n, sizes = len(states), None
        if stage.outputs[0].ragged:
            sizes = dispatch.sizes if dispatch.edges is None else dispatch.edges.n_rows
            sizes = self._collected(stage, states) if stage.kind == "collect" else sizes
        n_rows = n if sizes is None else int(sizes.sum())
        pools = self.pools(stage)
        rows = [pool.take(n_rows) for pool in pools]
        uses = stage.uses if dispatch.direction == FORWARD else None
        owners = cells.take(n, stage.number, rows[0] if sizes is None else None, 1 if uses is None else uses)
        lines = cells.lines.empty(n)
        lines[:, : cells.width] = states
        lines[:, columns.inputs] = dispatch.inputs
        if stage.params:
            lines[:, columns.versions] = self._versions(dispatch, stage)
        if sizes is not None:
            cells.set_rows(owners, rows[0], sizes)
        for j, own in enumerate(rows[1:]):
            lines[:, columns.extras.start + j] = views = cells.view(owners, own if sizes is None else None)
            if sizes is not None:
                cells.set_rows(views, own, sizes)
        cells.lines.put(owners, lines)
        dispatch.cells, dispatch.out_rows, dispatch.out_sizes = owners, rows, sizes
        dispatch.capacities = tuple([pool.capacity for pool in pools])

    def _versions(self, dispatch: Dispatch, stage: Stage) -> tuple[int, ...]:
        """The versions of a stage's parameters; where they are stashed, the messages that will need them are counted."""
        versions = tuple([self._updates.versions[node] for node in stage.params])
        if stage.number in self._stashed and dispatch.direction == FORWARD:
            dispatch.versions = versions
            key = (stage.number, versions)
            self._held[key] = self._held.get(key, 0) + len(dispatch.states)
        return versions

    def extras(self, stage: Stage, cells: np.ndarray) -> list[np.ndarray]:
        """The cells of a stage's further outputs, given those of the first."""
        if len(stage.outputs) < 2:
            return []
        extras = self._cells.lines.array[cells, self.columns[stage.number].extras]
        return [extras[:, j] for j in range(extras.shape[1])]

    # -- backward

    def _backward(self, queue: Queue, stats: Statistics) -> Dispatch:
        stage, columns, width = queue.stage, self.columns[queue.stage.number], self._cells.width
        versions: tuple[int, ...] | None = None
        if stage.number in self._stashed:
            chunk = queue.take_like(queue.max_rows, self._cells.lines.array[:, columns.versions])
            versions = tuple(chunk.states[0, columns.versions].tolist())
        else:
            chunk = queue.take(queue.max_rows)
        lines, cells = chunk.states, chunk.cells
        dispatch = Dispatch(
            0,
            stage.worker,
            stage,
            BACKWARD,
            lines[:, :width],
            cells,
            lines[:, columns.inputs],
            sizes=chunk.sizes,
            versions=versions,
        )
        self._input_rows(dispatch, stage)
        dispatch.out_rows = self.output_rows(stage, cells)
        if stage.params:
            first = columns.versions.start
            versions_of = [lines[:, first + i] for i in range(len(stage.params))]
            dispatch.changes = self._gradients(dispatch, versions_of, stats)
        if versions is not None:
            self._release(dispatch, (stage.number, versions))
        return dispatch

    def _gradients(self, dispatch: Dispatch, versions: Sequence[np.ndarray], stats: Statistics) -> list[Change]:
        """Counts the gradient rows of a stage's nodes, whose versions `[n]` in the forward pass are given; returns what is due."""
        changes: list[Change] = []
        assert dispatch.stage is not None
        for node, forward in zip(dispatch.stage.params, versions, strict=True):
            changes += self._updates.gradients(node, forward, dispatch.sizes_at(node), stats.nodes[node])
        return changes

    def output_rows(self, stage: Stage, cells: np.ndarray) -> list[np.ndarray]:
        """The arena rows of all outputs of invocations, given the first output's cells."""
        outputs = zip(stage.outputs, [cells, *self.extras(stage, cells)], strict=False)
        return [self._cells.rows_of(own)[0] if out.ragged else self._cells.row[own] for out, own in outputs]

    def _release(self, dispatch: Dispatch, key: tuple[int, tuple[int, ...]]) -> None:
        """Notes that a stashed version has fewer messages that need it; with none left it can be dropped."""
        self._held[key] -= len(dispatch.states)
        if not self._held[key]:
            del self._held[key]
            dispatch.drop = (key,)

    # -- rows

    def _input_rows(self, dispatch: Dispatch, stage: Stage) -> None:
        """The arena rows of the inputs, per port; for a collect also where they go."""
        ports = range(len(stage.ports))
        if not stage.ragged:
            rows = self._cells.row.take(dispatch.inputs)
            dispatch.in_rows, dispatch.n_rows = [rows[:, port] for port in ports], len(rows)
            return
        parts = [self._cells.rows_of(dispatch.inputs[:, port]) for port in ports]
        dispatch.in_rows, dispatch.n_rows = [rows for rows, _ in parts], len(parts[0][0])
        if stage.kind == "collect":
            dispatch.scatter = [self._scatter(stage, port, dispatch.states, parts[port][1]) for port in ports]
            return
        for port in ports[1:]:
            self._require_equal(dispatch, stage, port, parts[port][1])
        if stage.chain is not None and dispatch.sizes is not None:
            dispatch.edges = self._edges[stage.number].of(dispatch.states[:, SLOT], dispatch.sizes)

    def _require_equal(self, dispatch: Dispatch, stage: Stage, port: int, sizes: np.ndarray) -> None:
        if dispatch.sizes is None or np.array_equal(sizes, dispatch.sizes):
            return
        bad = int(np.flatnonzero(sizes != dispatch.sizes)[0])
        state = State(dispatch.states[bad : bad + 1], self._plan.layout, stage.ports[0].type.fields)
        raise MessageError(
            f"node `{stage.name}`, port {stage.ports[port].name}",
            f"{int(dispatch.sizes[bad])} rows, as on port {stage.ports[0].name}",
            f"{int(sizes[bad])} rows with {state!r}",
            "Give both messages the same rows.",
        )

    def _collectable(self, queue: Queue, limit: int) -> int:
        """A collect makes as many rows as its topologies say: the messages to take so that these fit."""
        waiting = queue.contents() if queue.stage.kind == "edges" else queue.contents()[:1]
        rows = np.cumsum(self._collected(queue.stage, np.concatenate([chunk.states for chunk in waiting])))
        return max(1, int(np.searchsorted(rows, limit, side="right")))

    def _collected(self, stage: Stage, states: np.ndarray) -> np.ndarray:
        """Rows that a collect makes for each message, alone or at the end of a chain."""
        if stage.chain is not None:
            return self._edges[stage.number].n_rows(states[:, SLOT])
        node, pump = stage.nodes[0], str(stage.topology)
        return np.array(
            [find_topology(node, pump, self._inflight.topologies, s).n_rows for s in states[:, SLOT].tolist()], np.int64
        )

    def _scatter(self, stage: Stage, port: int, states: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Where a collect's input rows go, counting through the dispatch's output rows."""
        node, pump = stage.nodes[0], str(stage.topology)
        parts, start = [], 0
        for i, slot in enumerate(states[:, SLOT].tolist()):
            maps = find_topology(node, pump, self._inflight.topologies, slot)
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
