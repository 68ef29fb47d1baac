"""The activations that a stage's forward pass records for its adjoint: arrays of rows, in the slots of the first output's arena."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.engine.kernels.residuals import Residuals, RowTypes, shapes_of
from ampjax.engine.kinds.stage_runner import needs_backward
from ampjax.engine.memory.arenas import Arenas, grow, zeros
from ampjax.plan.stages import Stage


class RecordedActivations:
    """The recorded activations of one stage.

    Args:
      stage: The stage.
      arenas: Where payloads lie.
      find: `find(rows, shapes)`: which activations to record, from shape and dtype name of a row of each port and the parameters'
        `residuals.shapes_of`.

    Attributes:
      arrays: What is recorded; kernels replace these arrays.
    """

    def __init__(
        self,
        stage: Stage,
        arenas: Arenas,
        find: Callable[[RowTypes, Any], Residuals],
    ):
        self._stage = stage
        self._arenas = arenas
        self._find = find
        self._residuals: Residuals | None = None
        self._capacity = 0
        self.arrays: tuple[jax.Array, ...] = ()

    def residuals(self, params: tuple[Any, ...]) -> Residuals:
        """The activations that are recorded: determined once, by tracing the stage's bodies."""
        if self._residuals is None:
            rows = tuple((port.type.shape, port.type.dtype.name) for port in self._stage.ports)
            if needs_backward(self._stage):
                self._residuals = self._find(rows, shapes_of(params))
            else:
                self._residuals = Residuals()
        return self._residuals

    def grow(self) -> tuple[jax.Array, ...]:
        """The arrays, as long as the arena of the first output; `residuals` must have been asked for."""
        key = self._stage.arenas[0]
        capacity = self._arenas.capacity[key]
        if self._capacity < capacity:
            assert self._residuals is not None
            # As long as the output's arena, whose slots it shares; what was recorded stays.
            device = self._arenas.devices[key[0]]
            old = self.arrays or tuple(
                zeros((0, *shape), dtype, device) for shape, dtype in self._residuals.rows
            )
            self.arrays = tuple(grow(array, capacity) for array in old)
            self._capacity = capacity
        return self.arrays

    @property
    def n_bytes(self) -> int:
        """Bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays)

    def row_bytes(self, params: tuple[Any, ...]) -> int:
        """Bytes of one row of each array."""
        return sum(
            int(np.prod(shape)) * jnp.dtype(dtype).itemsize
            for shape, dtype in self.residuals(params).rows
        )
