"""Runs `loss` stages: a loss with the row-wise nodes before the loss. The forward dispatch computes gradients, too."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampjax.engine.kernels import loss_kernels
from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.kernel import Kernel
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.kernels.stage_program import make_program
from ampjax.engine.kernels.weight_gradients import GradientConsumer
from ampjax.engine.kinds.stage_arrays import StageArrays
from ampjax.engine.kinds.stage_runner import Params, StageRunner
from ampjax.engine.memory.arenas import Arenas
from ampjax.engine.memory.loss_metrics import LossMetrics
from ampjax.plan.stages import Stage


class LossRunner(StageRunner):
    """Carries out the launches of one `loss` stage.

    Args:
      stage: The stage.
      arenas: Where payloads lie.
      losses: Where losses and metrics are summed.
    """

    can_update_at_once = True

    def __init__(self, stage: Stage, arenas: Arenas, losses: LossMetrics):
        self.stage = stage
        self._program = make_program(stage)
        self._losses = losses
        on_cpu = arenas.devices[stage.space].platform == "cpu"
        self._arrays = StageArrays(stage, arenas, self._program.random, loops=on_cpu)
        self._infer = loss_kernels.infer(self._program, self._arrays.wiring)
        self._adjoints: dict[
            GradientConsumer, Kernel
        ] = {}  # to find one by its program costs as much as a message

    def forward(self, launches: Coalesced, params: Params) -> None:
        """Adds the loss to the sums of inference."""
        number = self.stage.number
        losses = self._losses
        arrays = self._arrays
        sums = losses.of(number, False)
        if launches[0].n_rows:
            values, _ = arrays.everything()
            sums = arrays.call(self._infer, params, sums, values, launches)
        losses.sums[number, False] = sums

    def backward(
        self,
        launches: Coalesced,
        params: Params,
        consumer: GradientConsumer,
        states: Any,
        scalars: np.ndarray | None,
    ) -> Any:
        """Adds the loss to the sums of training, and computes the gradients of inputs and weights."""
        number = self.stage.number
        losses = self._losses
        arrays = self._arrays
        sums = losses.of(number, True)
        if launches[0].n_rows:
            kernel = self._adjoints.get(consumer) or self._make_adjoint(consumer)
            values, grads = arrays.everything()
            grads, states, sums = arrays.call(
                kernel, params, (grads, states, sums), values, launches, scalars
            )
            arrays.put_gradients(grads)
        losses.sums[number, True] = sums
        return states

    def can_coalesce(self, before: Launch, launch: Launch) -> bool:
        """Whether one call can carry out a launch and the launch before, which is of the same stage and direction."""
        return self._arrays.can_coalesce(before, launch)

    def _make_adjoint(self, consumer: GradientConsumer) -> Kernel:
        kernel = self._adjoints[consumer] = loss_kernels.train(
            self._program, self._arrays.wiring, consumer
        )
        return kernel
