"""Asynchronous steps: each replica pulls, computes and pushes for itself, and its gradients are applied when they come.

Replicas take turns. A bound on staleness is a bound on how many gradients are under way: if j others are under way at the pull, the
gradients are applied j updates later. With a bound of 0 it is ordinary training, one replica's batch after the other's.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ampjax.cluster.hosts.resources import Resources
from ampjax.errors import AmpError, ServerError
from ampjax.parallel.homes.all_homes import naming_variable
from ampjax.parallel.homes.dense_homes import DenseAtServers
from ampjax.parallel.homes.row_homes import PulledRows, RowsAtServers
from ampjax.parallel.steps import batch_rows
from ampjax.parallel.steps.step_outcome import require_finite
from ampjax.parallel.steps.step_programs import GradientResult, gradients
from ampjax.parallel.steps.synchronous_steps import HomedStep, StepOutcome

Tree = Any


@dataclass(frozen=True)
class InFlight:
    """Gradients that have not been applied.

    Args:
      number: The step's number.
      replica: Who computes them.
      version: How many updates its parameters had seen.
      pulled: The rows that it has.
      result: What it computes.
    """

    number: int
    replica: int
    version: int
    pulled: dict[str, PulledRows]
    result: GradientResult


@dataclass
class AsyncStep(HomedStep):
    """Steps without a barrier; all variables live at servers.

    Args:
      resources: The machines.
      max_staleness: Updates between a pull and its push at most.
      check_finite: Whether gradients that are not finite stop a step.
      version: Updates so far.
    """

    resources: Resources
    max_staleness: int
    check_finite: bool
    version: int = 0
    _underway: collections.deque[InFlight] = field(default_factory=collections.deque)
    _sizes: batch_rows.PaddedSizes = field(default_factory=batch_rows.PaddedSizes)

    @cached_property
    def _gradients(self) -> Any:
        return jax.jit(gradients(self.loss, self.has_aux))

    @cached_property
    def _ids(self) -> Any:
        shapes = self.loss.split(self.loss.params)[0]
        return jax.jit(lambda batch: self.loss.ids(shapes, batch))

    def __call__(self, number: int, parts: Sequence[Tree], keep: bool) -> StepOutcome:
        """Lets every replica begin with its part, and applies gradients as the bound demands. Those that can't be applied are dropped.

        Args:
          number: The step's, for messages.
          parts: By replica its batch.
          keep: Whether gradients will be asked for; there are no aggregated ones.

        Returns:
          The losses and the staleness of each update that was made; and why gradients were dropped, if some were.
        """
        del keep
        staleness, results, alpha, dropped = [], [], collections.Counter(), []
        for replica, part in enumerate(parts):
            staleness += self._make_room(replica, dropped)
            result, alphas = self._begin(number, replica, part)
            results.append(result)
            alpha.update({path: value / len(parts) for path, value in alphas.items()})
        aux = jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *[r.aux for r in results])
        return StepOutcome([result.loss for result in results], aux, dict(alpha), dict, staleness, dropped)

    def write(self, params: Tree, state: Tree, tables: Any) -> None:
        """Replaces all variables and the optimizer's state. Gradients of the old ones are dropped.

        Args:
          params: Dense parameters, None in place of tables.
          state: The optimizer's shared state.
          tables: By path, the copies of its table.
        """
        super().write(params, state, tables)
        self._underway.clear()

    def finish(self) -> None:
        """Applies all that is under way.

        Raises:
          ParameterError: If a dense gradient is not finite. It alone is dropped.
          TableError: If a row's gradient is not; likewise.
        """
        dropped: list[AmpError] = []
        while self._underway:
            self._apply_oldest(dropped)
        if dropped:
            raise dropped[0]

    def _make_room(self, replica: int, dropped: list[AmpError]) -> list[int]:
        """Applies the oldest gradients until one more may be under way, and the replica has none."""
        staleness = []
        while len(self._underway) > self.max_staleness or any(work.replica == replica for work in self._underway):
            staleness += self._apply_oldest(dropped)
        return staleness

    def _begin(self, number: int, replica: int, part: Tree) -> tuple[GradientResult, dict[str, float]]:
        device, machine = self.resources.devices[replica], self.resources.homes[replica]
        batch = jax.device_put(part, device)
        workers = batch_rows.rows_of_replicas(self.loss, [self._ids(batch)])
        readings = self.readings.for_batch(part)
        pulled = {
            path: PulledRows(unique, self._served(path).pull_for(machine, unique.ids, readings[path]), readings[path])
            for path, (unique,) in workers.items()
        }
        (given,) = batch_rows.inputs(1, self.loss, {path: [rows] for path, rows in pulled.items()}, self._sizes)
        dense = jax.device_put(self._dense.pull_for(machine), device)
        result = self._gradients(dense, *jax.device_put((given.rows, given.inverse), device), batch)
        self._underway.append(InFlight(number, replica, self.version, pulled, result))
        return result, batch_rows.alphas(self.loss, workers)

    def _apply_oldest(self, dropped: list[AmpError]) -> list[int]:
        """Applies the oldest gradients and returns their staleness; or drops them and keeps the error.

        They may be an earlier step's. So an error does not stop the present step, half of which could not be repeated.
        """
        work = self._underway.popleft()
        try:
            self._apply(work)
        except ServerError:
            raise  # more is lost than these gradients
        except AmpError as error:
            fix = f"The gradients of replica {work.replica} in step {work.number} were dropped, and nothing else."
            dropped.append(type(error)(error.where, error.expected, error.got, fix))
            return []
        self.version += 1
        return [self.version - 1 - work.version]

    def _apply(self, work: InFlight) -> None:
        """Pushes gradients and makes the update."""
        if self.check_finite:
            require_finite(work.number, lambda: work.result.loss, np.asarray(work.result.finite), work.result.grads)
        machine = self.resources.homes[work.replica]
        waiting = {}
        for path, rows in work.pulled.items():
            grads = np.asarray(work.result.rows[path])[: len(rows.unique.ids)]
            served = self._served(path)
            waiting[path] = [naming_variable(path, lambda s=served, rows=rows, g=grads: s.push_from(machine, rows, g))]
        grads = self._dense.push_from(machine, jax.tree.map(np.asarray, work.result.grads))
        self._dense.tell(self.version - work.version)
        self.homes.update(grads, waiting)

    @property
    def _dense(self) -> DenseAtServers:
        assert isinstance(self.homes.dense, DenseAtServers)
        return self.homes.dense

    def _served(self, path: str) -> RowsAtServers:
        home = self.homes.rows[path]
        assert isinstance(home, RowsAtServers)
        return home
