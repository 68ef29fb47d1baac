"""The program of a worker, sent once, from the user's own program, when processes are started; nothing on the wire is pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import optax

from ampjax.optim.split_by_rows import split_rows
from ampjax.optim.split_transform import Split
from ampjax.parallel.steps.step_programs import GradientReduction, LossFn
from ampjax.sparse.detection.loss_jaxpr import MappedAxes
from ampjax.sparse.rewrite.pulled_step import SparseProgram, rewrite

Tree = Any


@dataclass(frozen=True)
class WorkerProgram:
    """A replica's share of training, as plain data and the user's functions.

    Args:
      loss_fn: The single-device loss function.
      tx: The optimizer.
      params: The parameters' shapes and dtypes.
      batch: Those of a replica's part of the first batch.
      axes: By variable that is kept by rows, the axes along which they are counted.
      members: By table the variables whose rows it holds.
      mapped: Names and sizes of the axes over which the loss is mapped.
      has_aux: Whether the loss function gives `(loss, aux)`.
      reduction: What becomes of the replicas' gradients.
      check_finite: Whether gradients that are not finite stop a step.
      is_sync: Whether replicas step together.
      jax_settings: JAX's settings in the user's program, by name.
    """

    loss_fn: LossFn
    tx: optax.GradientTransformation
    params: Tree
    batch: Tree
    axes: Mapping[str, tuple[int, ...]]
    members: Mapping[str, tuple[str, ...]]
    mapped: MappedAxes
    has_aux: bool
    reduction: GradientReduction
    check_finite: bool
    is_sync: bool
    jax_settings: Mapping[str, Any]

    def loss(self) -> SparseProgram:
        """The loss on pulled rows: the one that the runner has."""
        return rewrite(
            self.loss_fn,
            self.params,
            self.batch,
            self.axes,
            self.mapped,
            self.members,
        )

    def split(self, loss: SparseProgram) -> Split:
        """Splits the optimizer in two, exactly as the runner does.

        Args:
          loss: The loss on pulled rows.
        """
        alike = {}
        for table, paths in self.members.items():
            for path in paths:
                alike[path] = table
        return split_rows(
            self.tx,
            loss.as_tables(self.params),
            tuple(loss.axes),
            loss.transposed,
            alike,
            self.check_finite,
        )

    def shapes(
        self,
        loss: SparseProgram,
        split: Split,
    ) -> tuple[Tree, Tree]:
        """Shapes and dtypes of dense parameters and of the shared optimizer state."""
        params, _ = loss.split(self.params)
        return params, jax.eval_shape(split.init, params)
