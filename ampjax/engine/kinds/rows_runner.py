"""Runs `rows` stages: row-wise nodes, fused."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from ampjax.engine.kernels import rows
from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.kernel import Kernel
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.kernels.residuals import find_residuals
from ampjax.engine.kernels.stage_program import make_program
from ampjax.engine.kernels.weight_gradients import GradientConsumer
from ampjax.engine.kinds.recorded_activations import RecordedActivations
from ampjax.engine.kinds.stage_arrays import StageArrays
from ampjax.engine.kinds.stage_runner import Params, StageRunner, needs_backward
from ampjax.engine.memory.arenas import Arenas
from ampjax.plan.stages import Stage
from ampjax.sched.decisions.dispatch import FORWARD


class RowsRunner(StageRunner):
    """Carries out the launches of one `rows` stage.

    Args:
      stage: The stage.
      arenas: Where payloads lie.
    """

    def __init__(self, stage: Stage, arenas: Arenas):
        self.stage = stage
        self._program = make_program(stage)
        on_cpu = arenas.devices[stage.space].platform == "cpu"
        self._arrays = StageArrays(stage, arenas, self._program.random, loops=on_cpu)
        self._records = RecordedActivations(stage, arenas, partial(find_residuals, self._program))
        self._infer = rows.forward(self._program, self._arrays.wiring)
        self._train: Kernel | None = None  # made when the parameters' shapes are known
        self._adjoints: dict[
            GradientConsumer, Kernel
        ] = {}  # a look-up by program takes as long as a message
        self.can_update_at_once = self._needs_backward = needs_backward(stage)

    def forward(self, launches: Coalesced, params: Params) -> None:
        """Computes output rows; in training also records the activations that the adjoint needs."""
        if not launches[0].n_rows:
            return
        arrays = self._arrays
        records = self._records
        values, grads, read = arrays.outputs()
        if launches[0].direction == FORWARD:
            kernel = self._train or self._make_train(params)
            donated = values, grads, records.grow()
            values, grads, records.arrays = arrays.call(
                kernel,
                params,
                donated,
                read,
                launches,
            )
        else:
            values = arrays.call(self._infer, params, values, read, launches)
        arrays.put_outputs(values, grads)

    def backward(
        self,
        launches: Coalesced,
        params: Params,
        consumer: GradientConsumer,
        states: Any,
        scalars: np.ndarray | None,
    ) -> Any:
        """Computes the gradients of inputs and weights."""
        if not self._needs_backward or not launches[0].n_rows:
            return states
        arrays = self._arrays
        kernel = self._adjoints.get(consumer) or self._make_adjoint(params, consumer)
        values, grads = arrays.everything()
        read = values, self._records.grow()
        grads, states = arrays.call(
            kernel,
            params,
            (grads, states),
            read,
            launches,
            scalars,
        )
        arrays.put_gradients(grads)
        return states

    def can_coalesce(self, before: Launch, launch: Launch) -> bool:
        """Whether one call can carry out a launch and the launch before, which is of the same stage and direction."""
        return self._arrays.can_coalesce(before, launch)

    def read(self, launch: Launch) -> Any:
        """The rows by which a `route_by` decides: the rows of its second port, or of its only port."""
        return self._arrays.read(launch, len(self.stage.ports) - 1)

    @property
    def n_recorded_bytes(self) -> int:
        """Bytes of the activations that the forward pass has recorded for the adjoint."""
        return self._records.n_bytes

    def record_row_bytes(self, params: Params) -> int:
        """Bytes of the records beside a row of the first output."""
        return self._records.row_bytes(params)

    def _make_train(self, params: Params) -> Kernel:
        self._train = rows.forward_train(
            self._program, self._arrays.wiring, self._records.residuals(params)
        )
        return self._train

    def _make_adjoint(self, params: Params, consumer: GradientConsumer) -> Kernel:
        residuals = self._records.residuals(params)
        kernel = self._adjoints[consumer] = rows.backward(
            self._program, self._arrays.wiring, residuals, consumer
        )
        return kernel
