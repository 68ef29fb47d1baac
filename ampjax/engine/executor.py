"""The executor: carries dispatches out on devices. Owns arenas, parameters, optimizer states, accumulators and metrics.

One thread calls it, in the order of issue; JAX's asynchronous dispatch does the overlapping. Handles of arenas and parameters
are read when a dispatch runs, so order is all that correctness needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.engine.arenas import Arenas, copied, zeros
from ampjax.engine.draws import Draws
from ampjax.engine.edge_sizes import EdgeSizes
from ampjax.engine.kernels import corner
from ampjax.engine.learning import ACCUMULATING, Learning, Updating
from ampjax.engine.metrics import LossSums
from ampjax.engine.program import Program
from ampjax.engine.residuals import shapes_of
from ampjax.engine.runner import StageRunner
from ampjax.engine.shared import shared
from ampjax.engine.streaks import Kernel, Streak, kernel
from ampjax.engine.touched import TouchedRows, table_ports
from ampjax.errors import MessageError
from ampjax.ir.graph import Node
from ampjax.ir.payload import eval_body, metric_shapes
from ampjax.optim.touched import touched_update
from ampjax.optim.update import make_update, trainable
from ampjax.parallel.sync import Device, average
from ampjax.sched.dispatch import Average, Change, Contribute, Dispatch, Merge, Update
from ampjax.sched.plan import Plan
from ampjax.sched.queues import BACKWARD, INFER
from ampjax.sched.scheduler import Feed, Scheduler
from ampjax.sched.stages import ArenaKey, Stage


@dataclass(frozen=True)
class NodeTraining:
    """How one parameterised node is trained: its optax transform, and `mean` or `sum` over gradient rows."""

    tx: optax.GradientTransformation
    gradient: str = "mean"


class Executor:
    """Runs dispatches.

    Args:
      plan: The plan.
      params: Parameters by node name.
      training: How each parameterised node is trained.
      devices: The device of each memory space.
      stashed: Nodes whose adjoint uses the forward pass's parameters.
      seed: Of the keys of random bodies.
    """

    def __init__(
        self,
        plan: Plan,
        params: Mapping[str, Any],
        training: Mapping[str, NodeTraining],
        devices: Sequence[Device],
        stashed: Sequence[str] = (),
        seed: int = 0,
    ):
        self.plan, self._devices, self._stashed = plan, tuple(devices), frozenset(stashed)
        self.arenas, self.draws = Arenas(self._devices), Draws(seed)
        self._runners = {
            s.number: StageRunner(s, self.arenas, self._devices, self.draws) for s in plan.stages if s.kind != "group"
        }
        self._device_of = {node: self._devices[plan.spaces[worker]] for node, worker in plan.worker_of.items()}
        self.params: dict[str, Any] = {}
        self.opt_state: dict[str, Any] = {}
        self.accumulators: dict[str, Any] = {}
        self._training = dict(training)
        self._touched: dict[str, TouchedRows] = {}
        for node, value in params.items():
            self.set_params(node, value)
            self.reset_optimizer(node)
        self._updating = {
            s.number: Updating(tuple((self._training[n].tx, self._training[n].gradient) for n in s.params))
            for s in plan.stages
        }
        self._tables = {s.number: ports for s in plan.stages if (ports := self._find_tables(s))}
        self._stash: dict[tuple[int, tuple[int, ...]], tuple[Any, ...]] = {}
        self._handed_in: dict[str, dict[str, Any]] = {}
        self._readings: dict[int, Any] = {}
        self._updates: dict[str, Kernel] = {}
        arenas = [key for stage in plan.stages for key in (*(port.arena for port in stage.ports), *stage.arenas)]
        self._corner = corner(tuple(dict.fromkeys(arenas)))
        self._metric_names = {s.number: _metrics_of(s.nodes[-1]) for s in plan.stages if s.kind == "loss"}
        self._sums: dict[tuple[int, bool], jax.Array] = {}
        self._updated: Dispatch | None = None  # its kernel has made its updates
        self._ran: Dispatch | None = None  # its kernels have been issued, not all of its parameter changes
        self._n_changed = 0  # of these
        self.outputs: list[tuple[str, np.ndarray, Any, Dispatch]] = []

    def _find_tables(self, stage: Stage) -> dict[str, int]:
        """A stage's nodes whose updates go over those rows of a table that have got gradients (on CPUs), and the ports of the rows' numbers."""
        if stage.kind not in ("rows", "loss") or not stage.trains or self._devices[stage.space].platform != "cpu":
            return {}
        program = self._runners[stage.number].program
        assert isinstance(program, Program)
        ports = table_ports(stage, program, [self.params[node] for node in stage.params])
        for node in ports.keys() - self._stashed:
            table, training = self.params[node], self._training[node]
            update = touched_update(training.tx, training.gradient, table.shape, table.dtype)
            if update is not None:
                self._touched[node] = TouchedRows(len(table), update)
        return {node: port for node, port in ports.items() if node in self._touched}

    def set_params(self, node: str, params: Any) -> None:
        """Puts a node's parameters on its device (a copy: what was handed in stays the caller's)."""
        self.params[node] = jax.tree.map(lambda x: copied(x, self._device_of[node]), params)

    def reset_optimizer(self, node: str) -> None:
        """Starts a node's optimizer state and accumulator anew.

        Copies, as an update donates every buffer once: some transforms keep the parameters that they were given, or one array twice.
        """
        floats = trainable(self.params[node])
        device = self._device_of[node]
        self.opt_state[node] = jax.tree.map(lambda x: copied(x, device), self._training[node].tx.init(floats))
        self.accumulators[node] = jax.tree.map(lambda x: zeros(x.shape, x.dtype, device), floats)
        if node in self._touched:
            self._touched[node].clear()

    def restore(self, params: Mapping[str, Any], opt_state: Mapping[str, Any], accumulators: Mapping[str, Any]) -> None:
        """Takes over every node's parameters, optimizer state and accumulated gradients: copies, on the node's device."""
        kept = (self.params, params), (self.opt_state, opt_state), (self.accumulators, accumulators)
        for own, given in kept:
            for node, device in self._device_of.items():
                if node in own:
                    own[node] = jax.tree.map(lambda x, to=device: copied(x, to), given[node])
        for node, touched in self._touched.items():
            touched.restart(self.accumulators[node])

    def expect_edges(self, stages: Mapping[int, EdgeSizes]) -> None:
        """Tells chains, by the number of their stage, for how many edges to leave room."""
        for number, sizes in stages.items():
            self._runners[number].edge_sizes = sizes

    def feed(self, feeds: Sequence[Feed], scheduler: Scheduler) -> None:
        """Writes pumped payloads, which `check_payload` has passed, to host arenas."""
        for feed in feeds:
            self.arenas.ensure(feed.arena, scheduler.pool(feed.arena).capacity)
            self.arenas.host[feed.arena][feed.slots] = feed.payload

    def joins(self, before: Dispatch, dispatch: Dispatch) -> bool:
        """Whether a dispatch can be issued together with the one before it, and with those that this was issued with: one call of one kernel."""
        stage = dispatch.stage
        return (
            stage is not None
            and stage is before.stage
            and dispatch.direction == before.direction
            and dispatch.versions == before.versions
            and not (before.changes or before.drop or before.reads)
            and self._runners[stage.number].joins(before, dispatch)
            and not (dispatch.changes and self.updates_at_once(dispatch))
        )

    def issue(self, streak: Streak, scheduler: Scheduler) -> None:
        """Carries dispatches out that `join` one another: issues their kernels, then the parameter changes of the last one."""
        self.run(streak, scheduler)
        self.change(streak[-1])

    def run(self, streak: Streak, scheduler: Scheduler) -> None:
        """Carries dispatches out that `join` one another: issues their kernels. `change` must follow, before anything else is issued."""
        stage = streak[0].stage
        if stage is not None:
            for key in stage.arenas:
                self.arenas.ensure(key, scheduler.pool(key).capacity)
            self._run_stage(stage, streak)
        last = self._ran = streak[-1]
        self._n_changed = len(last.changes) if last is self._updated else 0

    @property
    def half_done(self) -> Dispatch | None:
        """After a mistake or an interrupt: what is left, parameter changes alone, of a dispatch whose kernels have been issued; None if there is no such dispatch."""
        ran = self._ran
        return None if ran is None else replace(ran, stage=None, changes=ran.changes[self._n_changed :])

    def reading(self, dispatch: Dispatch) -> Any:
        """The payloads that a dispatch reads back: a driver may wait for them before it asks for the choices."""
        return self._readings[dispatch.number]

    def choices(self, dispatch: Dispatch) -> np.ndarray:
        """What a dispatch has read back, `[n, *shape]`. Waits for the device; can be asked once."""
        return np.asarray(self._readings.pop(dispatch.number))[: dispatch.n_rows]

    def change(self, dispatch: Dispatch) -> None:
        """Issues the parameter changes that follow a dispatch, those that its kernel has made already left out."""
        if dispatch is not self._updated:
            for change in dispatch.changes:
                self._change(change)
                self._n_changed += 1
        self._updated = self._ran = None
        for key in dispatch.drop:
            self._stash.pop(key, None)

    def take_outputs(self) -> list[tuple[str, np.ndarray, Any, Dispatch]]:
        """What has arrived at sinks since the last call: the sink's role, the messages' states, their rows (padded), and the dispatch."""
        taken, self.outputs = self.outputs, []
        return taken

    def abandon(self) -> None:
        """Forgets what belongs to instances that are given up (parameters stashed for them, sums of losses, outputs), and what replicas have handed in."""
        self._stash.clear()
        self._handed_in.clear()
        self._updated = self._ran = None
        self._sums.clear()
        self._readings.clear()
        self.outputs.clear()

    def warm(self, dispatch: Dispatch, scheduler: Scheduler) -> None:
        """Compiles what a dispatch needs, by running it on copies of all that it would change; its slots must be the trash slot."""
        stage = dispatch.stage
        assert stage is not None
        for port in stage.ports:
            self.arenas.ensure(port.arena, scheduler.pool(port.arena).capacity)
        n_outputs = len(self.outputs)
        try:
            changed = [change.node for change in dispatch.changes if isinstance(change, Update)]
            learnt = (self.accumulators, stage.params), (self.params, changed), (self.opt_state, changed)
            with _on_copies(*learnt, (self._sums, [*self._sums]), (self._readings, ())):
                self.run([dispatch], scheduler)
        finally:
            self._updated = self._ran = None
            del self.outputs[n_outputs:]

    def warm_update(self, node: str) -> None:
        """Compiles a node's update, and that of a table's rows, by running it on copies."""
        for rows in (None, np.zeros(1, int)) if node in self._touched else (None,):
            with _on_copies((self.params, [node]), (self.opt_state, [node]), (self.accumulators, [node])):
                self._update(Update(node, 1), rows)

    def warm_average(self, nodes: Sequence[str]) -> None:
        """Compiles the averaging of some replicas; they stay as they are."""
        with _on_copies((self.params, ()), (self._handed_in, ())):
            self._change(Average("", tuple(nodes)))
            for node in nodes:
                self._change(Contribute("", node))
            self._change(Merge("", tuple(nodes)))

    def _run_stage(self, stage: Stage, streak: Streak) -> None:
        runner, dispatch = self._runners[stage.number], streak[0]
        if stage.number in self._tables and dispatch.brings_gradients:
            self._note_touched(stage, streak)
        params = tuple([self.params[node] for node in stage.params])
        if stage.kind == "sink":
            self.outputs.append((stage.nodes[-1].role, dispatch.states, runner.read(dispatch), dispatch))
        elif stage.kind == "loss":
            train = dispatch.direction != INFER
            sums = self._sums_of(stage, train)
            if train:
                learning = self._learning(stage, dispatch)
                learnt, sums = runner.loss_train(streak, params, *learning, sums)
                self._learn(stage, learning[0], learnt)
            else:
                sums = runner.loss_infer(streak, params, sums)
            self._sums[stage.number, train] = sums
        elif dispatch.direction == BACKWARD:
            if dispatch.versions is not None:
                params = self._stash[stage.number, dispatch.versions]
            learning = self._learning(stage, dispatch)
            self._learn(stage, learning[0], runner.backward(streak, params, *learning))
        else:
            if dispatch.versions is not None:
                self._stash.setdefault((stage.number, dispatch.versions), params)
            runner.forward(streak, params)
            if dispatch.reads:
                self._readings[dispatch.number] = runner.read(dispatch, 1)

    def learns_at_once(self, stage: Stage, dispatch: Dispatch) -> bool:
        """Whether a dispatch's kernel can make updates: it computes weight gradients, nobody keeps the parameters, and none is a table that is updated by rows."""
        if stage.number in self._tables or not self._stashed.isdisjoint(stage.params):
            return False
        return self._runners[stage.number].learns_at_once(dispatch)

    def updates_at_once(self, dispatch: Dispatch) -> bool:
        """Whether a dispatch's kernel makes its updates: nothing is in them but what it brings."""
        return dispatch.stage is not None and dispatch.brings_updates and self.learns_at_once(dispatch.stage, dispatch)

    def _learning(self, stage: Stage, dispatch: Dispatch) -> tuple[Learning, tuple[Any, ...], np.ndarray | None]:
        """What becomes of a dispatch's weight gradients, what it needs of each node, and what it is told of the updates."""
        if self.updates_at_once(dispatch):
            self._updated = dispatch
            updates = {change.node: change for change in dispatch.changes if isinstance(change, Update)}
            told = [(updates[node].count, updates[node].mean_staleness) for node in stage.params]
            states = tuple([self.opt_state[node] for node in stage.params])
            return self._updating[stage.number], states, np.array(told, np.float32)
        return ACCUMULATING, tuple([self.accumulators[node] for node in stage.params]), None

    def _learn(self, stage: Stage, learning: Learning, learnt: tuple[Any, ...]) -> None:
        """Takes over what a kernel has made of its weight gradients."""
        if isinstance(learning, Updating):
            for node, (params, opt_state) in zip(stage.params, learnt, strict=True):
                self.params[node], self.opt_state[node] = params, opt_state
        else:
            self.accumulators.update(zip(stage.params, learnt, strict=True))

    # -- parameters

    def _change(self, change: Change) -> None:
        if isinstance(change, Update):
            touched = self._touched.get(change.node)
            self._update(change, None if touched is None else touched.rows)
            if touched is not None:
                touched.clear()
        elif isinstance(change, Average):
            self.params.update(zip(change.nodes, average([self.params[n] for n in change.nodes]), strict=True))
        elif isinstance(change, Contribute):
            self._handed_in.setdefault(change.group, {})[change.node] = _copies(self.params[change.node])
        elif isinstance(change, Merge):
            self._merge(change)

    def _update(self, change: Update, rows: np.ndarray | None) -> None:
        """An optimizer step of a node; with `rows`, of those of a table.

        Interrupted among many rows, it leaves some of them updated, without a gradient, and the optimizer's count of steps as it was.
        """
        node, training = change.node, self._training[change.node]
        held, count = (self.params[node], self.opt_state[node], self.accumulators[node]), np.float32(change.count)
        if rows is None:
            step = self._updates.get(node)
            if step is None:
                settings = training.tx, training.gradient, node not in self._stashed
                step = self._updates[node] = _update_of(*settings, shapes_of(self.params[node]))
            made: Iterable[Any] = [step.once(*held, count, np.float32(change.mean_staleness))]
        else:
            made = self._touched[node].update(*held, rows, count)
        for self.params[node], self.opt_state[node], self.accumulators[node] in made:
            pass

    def _note_touched(self, stage: Stage, streak: Streak) -> None:
        """Keeps which rows of tables some dispatches give gradients to."""
        for node, port in self._tables[stage.number].items():
            numbers = self.arenas.host[stage.ports[port].arena]
            for dispatch in streak:
                self._touched[node].add(numbers[dispatch.in_rows[port]])

    def _merge(self, merge: Merge) -> None:
        """Each replica takes the mean of what was handed in, plus what it has learnt since."""
        handed_in = self._handed_in.pop(merge.group)
        means = average([handed_in[n] for n in merge.nodes])
        for node, mean in zip(merge.nodes, means, strict=True):
            self.params[node] = _rebase(self.params[node], handed_in[node], mean)

    # -- metrics

    def take_sums(self, train: bool) -> list[LossSums]:
        """What the losses have added up since the last call, one entry per loss node; copies of one are one. Waits for devices."""
        taken: dict[str, LossSums] = {}
        for (number, is_train), sums in list(self._sums.items()):
            if is_train == train:
                del self._sums[number, is_train]
                node, line = self.plan.stages[number].nodes[-1], np.asarray(sums, np.float64)
                before = taken[node.role].line if node.role in taken else 0
                taken[node.role] = LossSums(self._metric_names[number], before + line)
        return list(taken.values())

    def _sums_of(self, stage: Stage, train: bool) -> jax.Array:
        found = self._sums.get((stage.number, train))
        if found is None:
            found = zeros((2 + 2 * len(self._metric_names[stage.number]),), float, self._devices[stage.space])
        return found

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes on devices: arenas with their adjoints, recorded activations, and what belongs to nodes."""
        trees = {
            "records": [runner.recorded for runner in self._runners.values()],
            "params": self.params,
            "opt_state": self.opt_state,
            "accumulators": self.accumulators,
        }
        held = {name: sum(leaf.nbytes for leaf in jax.tree.leaves(tree)) for name, tree in trees.items()}
        return {"arenas": self.arenas.device_bytes, **held}

    def record_row_bytes(self) -> dict[ArenaKey, int]:
        """Bytes of recorded activations beside a row of each arena."""
        total: dict[ArenaKey, int] = {}
        for stage in self.plan.stages:
            if stage.kind in ("rows", "edges") and stage.trains:
                params = tuple(self.params[node] for node in stage.params)
                size = self._runners[stage.number].record_row_bytes(params)
                total[stage.arenas[0]] = total.get(stage.arenas[0], 0) + size
        return total

    def mark(self, worker: int) -> jax.Array | None:
        """A tiny array that is ready when the worker's device has done what was issued to it; None before its first arena."""
        space = self.plan.spaces[worker]
        for key, values in self.arenas.values.items():
            if key[0] == space:
                return self._corner.once(values)
        return None

    def kernel_marks(self, dispatch: Dispatch) -> list[jax.Array]:
        """Tiny arrays, ready when the kernels of this dispatch, the last that was issued, have been done."""
        stage, written = dispatch.stage, []
        if stage is not None:
            keys = dict.fromkeys([*stage.arenas, *(port.arena for port in stage.ports)])
            values = self.arenas.values if dispatch.direction != BACKWARD else self.arenas.grads
            written = [array for key in keys if (array := values.get(key)) is not None]
            written += [self._sums[key] for key in self._sums if key[0] == stage.number]
            written += jax.tree.leaves([self.accumulators[node] for node in stage.params])
        return [self._corner.once(array) for array in written if array.size]

    def change_marks(self, dispatch: Dispatch) -> list[jax.Array]:
        """Tiny arrays, ready when the parameter changes of this dispatch, the last that was issued, have been done."""
        nodes = [n for c in dispatch.changes for n in (c.nodes if isinstance(c, (Average, Merge)) else (c.node,))]
        written = [
            *(self.params[node] for node in nodes),
            *(tree for own in self._handed_in.values() for tree in own.values()),
        ]
        return [self._corner.once(array) for array in jax.tree.leaves(written) if array.size] if nodes else []

    def warm_marks(self) -> None:
        """Compiles what marks run."""
        sums = [self._sums_of(stage, True) for stage in self.plan.stages if stage.kind == "loss"]
        everything = self.arenas.values, self.arenas.grads, self.params, self.accumulators, sums
        jax.block_until_ready([self._corner.once(array) for array in jax.tree.leaves(everything) if array.size])

    def is_idle(self, worker: int) -> bool:
        """Whether a worker's device has done what was issued to it."""
        return all(_is_ready(array) for array in self._written(worker))

    def wait_for(self, worker: int) -> None:
        """Blocks until a worker's device has done what was issued to it."""
        jax.block_until_ready(list(self._written(worker)))

    def _written(self, worker: int) -> Iterator[jax.Array]:
        """What is on a worker's device and changes: arenas first, to which most of what is at work writes; parameters, accumulators, sums of losses."""
        space = self.plan.spaces[worker]
        for of in (self.arenas.grads, self.arenas.values):
            yield from (array for key, array in of.items() if key[0] == space and array is not None)
        nodes = [node for node, host in self.plan.worker_of.items() if self.plan.spaces[host] == space]
        trees = [(self.params.get(node), self.accumulators.get(node)) for node in nodes]
        sums = [value for (number, _), value in self._sums.items() if self.plan.stages[number].space == space]
        yield from jax.tree.leaves((trees, sums))

    def wait(self) -> None:
        """Blocks until all devices have done what was issued."""
        jax.block_until_ready((self.params, self.arenas.values, self.arenas.grads, self.accumulators))


def _is_ready(array: jax.Array) -> bool:
    return array.is_ready()  # pyright: ignore - jax.Array's type does not list it


@contextmanager
def _on_copies(*parts: tuple[dict[Any, Any], Iterable[Any]]) -> Iterator[None]:
    """Lets what runs meanwhile use up copies of some entries of dictionaries; these are as they were when it has ended, however it did."""
    before = [dict(held) for held, _ in parts]
    try:
        for held, keys in parts:
            held.update({key: _copies(held[key]) for key in keys})
        yield
    finally:
        for (held, _), entries in zip(parts, before, strict=True):
            held.clear()
            held.update(entries)


def _copies(tree: Any) -> Any:
    """A tree of arrays, copied where they are."""
    return jax.tree.map(lambda x: copied(x, x.device), tree)


@shared
def _update_of(tx: Any, gradient: str, donate_params: bool, shapes: Any) -> Kernel:
    """`kernel(params, opt_state, accumulator, count, staleness) -> (params, opt_state, accumulator)`: an update of parameters of these shapes (`residuals.shapes_of`)."""
    update = make_update(tx, gradient)

    @kernel(changed=(0, 1, 2) if donate_params else (1, 2))
    def step(params: Any, opt_state: Any, accumulator: Any, count: Any, staleness: Any) -> Any:
        return update(params, opt_state, accumulator, count, staleness=staleness)

    return step


@jax.jit
def _rebase(now: Any, handed_in: Any, mean: Any) -> Any:
    return jax.tree.map(
        lambda n, h, m: m + (n - h) if jnp.issubdtype(n.dtype, jnp.inexact) else n, now, handed_in, mean
    )


def _metrics_of(node: Node) -> list[str]:
    types = tuple(wire.type for wire in node.inputs if wire is not None and wire.type is not None)
    return list(metric_shapes(node, eval_body(node, node.op.body, types)))


def check_payload(feed: Feed) -> None:
    """Checks what has been pumped.

    Raises:
      MessageError: If a payload has another shape than its pump, or a dtype that does not fit.
    """
    _, shape, dtype = feed.arena
    payload = np.asarray(feed.payload)
    where = f"pump `{feed.pump}`, payload"
    if payload.size and not np.can_cast(payload.dtype, dtype, "same_kind"):
        raise MessageError(
            where,
            f"{dtype}",
            f"{payload.dtype}",
            f"Convert the payload to {dtype}, or declare the pump with its dtype.",
        )
    if payload.shape != (len(feed.slots), *shape):
        rows = payload.shape[1:] if payload.shape[:1] == (len(feed.slots),) else payload.shape
        raise MessageError(
            where,
            f"rows of shape {tuple(shape)}, as the pump was declared, one for each message",
            f"{rows} in one message" if rows != payload.shape else f"{rows} for {len(feed.slots)} messages",
            "Give payloads of the pump's shape.",
        )
