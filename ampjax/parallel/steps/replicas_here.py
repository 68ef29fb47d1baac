"""Replicas of asynchronous steps that are devices of this process; JAX runs their programs at the same time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ampjax.cluster.hosts.resources import Resources
from ampjax.parallel.homes.all_homes import VariableHomes, naming_variable
from ampjax.parallel.homes.column_reads import Readings
from ampjax.parallel.homes.dense_homes import DenseAtServers
from ampjax.parallel.homes.row_homes import PulledRows, RowsAtServers
from ampjax.parallel.steps import batch_rows
from ampjax.parallel.steps.step_outcome import require_finite
from ampjax.parallel.steps.step_programs import GradientResult, gradients
from ampjax.sparse.rewrite.pulled_step import SparseProgram

Tree = Any


@dataclass(frozen=True)
class ShareHere:
    """A replica's computation in this process (a `Share`).

    Args:
      replica: Its number.
      alpha: By table the share of its rows that it touches.
      pulled: The rows that it has.
      result: What it computes.
    """

    replica: int
    alpha: Mapping[str, float]
    pulled: dict[str, PulledRows]
    result: GradientResult

    @property
    def loss(self) -> Any:
        """A scalar on the replica's device."""
        return self.result.loss

    @property
    def aux(self) -> Tree:
        """The second result, likewise."""
        return self.result.aux


@dataclass
class ReplicasHere:
    """The replicas.

    Args:
      loss: The rewritten loss.
      has_aux: Whether it gives a pair.
      homes: Where variables live.
      readings: Which part of rows has to travel.
      resources: The machines.
      check_finite: Whether gradients that are not finite are dropped.
    """

    loss: SparseProgram
    has_aux: bool
    homes: VariableHomes
    readings: Readings
    resources: Resources
    check_finite: bool
    _sizes: batch_rows.PaddedSizes = field(default_factory=batch_rows.PaddedSizes)

    @cached_property
    def _gradients(self) -> Any:
        return jax.jit(gradients(self.loss, self.has_aux))

    @cached_property
    def _ids(self) -> Any:
        shapes = self.loss.split(self.loss.params)[0]
        return jax.jit(lambda batch: self.loss.ids(shapes, batch))

    def begin(self, replica: int, part: Tree) -> ShareHere:
        """Pulls for a replica, and begins to compute.

        Returns:
          What it computes.
        """
        device = self.resources.devices[replica]
        machine = self.resources.homes[replica]
        batch = jax.device_put(batch_rows.copy_part(part), device)
        workers = batch_rows.rows_of_replicas(self.loss, [self._ids(batch)])
        readings = self.readings.for_batch(part)
        pulled = {}
        for path, (unique,) in workers.items():
            pulled[path] = PulledRows(
                unique,
                self._find_served_home(path).pull_for(machine, unique.ids, readings[path]),
                readings[path],
            )
        (inputs,) = batch_rows.inputs(
            1,
            self.loss,
            {path: [rows] for path, rows in pulled.items()},
            self._sizes,
        )
        dense = jax.device_put(self._dense.pull_for(machine), device)
        result = self._gradients(
            dense,
            *jax.device_put((inputs.rows, inputs.inverse), device),
            batch,
        )
        return ShareHere(replica, batch_rows.alphas(self.loss, workers), pulled, result)

    def apply(self, number: int, share: ShareHere, staleness: int) -> None:
        """Pushes gradients and makes the update.

        Args:
          number: The number of the step in which the replica began.
          share: What it has computed.
          staleness: Updates since then.

        Raises:
          ParameterError: If a dense gradient is not finite.
          TableError: If a row's gradient is not.
        """
        if self.check_finite:
            require_finite(
                number,
                lambda: share.result.loss,
                np.asarray(share.result.finite),
                share.result.grads,
            )
        machine = self.resources.homes[share.replica]
        waiting = {}
        for path, rows in share.pulled.items():
            grads = np.asarray(share.result.rows[path])[: len(rows.unique.ids)]
            served = self._find_served_home(path)
            waiting[path] = [
                naming_variable(
                    path,
                    lambda s=served, rows=rows, g=grads: s.push_from(machine, rows, g),
                )
            ]
        grads = self._dense.push_from(
            machine,
            jax.tree.map(np.asarray, share.result.grads),
        )
        self._dense.tell(staleness)
        self.homes.update(grads, waiting)

    def rest(self, share: ShareHere) -> None:
        """Returns at once: the replica has pulled all its rows.

        Args:
          share: Not used.
        """
        del share

    def forget(self) -> None:
        """Nothing is kept here."""

    @property
    def _dense(self) -> DenseAtServers:
        assert isinstance(self.homes.dense, DenseAtServers)
        return self.homes.dense

    def _find_served_home(self, path: str) -> RowsAtServers:
        home = self.homes.rows[path]
        assert isinstance(home, RowsAtServers)
        return home
