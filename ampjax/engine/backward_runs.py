"""Runs the kernels that compute weight gradients: chooses the consumer of the gradients, and stores its results with the parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.kernels.stage_program import make_program
from ampjax.engine.kernels.weight_gradients import (
    ACCUMULATING,
    Accumulating,
    GradientConsumer,
    Updating,
)
from ampjax.engine.kinds.stage_runner import StageRunner
from ampjax.engine.memory.arenas import Arenas
from ampjax.engine.parameters import ParameterStore
from ampjax.engine.touched_rows import table_ports
from ampjax.plan.stages import Stage
from ampjax.sched.decisions.parameter_changes import Update


class BackwardRuns:
    """Runs backward launches: their weight gradients are accumulated, or used for updates at once.

    Args:
      runners: The runner of each stage.
      arenas: Where payloads lie.
      store: Parameters, optimizer states, accumulators.
    """

    def __init__(
        self,
        runners: Mapping[int, StageRunner],
        arenas: Arenas,
        store: ParameterStore,
    ):
        self._arenas = arenas
        self._store = store
        stages = [runner.stage for runner in runners.values()]
        self._tables = self._find_tables(stages)
        updating = {}
        for s in stages:
            if self._can_update(runners[s.number]):
                updating[s.number] = self._updating_of(s)
        self._updating = updating

    @property
    def updating(self) -> list[int]:
        """The stages, by number, whose kernels can also update their nodes."""
        return list(self._updating)

    def can_update_at_once(self, launch: Launch) -> bool:
        """Whether a launch's kernel can also update its stage's nodes.

        Args:
          launch: A backward launch, or one of a loss.
        """
        return launch.stage in self._updating and launch.n_rows > 0

    def updates_at_once(self, launch: Launch) -> bool:
        """Whether a launch's kernel also makes its updates, which need no gradients but the launch's own."""
        return launch.brings_updates and self.can_update_at_once(launch)

    def run(
        self,
        runner: StageRunner,
        launches: Coalesced,
        params: tuple[Any, ...],
    ) -> int:
        """Issues the kernels of launches that compute weight gradients.

        Returns:
          How many of the last launch's parameter changes the kernels make.
        """
        stage = runner.stage
        store = self._store
        launch = launches[0]
        # Rows are noted before parameters change: an update goes over the rows that have been
        # noted.
        if stage.number in self._tables:
            self._add_rows(stage, launches)
        consumer, states, scalars = self._consumer(stage, launch)
        # The parameters that the adjoint uses: stashed ones, estimates, or those of now.
        if launch.versions is not None:
            params = store.stash[stage.number, launch.versions]
        elif launch.staleness is not None:
            params = tuple(
                [
                    store.params_before(*each)
                    for each in zip(stage.params, launch.staleness, strict=True)
                ]
            )
        states = runner.backward(launches, params, consumer, states, scalars)
        accumulates = isinstance(consumer, Accumulating)
        # Donated arrays are gone, so what the kernel returned replaces them at once.
        if accumulates:
            store.accumulators.update(zip(stage.params, states, strict=True))
        else:
            for node, (new, opt_state) in zip(stage.params, states, strict=True):
                store.params[node] = new
                store.opt_state[node] = opt_state
        # Nobody needs these versions any more.
        if launch.versions is not None and launches[-1].drop:
            del store.stash[stage.number, launch.versions]
        return 0 if accumulates else len(launch.changes)

    def leave_out(self, stage: Stage, launches: Coalesced) -> None:
        """Notes the rows of tables to which launches would have given gradients.

        Args:
          stage: Their stage.
          launches: As for `run`.
        """
        if stage.number in self._tables:
            self._add_rows(stage, launches)

    def _find_tables(
        self,
        stages: Sequence[Stage],
    ) -> dict[int, list[tuple[str, int]]]:
        """Finds the tables of each stage whose updates go over rows with gradients only, and the ports of the rows' numbers.

        Every node that has such a table as its parameters does nothing with it but read a row for each message.
        """
        devices = self._arenas.devices
        port_of = dict[tuple[int, str], int]()
        for stage in stages:
            if (
                stage.kind.runs_row_bodies
                and stage.trains
                and devices[stage.space].platform == "cpu"
            ):
                params = [self._store.params[name] for name in stage.params]
                ports = table_ports(stage, make_program(stage), params)
                port_of |= {(stage.number, node): port for node, port in ports.items()}
        users = []
        for stage in stages:
            if stage.trains:
                for node in stage.parameterised:
                    users.append((stage.number, node))
        read_whole = set()
        for number, node in users:
            if (number, node.name) not in port_of:
                read_whole.add(node.params_name)
        by_row = self._store.update_by_row({node.params_name for _, node in users} - read_whole)
        tables: dict[int, list[tuple[str, int]]] = {}
        for number, node in users:
            if node.params_name in by_row:
                tables.setdefault(
                    number,
                    [],
                ).append((node.params_name, port_of[number, node.name]))
        return tables

    def _can_update(self, runner: StageRunner) -> bool:
        """Whether a stage's kernels can make updates.

        Their runner takes a consumer that updates, no message in flight needs the old parameters or an estimate of them, and none of these
        is a table that is updated by rows.
        """
        needs_others = not (self._store.stashed | self._store.estimated).isdisjoint(
            runner.stage.params
        )
        return (
            runner.can_update_at_once
            and not needs_others
            and runner.stage.number not in self._tables
        )

    def _updating_of(self, stage: Stage) -> Updating:
        """The updating consumer of a stage's gradients."""
        training = [self._store.training[node] for node in stage.params]
        return Updating(tuple((of_node.tx, of_node.gradient) for of_node in training))

    def _add_rows(self, stage: Stage, launches: Sequence[Launch]) -> None:
        """Keeps to which rows of tables launches give gradients."""
        for node, port in self._tables[stage.number]:
            numbers = self._arenas.host[stage.ports[port].arena]
            for launch in launches if node not in launches[0].dropped else ():
                self._store.add_rows(node, numbers[launch.in_rows[port]])

    def _consumer(
        self, stage: Stage, launch: Launch
    ) -> tuple[GradientConsumer, tuple[Any, ...], np.ndarray | None]:
        """The consumer of a launch's weight gradients, the consumer's state of each node, and the numbers that an update needs."""
        if self.updates_at_once(launch):
            updates = {
                change.node: change for change in launch.changes if isinstance(change, Update)
            }
            scalars = []
            for node in stage.params:
                scalars.append((updates[node].count, updates[node].mean_staleness))
            states = tuple([self._store.opt_state[node] for node in stage.params])
            return self._updating[stage.number], states, np.array(scalars, np.float32)
        if launch.dropped:
            drops = tuple([node in launch.dropped for node in stage.params])
        else:
            drops = ()
        consumer = Accumulating(drops) if drops else ACCUMULATING
        return consumer, tuple([self._store.accumulators[node] for node in stage.params]), None
