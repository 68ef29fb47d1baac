"""The executor: carries launches out on devices. Kernels are found in its own plan; arenas, parameters and sums of losses are parts of it.

One thread calls it, in the order of issue; JAX's asynchronous dispatch does the overlapping. Handles of arenas and parameters
are read when a launch runs, so order is all that correctness needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ampjax.devices.allreduce import Device
from ampjax.engine.arenas import Arenas
from ampjax.engine.fences import Fences
from ampjax.engine.kernels.edge_sizes import EdgeSizes
from ampjax.engine.kernels.launch import CHANGES_ONLY, Launch
from ampjax.engine.kernels.looped import Streak
from ampjax.engine.kernels.stage_program import Program
from ampjax.engine.kernels.weight_gradients import ACCUMULATING, Learning, Updating
from ampjax.engine.loss_metrics import LossMetrics
from ampjax.engine.parameters import NodeTraining, ParameterStore, on_copies
from ampjax.engine.stage_runner import StageRunner
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
        self._runners = {stage.number: StageRunner(stage, self.arenas, devices) for stage in stages}
        on_cpu = [s for s in stages if s.kind.is_row_wise and s.trains and devices[s.space].platform == "cpu"]
        self._tables = self._find_tables(on_cpu)
        self._updating = {
            s.number: Updating(tuple((training[n].tx, training[n].gradient) for n in s.params)) for s in stages
        }
        self.sinks = frozenset(stage.number for stage in stages if stage.kind.is_sink)
        self._reading = self.sinks | {stage.number for stage in stages if stage.route_by is not None}
        self.readings: dict[int, Any] = {}

    def _find_tables(self, stages: Sequence[Stage]) -> dict[int, list[tuple[str, int]]]:
        """The tables whose updates go over those rows that have got gradients, and the ports of the rows' numbers, by stage: nobody does anything else with them."""
        found = {}
        for stage in stages:
            program = self._runners[stage.number].program
            assert isinstance(program, Program)
            params = [self.store.params[node] for node in stage.params]
            found |= {(stage.number, node): port for node, port in table_ports(stage, program, params).items()}
        users = [(s.number, node) for s in self.plan.stages if s.trains for node in s.parameterised]
        read_whole = {node.params_name for number, node in users if (number, node.name) not in found}
        by_row = self.store.update_by_row({node.params_name for _, node in users} - read_whole)
        tables: dict[int, list[tuple[str, int]]] = {}
        for number, node in users:
            if node.params_name in by_row:
                tables.setdefault(number, []).append((node.params_name, found[number, node.name]))
        return tables

    def expect_edges(self, stages: Mapping[int, EdgeSizes]) -> None:
        """Tells chains, by the number of their stage, for how many edges to leave room."""
        for number, sizes in stages.items():
            self._runners[number].edge_sizes = sizes

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

    def issue(self, streak: Streak) -> None:
        """Carries launches out that coalesce: issues their kernels, then the parameter changes of the last one."""
        for change in streak[-1].changes[self.run(streak) :]:
            self.change(change)

    def run(self, streak: Streak) -> int:
        """Issues the kernels of launches that coalesce; says how many of the last one's parameter changes these make. `change` must follow for the others, before anything else."""
        launch, last = streak[0], streak[-1]
        if launch.stage == CHANGES_ONLY:
            return 0
        runner = self._runners[launch.stage]
        stage, params = runner.stage, tuple([self.store.params[node] for node in runner.stage.params])
        if last.capacities:
            for key, capacity in zip(stage.arenas, last.capacities, strict=True):
                self.arenas.ensure(key, capacity)
        if _brings_gradients(stage, launch):
            return self._learn(runner, streak, params)
        if stage.kind.starts_backward:
            self.losses.sums[stage.number, False] = runner.loss_infer(
                streak, params, self.losses.of(stage.number, False)
            )
        elif not stage.kind.is_sink:
            if launch.versions is not None:
                self.store.stash.setdefault((stage.number, launch.versions), params)
            runner.forward(streak, params)
        if self._reads(launch):
            self.readings[launch.number] = runner.read(
                launch, len(stage.ports) - 1
            )  # one port where what is read goes on itself
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

    def learns_at_once(self, launch: Launch) -> bool:
        """Whether a launch's kernel can make updates: it computes weight gradients, nobody keeps the parameters, and none is a table that is updated by rows."""
        runner = self._runners[launch.stage]
        if launch.stage in self._tables or not self.store.stashed.isdisjoint(runner.stage.params):
            return False
        return runner.learns_at_once(launch)

    def updates_at_once(self, launch: Launch) -> bool:
        """Whether a launch's kernel makes its updates: nothing is in them but what it brings."""
        return launch.brings_updates and self.learns_at_once(launch)

    def _learn(self, runner: StageRunner, streak: Streak, params: tuple[Any, ...]) -> int:
        """Runs kernels that bring weight gradients; says how many parameter changes they make."""
        stage, store, launch = runner.stage, self.store, streak[0]
        if stage.number in self._tables:
            self._note_rows(stage, streak)
        learning, learnt, told = self._learning(stage, launch)
        if stage.kind.starts_backward:
            sums = self.losses.of(stage.number, True)
            learnt, sums = runner.loss_train(streak, params, learning, learnt, told, sums)
            self.losses.sums[stage.number, True] = sums
        else:
            if launch.versions is not None:
                params = store.stash[stage.number, launch.versions]
            learnt = runner.backward(streak, params, learning, learnt, told)
        if learning is ACCUMULATING:
            store.accumulators.update(zip(stage.params, learnt, strict=True))
        else:
            for node, (new, opt_state) in zip(stage.params, learnt, strict=True):
                store.params[node], store.opt_state[node] = new, opt_state
        if launch.versions is not None and streak[-1].drop:
            del store.stash[stage.number, launch.versions]
        return 0 if learning is ACCUMULATING else len(launch.changes)

    def _note_rows(self, stage: Stage, streak: Streak) -> None:
        """Keeps which rows of tables some launches give gradients to."""
        for node, port in self._tables[stage.number]:
            numbers = self.arenas.host[stage.ports[port].arena]
            for launch in streak:
                self.store.add_rows(node, numbers[launch.in_rows[port]])

    def _learning(self, stage: Stage, launch: Launch) -> tuple[Learning, tuple[Any, ...], np.ndarray | None]:
        """What becomes of a launch's weight gradients, what it needs of each node, and what it is told of the updates."""
        if self.updates_at_once(launch):
            updates = {change.node: change for change in launch.changes if isinstance(change, Update)}
            told = [(updates[node].count, updates[node].mean_staleness) for node in stage.params]
            states = tuple([self.store.opt_state[node] for node in stage.params])
            return self._updating[stage.number], states, np.array(told, np.float32)
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

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes on devices: arenas with their adjoints, recorded activations, and what belongs to nodes."""
        records = sum(array.nbytes for runner in self._runners.values() for array in runner.recorded)
        return {"arenas": self.arenas.device_bytes, "records": records, **self.store.n_bytes}

    def record_row_bytes(self) -> dict[ArenaKey, int]:
        """Bytes of recorded activations beside a row of each arena."""
        total: dict[ArenaKey, int] = {}
        for stage in self.plan.stages:
            if stage.kind.has_bodies and not stage.kind.starts_backward and stage.trains:
                params = tuple(self.store.params[node] for node in stage.params)
                size = self._runners[stage.number].record_row_bytes(params)
                total[stage.arenas[0]] = total.get(stage.arenas[0], 0) + size
        return total


def _brings_gradients(stage: Stage, launch: Launch) -> bool:
    """Whether a launch's kernels compute weight gradients: a way back, or a loss in training."""
    return launch.direction == BACKWARD or (launch.direction == FORWARD and stage.kind.starts_backward)
