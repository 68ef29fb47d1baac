"""Synchronous steps: of a model without tables, one program; of a model with tables, pull, compute, push, update.

Each step object takes the replicas' parts of a batch and changes the model, or raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from ampjax.devices.allreduce import issue_collective
from ampjax.devices.per_replica import (
    Device,
    replica_entry,
    replicate,
    shapes_of,
    shard_of,
    spread_inputs,
)
from ampjax.errors import AmpError
from ampjax.parallel.config.leaf_paths import by_path
from ampjax.parallel.homes.all_homes import VariableHomes
from ampjax.parallel.homes.assigned_rows import AssignedRows
from ampjax.parallel.homes.column_reads import Readings
from ampjax.parallel.steps import batch_rows
from ampjax.parallel.steps.step_outcome import require_finite
from ampjax.parallel.steps.step_programs import (
    GradientReduction,
    GradientResult,
    LossFn,
    mapped_gradients,
    mapped_step,
)
from ampjax.sparse.rewrite.pulled_step import SparseProgram
from ampjax.sparse.table.sharded_table import Table

Tree = Any


class Dropped(NamedTuple):
    """Gradients of an asynchronous step that could not be applied.

    Args:
      error: Why not.
      part: The part of a batch that they are of.
    """

    error: AmpError
    part: Tree


class StepOutcome(NamedTuple):
    """The result of a step.

    Args:
      losses: The loss, or one for each replica that did not reduce it.
      aux: With a leading axis of replicas; None if there is none.
      alpha: By table the share of its rows that a replica touched.
      gradients: Gives the aggregated gradients by path; to be called before the next step.
      staleness: For each update of an asynchronous step, how old its parameters were.
      dropped: Gradients that an asynchronous step could not apply, its own or of earlier steps.
    """

    losses: Sequence[Any]
    aux: Tree
    alpha: dict[str, float]
    gradients: Callable[[], dict[str, Any]]
    staleness: Sequence[int] = ()
    dropped: Sequence[Dropped] = ()


@dataclass
class DenseStep:
    """Steps of a model without tables: forward, backward, AllReduce and update in one program.

    Args:
      loss_fn: The loss.
      has_aux: Whether it gives a pair.
      tx: An optax transform.
      devices: The replicas' devices.
      reduction: The reduction over replicas.
      check_finite: Whether each step waits to be told that its gradients are finite.
      params: The parameters, on every device.
      state: The optimizer's state, likewise.
      last_shapes: The shapes of the program's arguments; None before the first step.
      n_updates: Steps that have been issued.
    """

    loss_fn: LossFn
    has_aux: bool
    tx: optax.GradientTransformation
    devices: Sequence[Device]
    reduction: GradientReduction
    check_finite: bool
    params: Tree = None
    state: Tree = None
    last_shapes: Any = None
    n_updates: int = 0

    @cached_property
    def _programs(self) -> dict[bool, Any]:
        result = {}
        for keep in (False, True):
            result[keep] = mapped_step(
                self.loss_fn,
                self.has_aux,
                self.tx,
                self.devices,
                self.reduction,
                check_finite=self.check_finite,
                keep=keep,
            )
        return result

    def program(self, keep: bool = False) -> Any:
        """The mapped step."""
        return self._programs[keep]

    @property
    def tables(self) -> dict[str, list[Table]]:
        """No tables."""
        return {}

    def write(
        self,
        params: Tree,
        state: Tree,
        tables: Any = None,
    ) -> None:
        """Replaces parameters and optimizer state.

        Args:
          params: The parameters.
          state: The optimizer's state.
          tables: Not used: there are none.
        """
        del tables  # there are none
        self.params = replicate(params, self.devices)
        self.state = replicate(state, self.devices)

    def read(self) -> tuple[Tree, Tree]:
        """Parameters and optimizer state as host arrays of their own."""
        return replica_entry(self.params), replica_entry(self.state)

    def like(self) -> tuple[Tree, Tree]:
        """Trees like parameters and optimizer state."""
        return self.read()

    def wait(self) -> None:
        """Returns when the parameters have been computed."""
        jax.block_until_ready(self.params)

    def __call__(
        self,
        number: int,
        parts: Sequence[Tree],
        keep: bool,
    ) -> StepOutcome:
        """One step.

        Args:
          number: The step's, for messages.
          parts: By replica its batch.
          keep: Whether gradients will be asked for.

        Returns:
          The step's loss, aux and gradients.

        Raises:
          ParameterError: If a gradient is not finite; nothing has changed.
        """
        if not self.check_finite:  # nobody waits for it
            parts = [batch_rows.copy_part(part) for part in parts]
        arguments = (self.params, self.state, spread_inputs(parts, self.devices))
        self.last_shapes = self.last_shapes or shapes_of(arguments)
        self.params, self.state, result = issue_collective(
            self.program(keep),
            *arguments,
            token=lambda results: results[2].loss,
        )
        self.n_updates += 1
        if self.check_finite:
            require_finite(
                number,
                lambda: shard_of(result.loss, 0),
                shard_of(result.finite, 0),
                self.params,
            )
        return StepOutcome(
            [Replicated(result.loss)],
            result.aux,
            {},
            lambda: by_path(replica_entry(result.grads)),
        )


@dataclass(frozen=True)
class Replicated:
    """A scalar of which every replica has the same copy, read on demand."""

    value: jax.Array

    def __array__(
        self,
        dtype: Any = None,
        copy: Any = None,
    ) -> np.ndarray:
        del copy
        return np.asarray(shard_of(self.value, 0), dtype)


@dataclass
class HomedStep:
    """The common part of steps with some or all variables at servers.

    Args:
      loss: The rewritten loss.
      has_aux: Whether it gives a pair.
      homes: Where variables live.
      readings: Which part of rows has to travel.
    """

    loss: SparseProgram
    has_aux: bool
    homes: VariableHomes
    readings: Readings

    @property
    def n_updates(self) -> int:
        """Updates that have been made."""
        return self.homes.n_updates

    @property
    def tables(self) -> dict[str, list[Table]]:
        """By path a variable's table, or every machine's."""
        return self.homes.tables

    def write(self, params: Tree, state: Tree, tables: Any) -> None:
        """Replaces all variables and the optimizer's state.

        Args:
          params: Dense parameters, None in place of tables.
          state: The optimizer's shared state.
          tables: By path, the copies of its table.
        """
        self.homes.write(params, state, tables)

    def assign_rows(self, new: AssignedRows) -> None:
        """Gives some rows of a variable in a table new values and fresh optimizer state, when no gradient is under way.

        Args:
          new: The rows.
        """
        self.homes.assign_rows(new)

    def read(self) -> tuple[Tree, Tree]:
        """Dense parameters and shared optimizer state as host arrays of their own."""
        return self.homes.dense.read()

    def like(self) -> tuple[Tree, Tree]:
        """Trees like dense parameters and shared optimizer state."""
        return self.homes.dense.like()

    def wait(self) -> None:
        """Returns when the parameters have been computed."""
        self.homes.dense.wait()


@dataclass
class SparseStep(HomedStep):
    """Steps of a model with tables, or with all variables at servers.

    Args:
      devices: The replicas' devices.
      reduction: What becomes of the replicas' gradients.
      check_finite: Whether gradients that are not finite stop a step.
      last_shapes: The shapes of the program's arguments; None before the first step.
    """

    devices: Sequence[Device]
    reduction: GradientReduction
    check_finite: bool
    last_shapes: Any = None
    _sizes: batch_rows.PaddedSizes = field(default_factory=batch_rows.PaddedSizes)

    @cached_property
    def _program(self) -> Any:
        return mapped_gradients(self.loss, self.has_aux, self.devices, self.reduction)

    def program(self, keep: bool = False) -> Any:
        """The mapped forward and backward pass, which always gives gradients.

        Args:
          keep: Not used.
        """
        del keep
        return self._program

    @cached_property
    def _touched(self) -> batch_rows.RowFinder:
        return batch_rows.RowFinder(self.loss, self.devices[0])

    def arguments(
        self,
        parts: Sequence[Tree],
    ) -> tuple[tuple[Any, ...], Any, batch_rows.ReplicaRows]:
        """Pulls rows for a batch and makes the program's arguments.

        Args:
          parts: By replica its batch.

        Returns:
          The arguments; what was pulled, by table and replica; and by table the rows that each replica reads.
        """
        workers = self._touched(parts)
        pulled = batch_rows.pull(
            self.homes.rows,
            workers,
            self.readings.for_batch(parts[0], from_host=True),
        )
        operands = batch_rows.inputs(
            len(parts),
            self.loss,
            pulled,
            self._sizes,
        )
        if not self.reduction.gather:  # only an AllGatherv sends ids from device to device
            operands = [inputs_of._replace(ids={}) for inputs_of in operands]
        inputs = spread_inputs(
            [(*inputs_of, part) for inputs_of, part in zip(operands, parts, strict=True)],
            self.devices,
        )
        return (self.homes.dense.pull(), *inputs), pulled, workers

    def __call__(
        self,
        number: int,
        parts: Sequence[Tree],
        keep: bool,
    ) -> StepOutcome:
        """One step.

        Args:
          number: The step's, for messages.
          parts: By replica its batch.
          keep: Whether gradients will be asked for: they always can be.

        Returns:
          The step's losses, aux and gradients.

        Raises:
          ParameterError: If a dense gradient is not finite; nothing has changed.
          TableError: If a row's gradient is not; nothing has changed.
        """
        del keep
        arguments, pulled, workers = self.arguments(parts)
        self.last_shapes = self.last_shapes or shapes_of(arguments)
        result: GradientResult = issue_collective(
            self.program(), *arguments, token=lambda result: result.loss
        )
        alpha = batch_rows.alphas(self.loss, workers)  # while the devices compute
        if self.check_finite:
            finite = np.stack([shard_of(result.finite, replica) for replica in range(len(parts))])
            require_finite(
                number,
                lambda: _loss(result, self.reduction),
                finite,
                result.grads,
            )
        waiting = self.homes.push_rows(pulled, lambda path: _row_grads(result, path))
        grads = self.homes.dense.push(result.grads)
        self.homes.update(grads, waiting)
        if self.reduction.across:
            losses = [Replicated(result.loss)]
        else:
            losses = list(_loss(result, self.reduction))
        return StepOutcome(
            losses,
            result.aux,
            alpha,
            lambda: self.homes.gradients(grads, waiting),
        )


def _loss(result: GradientResult, reduction: GradientReduction) -> np.ndarray:
    """Reads the loss, or the replicas' losses where these were not reduced."""
    if reduction.across:
        return shard_of(result.loss, 0)
    return np.asarray(result.loss)


def _row_grads(
    result: GradientResult,
    path: str,
) -> Callable[[int], Any]:
    return lambda replica: jax.tree.map(
        lambda leaf: shard_of(leaf, replica),
        result.rows[path],
    )
