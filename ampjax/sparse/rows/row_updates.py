"""Updates of selected rows: reductions of their gradients, and new rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.sparse.rows.aligned_arrays import aligned_empty
from ampjax.sparse.rows.partition import Selection
from ampjax.sparse.rows.row_kernels import RowKernels, padded_size


@dataclass(frozen=True)
class RowJob:
    """One kernel call's share of an update.

    Args:
      rows: The rows.
      grads: Their gradients, in parts, in the rows' order.
    """

    rows: Selection
    grads: tuple[np.ndarray, ...]

    def padded_grads(self, kernels: RowKernels, size: int) -> np.ndarray:
        """Appends zeros to gradients.

        Args:
          kernels: The optimizer's compiled functions.
          size: At least the number of rows.

        Returns:
          `[size, *row]` in the table's dtype.
        """
        result = aligned_empty(
            (size, *kernels.types.shape),
            kernels.types.dtype,
        )
        if self.grads:
            np.concatenate(
                self.grads,
                out=result[: len(self.rows)],
                casting="unsafe",
            )
        result[len(self.rows) :] = 0
        return result

    @property
    def nbytes(self) -> int:
        """The gradients' bytes."""
        return sum(grads.nbytes for grads in self.grads)


def reduce_rows(
    kernels: RowKernels,
    job: RowJob,
    turn: int,
    shared: Sequence[Any],
    n_untouched: np.ndarray,
    parameters: np.ndarray,
) -> list[np.ndarray]:
    """One round's reductions over a job's rows, and over rows that were not touched, whose gradient is zero.

    Args:
      kernels: The optimizer's compiled functions.
      job: The rows.
      turn: The round.
      shared: Shared values for the round.
      n_untouched: By parameter of the table, how many of its rows were not touched.
      parameters: By row of the job its parameter.

    Returns:
      The reductions, in the order of the rule's, each with a leading axis of parameters.
    """
    n = len(job.rows)
    n_parameters = len(n_untouched)
    weights = np.zeros(padded_size(n + n_parameters), np.int32)
    weights[:n] = 1
    weights[n : n + n_parameters] = n_untouched
    grads = job.padded_grads(kernels, len(weights))
    if n_parameters == 1:
        return kernels.partials(turn, shared, grads, weights)
    of_rows = np.zeros(len(weights), np.int32)
    of_rows[:n] = parameters
    of_rows[n : n + n_parameters] = np.arange(n_parameters)
    return kernels.partials(turn, shared, grads, weights, of_rows)


def compute_rows(
    kernels: RowKernels,
    job: RowJob,
    shared: Sequence[Any],
) -> list[np.ndarray]:
    """Computes new parameters and states of a job's rows; changes nothing.

    Args:
      kernels: The optimizer's compiled functions.
      job: At least one row.
      shared: The update's shared values.

    Returns:
      Parameters, then states, padded, for `Selection.write`.
    """
    size = padded_size(len(job.rows))
    rows, *state = job.rows.take(size)
    return kernels.update(shared, rows, state, job.padded_grads(kernels, size))
