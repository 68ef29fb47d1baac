"""The executor: carries launches out on devices. It has a runner for each stage (`engine.kinds`), and holds arenas, parameters and sums of losses.

One thread calls it, in the order of issue; JAX's asynchronous dispatch does the overlapping. Arrays of arenas and parameters
are looked up when a launch runs, so order is all that correctness needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ampjax.devices.allreduce import Device
from ampjax.engine.arenas import Arenas
from ampjax.engine.fences import Fences
from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.edge_sizes import EdgeSizes
from ampjax.engine.kernels.launch import CHANGES_ONLY, Launch
from ampjax.engine.kernels.stage_program import make_program
from ampjax.engine.kernels.weight_gradients import ACCUMULATING, GradientConsumer, Updating
from ampjax.engine.kinds.make_runner import make_runner
from ampjax.engine.kinds.stage_runner import StageRunner
from ampjax.engine.loss_metrics import LossMetrics
from ampjax.engine.parameters import NodeTraining, ParameterStore, on_copies
from ampjax.engine.touched_rows import table_ports
from ampjax.plan.planner import Plan
from ampjax.plan.stages import ArenaKey, Stage
from ampjax.sched.decisions.dispatch import BACKWARD, FORWARD
from ampjax.sched.decisions.parameter_changes import Change, Update
from ampjax.sched.programs.feeds import Feed


class Executor:
    """Runs launches.

    Args:
      plan: The plan.
      params: Parameters by node name.
      training: How each parameterised node is trained.
      devices: The device of each memory space.
      stashed: Nodes whose adjoint uses the forward pass's parameters.

    Attributes:
      arenas: Where payloads lie.
      store: Parameters, optimizer states, accumulators.
      losses: What losses have added up.
      fences: How far devices are.
      sinks: The numbers of stages that only show what they get.
      readings: What launches have read back, by their numbers: what sinks have received, and what a `route_by` decides on; rows, padded.
    """

    def __init__(
        self,
        plan: Plan,
        params: Mapping[str, Any],
        training: Mapping[str, NodeTraining],
        devices: Sequence[Device],
        stashed: Sequence[str] = (),
    ):
        self.plan, devices = plan, tuple(devices)
        device_of = {node: devices[plan.spaces[worker]] for node, worker in plan.worker_of.items()}
        self.arenas = Arenas(devices)
        self.store = ParameterStore(params, training, device_of, stashed)
        self.losses = LossMetrics(plan, devices)
        self.fences = Fences(plan, self.arenas, self.store, self.losses)
        stages = [stage for stage in plan.stages if stage.kind.is_dispatched]
        self._runners = {stage.number: make_runner(stage, self.arenas, self.losses) for stage in stages}
        on_cpu = [s for s in stages if s.kind.is_row_wise and s.trains and devices[s.space].platform == "cpu"]
        self._tables = self._find_tables(on_cpu)
        self._starts_backward = frozenset(stage.number for stage in stages if stage.kind.starts_backward)
        self._updating = {s.number: self._updating_of(s) for s in stages if self._can_update(s)}
        self.sinks = frozenset(stage.number for stage in stages if stage.kind.is_sink)
        self._reading = self.sinks | {stage.number for stage in stages if stage.route_by is not None}
        self.readings: dict[int, Any] = {}

    def _find_tables(self, stages: Sequence[Stage]) -> dict[int, list[tuple[str, int]]]:
        """The tables whose updates go over those rows that have got gradients, and the ports of the rows' numbers, by stage: nobody does anything else with them."""
        found = {}
        for stage in stages:
            params = [self.store.params[node] for node in stage.params]
            ports = table_ports(stage, make_program(stage), params)
            found |= {(stage.number, node): port for node, port in ports.items()}
        users = [(s.number, node) for s in self.plan.stages if s.trains for node in s.parameterised]
        read_whole = {node.params_name for number, node in users if (number, node.name) not in found}
        by_row = self.store.update_by_row({node.params_name for _, node in users} - read_whole)
        tables: dict[int, list[tuple[str, int]]] = {}
        for number, node in users:
            if node.params_name in by_row:
                tables.setdefault(number, []).append((node.params_name, found[number, node.name]))
        return tables

    def _can_update(self, stage: Stage) -> bool:
        """Whether a stage's kernels can make updates: they compute weight gradients, nobody keeps the parameters, and none is a table that is updated by rows."""
        keeps = stage.number in self._tables or not self.store.stashed.isdisjoint(stage.params)
        return self._runners[stage.number].computes_weight_gradients and not keeps

    def _updating_of(self, stage: Stage) -> Updating:
        rules = [self.store.training[node] for node in stage.params]
        return Updating(tuple((rule.tx, rule.gradient) for rule in rules))

    def expect_edges(self, stages: Mapping[int, EdgeSizes]) -> None:
        """Tells chains, by the number of their stage, for how many edges to leave room."""
        for number, sizes in stages.items():
            self._runners[number].expect_edges(sizes)

    # -- launches

    def feed(self, feeds: Sequence[Feed]) -> None:
        """Writes pumped payloads, which `sched.programs.feeds.check_payload` has passed, to host arenas."""
        for feed in feeds:
            self.arenas.ensure(feed.arena, feed.capacity)
            self.arenas.host[feed.arena][feed.slots] = feed.payload

    def can_coalesce(self, before: Launch, launch: Launch) -> bool:
        """Whether a launch can be carried out together with the one before it, and with those that this was carried out with: one call of one kernel."""
        return (
            launch.stage == before.stage != CHANGES_ONLY
            and launch.size == before.size
            and launch.direction == before.direction
            and launch.versions == before.versions
            and not (before.changes or before.drop or self._reads(before))
            and self._runners[launch.stage].can_coalesce(before, launch)
            and not (launch.changes and self.updates_at_once(launch))
        )

    def issue(self, launches: Coalesced) -> None:
        """Carries launches out that coalesce: issues their kernels, then the parameter changes of the last one."""
        for change in launches[-1].changes[self.run(launches) :]:
            self.change(change)

    def run(self, launches: Coalesced) -> int:
        """Issues the kernels of launches that coalesce.

        Args:
          launches: One, or several of which each but the first `can_coalesce` with those before it.

        Returns:
          How many of the last one's parameter changes the kernels make. `change` must follow for the others, before anything else.
        """
        launch, last = launches[0], launches[-1]
        if launch.stage == CHANGES_ONLY:
            return 0
        runner = self._runners[launch.stage]
        stage, params = runner.stage, tuple([self.store.params[node] for node in runner.stage.params])
        if last.capacities:
            for key, capacity in zip(stage.arenas, last.capacities, strict=True):
                self.arenas.ensure(key, capacity)
        if launch.direction == BACKWARD or (launch.direction == FORWARD and launch.stage in self._starts_backward):
            return self._run_backward(runner, launches, params)
        if launch.versions is not None:
            self.store.stash.setdefault((stage.number, launch.versions), params)
        runner.forward(launches, params)
        if self._reads(launch):
            self.readings[launch.number] = runner.read(launch)
        return 0

    def change(self, change: Change) -> None:
        """Issues a parameter change."""
        self.store.change(change)

    def choices(self, number: int, n_rows: int) -> np.ndarray:
        """What a launch of so many rows has read back, `[n_rows, *shape]`. Waits for the device; can be asked once."""
        return np.asarray(self.readings.pop(number))[:n_rows]

    def abandon(self) -> None:
        """Forgets what belongs to instances that are given up: parameters stashed for them, sums of losses, readings, what replicas have handed in."""
        self.store.forget()
        self.losses.sums.clear()
        self.readings.clear()

    def _reads(self, launch: Launch) -> bool:
        """Whether rows of a launch's inputs are read back to the host."""
        return launch.stage in self._reading and launch.direction != BACKWARD

    # -- gradients

    def can_update_at_once(self, launch: Launch) -> bool:
        """Whether a launch's kernel can make updates of its stage's nodes."""
        return launch.stage in self._updating and launch.n_rows > 0

    def updates_at_once(self, launch: Launch) -> bool:
        """Whether a launch's kernel makes its updates: nothing is in them but what it brings."""
        return launch.brings_updates and self.can_update_at_once(launch)

    def _run_backward(self, runner: StageRunner, launches: Coalesced, params: tuple[Any, ...]) -> int:
        """Runs kernels that compute weight gradients; returns how many parameter changes they make."""
        stage, store, launch = runner.stage, self.store, launches[0]
        if stage.number in self._tables:
            self._note_rows(stage, launches)
        consumer, states, scalars = self._consumer(stage, launch)
        if launch.versions is not None:
            params = store.stash[stage.number, launch.versions]
        states = runner.backward(launches, params, consumer, states, scalars)
        if consumer is ACCUMULATING:
            store.accumulators.update(zip(stage.params, states, strict=True))
        else:
            for node, (new, opt_state) in zip(stage.params, states, strict=True):
                store.params[node], store.opt_state[node] = new, opt_state
        if launch.versions is not None and launches[-1].drop:
            del store.stash[stage.number, launch.versions]
        return 0 if consumer is ACCUMULATING else len(launch.changes)

    def _note_rows(self, stage: Stage, launches: Coalesced) -> None:
        """Keeps which rows of tables some launches give gradients to."""
        for node, port in self._tables[stage.number]:
            numbers = self.arenas.host[stage.ports[port].arena]
            for launch in launches:
                self.store.add_rows(node, numbers[launch.in_rows[port]])

    def _consumer(self, stage: Stage, launch: Launch) -> tuple[GradientConsumer, tuple[Any, ...], np.ndarray | None]:
        """What consumes a launch's weight gradients, the state that it keeps of each node, and what it is told of the updates."""
        if self.updates_at_once(launch):
            updates = {change.node: change for change in launch.changes if isinstance(change, Update)}
            scalars = [(updates[node].count, updates[node].mean_staleness) for node in stage.params]
            states = tuple([self.store.opt_state[node] for node in stage.params])
            return self._updating[stage.number], states, np.array(scalars, np.float32)
        return ACCUMULATING, tuple([self.store.accumulators[node] for node in stage.params]), None

    # -- compiling, and questions

    def warm(self, launch: Launch, capacities: Mapping[ArenaKey, int]) -> None:
        """Compiles what a launch needs, by running it on copies of all that it would change; its slots must be the trash slot.

        Args:
          launch: The launch.
          capacities: Rows of the arenas that it reads.
        """
        for key, capacity in capacities.items():
            self.arenas.ensure(key, capacity)
        changed = [change.node for change in launch.changes if isinstance(change, Update)]
        own = self.store.on_copies(self.plan.stages[launch.stage].params, changed)
        with own, on_copies((self.losses.sums, [*self.losses.sums]), (self.readings, ())):
            self.run([launch])

    def idle_launches(
        self, stage: Stage, direction: str, rows: int, messages: int, capacity: Callable[[ArenaKey], int]
    ) -> Iterator[Launch]:
        """Launches that do nothing, one of each size of a stage's dispatches: for `warm`. See `StageRunner.idle_launches`."""
        return self._runners[stage.number].idle_launches(direction, rows, messages, capacity)

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes on devices: arenas with their adjoints, recorded activations, and what belongs to nodes."""
        records = sum(runner.n_recorded_bytes for runner in self._runners.values())
        return {"arenas": self.arenas.device_bytes, "records": records, **self.store.n_bytes}

    def record_row_bytes(self) -> dict[ArenaKey, int]:
        """Bytes of recorded activations beside a row of each arena."""
        total: dict[ArenaKey, int] = {}
        for stage in self.plan.stages:
            if stage.number in self._runners and stage.outputs and stage.trains:
                params = tuple(self.store.params[node] for node in stage.params)
                size = self._runners[stage.number].record_row_bytes(params)
                total[stage.arenas[0]] = total.get(stage.arenas[0], 0) + size
        return total
