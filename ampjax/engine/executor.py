"""The executor: carries launches out on devices.

It has a runner for each stage (`engine.kinds`), and holds arenas, parameters and sums of losses.

One thread calls it, in the order of issue; JAX's asynchronous dispatch does the overlapping. Arrays of arenas and parameters
are looked up when a launch runs, so order is all that correctness needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ampjax.devices.allreduce import Device
from ampjax.engine.backward_runs import BackwardRuns
from ampjax.engine.fences import Fences
from ampjax.engine.joint_updates import JointGroup
from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.edge_sizes import EdgeSizes
from ampjax.engine.kernels.launch import CHANGES_ONLY, Launch
from ampjax.engine.kinds.make_runner import make_runner
from ampjax.engine.kinds.transfer_runner import TransferRunner
from ampjax.engine.memory.arenas import Arenas
from ampjax.engine.memory.loss_metrics import LossMetrics
from ampjax.engine.parameters import NodeTraining, ParameterStore, on_copies
from ampjax.plan.planner import Plan
from ampjax.plan.stages import ArenaKey
from ampjax.sched.decisions.dispatch import BACKWARD, FORWARD
from ampjax.sched.decisions.parameter_changes import Change, JointUpdate, Update
from ampjax.sched.programs.feeds import Feed


class Executor:
    """Runs launches.

    It has more than 15 methods: each is something that a driver, or another host, asks of a device, and has a few lines.

    Args:
      plan: The plan.
      params: Parameters by node name.
      training: How each parameterised node is trained.
      devices: The device of each memory space; or, by its number, of each that is kept here: this then carries out the launches of their
        stages only, and keeps their nodes.
      stashed: Nodes whose adjoint uses the forward pass's parameters.
      groups: Nodes that are updated together.

    Attributes:
      arenas: Where payloads lie.
      store: Parameters, optimizer states, accumulators.
      losses: The sums of losses and metrics.
      fences: How far devices are.
      backward_runs: What becomes of weight gradients.
      sinks: The numbers of the `sink` stages.
      readings: What launches have read back, by their numbers: padded rows of what has arrived at sinks, and of what a `route_by` decides
        on.
    """

    is_remote = False
    for_lines = None  # kernels take launches
    n_hosts = 1
    timing = None

    def __init__(
        self,
        plan: Plan,
        params: Mapping[str, Any],
        training: Mapping[str, NodeTraining],
        devices: Sequence[Device] | Mapping[int, Device],
        stashed: Sequence[str] = (),
        groups: Sequence[JointGroup] = (),
    ):
        self.plan = plan
        devices = devices if isinstance(devices, Mapping) else dict(enumerate(devices))
        space_of = {}
        for node, worker in plan.worker_of.items():
            space_of[node] = plan.spaces[worker]
        device_of = {}
        for node, space in space_of.items():
            if space in devices:
                device_of[node] = devices[space]
        self.arenas = Arenas(devices)
        self.store = ParameterStore(params, training, device_of, stashed, groups)
        self.losses = LossMetrics(plan, devices)
        self.fences = Fences(plan, self.arenas, self.store, self.losses)
        stages = []
        for stage in plan.stages:
            if stage.kind.is_dispatched and not devices.keys().isdisjoint(stage.spaces):
                stages.append(stage)
        tables = {}
        for node, of_node in training.items():
            if of_node.table is not None:
                tables[node] = of_node.table
        runners = {}
        for stage in stages:
            runners[stage.number] = make_runner(
                stage,
                self.arenas,
                self.losses,
                tables,
            )
        self._runners = runners
        self.backward_runs = BackwardRuns(self._runners, self.arenas, self.store)
        self._starts_backward = frozenset(
            stage.number for stage in stages if stage.kind.starts_backward
        )
        self.sinks = frozenset(stage.number for stage in stages if stage.kind.is_sink)
        self._reading = self.sinks | {
            stage.number for stage in stages if stage.route_by is not None
        }
        self.readings: dict[int, Any] = {}

    def expect_edges(self, stages: Mapping[int, EdgeSizes]) -> None:
        """Tells `edges` stages for how many edges to leave room.

        Args:
          stages: The expected edges of each, by its number.
        """
        for number, sizes in stages.items():
            self._runners[number].expect_edges(sizes)

    # -- launches

    def feed(self, feeds: Sequence[Feed]) -> None:
        """Writes pumped payloads to host arenas.

        Args:
          feeds: The payloads, which `sched.programs.feeds.check_payload` has passed.
        """
        for feed in feeds:
            self.arenas.ensure(feed.arena, feed.capacity)
            self.arenas.host[feed.arena][feed.slots] = feed.payload

    def can_coalesce(self, before: Launch, launch: Launch) -> bool:
        """Whether one call of one kernel can carry out a launch together with others."""
        return (
            launch.stage == before.stage != CHANGES_ONLY
            and launch.size == before.size
            and launch.direction == before.direction
            and (launch.versions, launch.staleness, launch.dropped)
            == (before.versions, before.staleness, before.dropped)
            and not (before.changes or before.drop or self._reads(before))
            and self._runners[launch.stage].can_coalesce(before, launch)
            and not (launch.changes and self.backward_runs.updates_at_once(launch))
        )

    def issue(self, launches: Coalesced) -> None:
        """Issues the kernels of launches that coalesce, then the parameter changes of the last one.

        Args:
          launches: One, or several of which each but the first `can_coalesce` with those before it.
        """
        for change in launches[-1].changes[self.run(launches) :]:
            self.change(change)

    def run(self, launches: Coalesced) -> int:
        """Issues the kernels of launches that coalesce.

        Args:
          launches: One, or several of which each but the first `can_coalesce` with those before it.

        Returns:
          How many of the last one's parameter changes the kernels make. `change` must follow for the others, before anything else.
        """
        launch = launches[0]
        last = launches[-1]
        if launch.stage == CHANGES_ONLY:
            return 0
        runner = self._runners[launch.stage]
        stage = runner.stage
        params = tuple([self.store.params[node] for node in runner.stage.params])
        # Arenas grow before the kernel writes to them. The last launch's capacities are the
        # largest.
        if last.capacities:
            for key, capacity in zip(stage.arenas, last.capacities, strict=True):
                self.arenas.ensure(key, capacity)
        # Launches that compute gradients go to `backward_runs`, which knows who consumes them.
        if launch.direction == BACKWARD or (
            launch.direction == FORWARD and launch.stage in self._starts_backward
        ):
            return self.backward_runs.run(runner, launches, params)
        # The adjoint will need these parameters, and an update may come first.
        if launch.versions is not None:
            self.store.stash.setdefault((stage.number, launch.versions), params)
        runner.forward(launches, params)
        if self._reads(launch):
            self.readings[launch.number] = runner.read(launch)
        return 0

    def change(self, change: Change) -> None:
        """Issues a parameter change."""
        if isinstance(change, JointUpdate):
            wants_loss = self.store.groups[change.group].transform.wants_loss
            self.store.change_together(
                change, self.losses.of_round(change.examples) if wants_loss else None
            )
        else:
            self.store.change(change)

    def choices(self, number: int, n_rows: int) -> np.ndarray:
        """Gives the rows that a launch has read back, once. Waits for the device.

        Returns:
          `[n_rows, *shape]`.
        """
        return np.asarray(self.readings.pop(number))[:n_rows]

    # -- the halves of a transfer between two processes

    def take(self, launch: Launch) -> Any:
        """Reads the rows of a launch of a transfer stage at their source, or on the way back their gradients.

        Args:
          launch: The launch; it has rows.

        Returns:
          `[k, *shape]`.
        """
        return self._transfer(launch).take(launch)

    def put(self, launch: Launch, rows: Any) -> None:
        """Writes the rows of a launch of a transfer stage at their destination, or adds the gradients.

        Args:
          launch: The launch.
          rows: What `take` has read, in another process.
        """
        runner = self._transfer(launch)
        if launch.direction != BACKWARD:
            self.arenas.ensure(
                runner.stage.arenas[0],
                launch.capacities[0],
            )
        runner.put(launch, rows)

    def _transfer(self, launch: Launch) -> TransferRunner:
        runner = self._runners[launch.stage]
        assert isinstance(runner, TransferRunner)
        return runner

    def oldest_unfinished(self) -> int | None:
        """The first launch that may turn out not to have been carried out: none, in this process."""
        return None

    def take_lost(self) -> dict[int, int | None]:
        """Launches that were issued and never carried out: none, in this process."""
        return {}

    def abandon(self) -> None:
        """Forgets the arrays that were kept for instances that are given up.

        These are stashed parameters, sums of losses, readings, and what replicas have handed in.
        """
        self.store.forget()
        self.losses.clear()
        self.readings.clear()

    def _reads(self, launch: Launch) -> bool:
        """Whether rows of a launch's inputs are read back to the host."""
        return launch.stage in self._reading and launch.direction != BACKWARD

    # -- compiling, and questions

    def leave_out(self, launches: Coalesced) -> bool:
        """Leaves launches out, where all later launches can run without the omitted ones, with other numbers.

        Args:
          launches: As for `run`, without parameter changes.

        Returns:
          False if it can't, since something on the host is kept for them: then `run` must be called.
        """
        launch = launches[0]
        stage = self.plan.stages[launch.stage]
        if launch.versions is not None or self._reads(launch) or stage.kind.reads_table:
            return False
        if launch.direction == BACKWARD or (
            launch.direction == FORWARD and launch.stage in self._starts_backward
        ):
            self.backward_runs.leave_out(stage, launches)
        return True

    def warm(
        self,
        launch: Launch,
        capacities: Mapping[ArenaKey, int],
    ) -> None:
        """Compiles a launch's kernels by running the launch on copies of all arrays that would change.

        Args:
          launch: The launch; its slots are the trash slot.
          capacities: Rows of the arenas that it reads.
        """
        for key, capacity in capacities.items():
            self.arenas.ensure(key, capacity)
        changed = [change.node for change in launch.changes if isinstance(change, Update)]
        on_own_copies = self.store.on_copies(
            self.plan.stages[launch.stage].params,
            changed,
        )
        with (
            on_own_copies,
            on_copies(
                (self.losses.sums, [*self.losses.sums]),
                (self.readings, ()),
            ),
        ):
            self.run([launch])

    def can_update_at_once(self, launch: Launch) -> bool:
        """Whether a launch's kernel can also update its stage's nodes.

        Args:
          launch: A backward launch, or one of a loss.
        """
        return self.backward_runs.can_update_at_once(launch)

    @property
    def device_bytes(self) -> dict[str, int]:
        """Bytes on devices: arenas with their adjoints, recorded activations, and the trees of nodes."""
        records = sum(runner.n_recorded_bytes for runner in self._runners.values())
        return {
            "arenas": self.arenas.device_bytes,
            "records": records,
            **self.store.n_bytes,
        }

    def record_row_bytes(self) -> dict[ArenaKey, int]:
        """Bytes of recorded activations beside a row of each arena."""
        total: dict[ArenaKey, int] = {}
        for stage in self.plan.stages:
            if stage.number in self._runners and stage.outputs and stage.trains:
                params = tuple(self.store.params[node] for node in stage.params)
                size = self._runners[stage.number].record_row_bytes(params)
                total[stage.arenas[0]] = total.get(stage.arenas[0], 0) + size
        return total
