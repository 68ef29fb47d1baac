"""Runs `sink` stages: the rows go to the user unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.kernels.weight_gradients import GradientConsumer
from ampjax.engine.kinds.stage_arrays import StageArrays
from ampjax.engine.kinds.stage_runner import Params, StageRunner
from ampjax.engine.memory.arenas import Arenas
from ampjax.plan.stages import Stage


class SinkRunner(StageRunner):
    """Carries out the launches of one `sink` stage: there is nothing to compute.

    Args:
      stage: The stage.
      arenas: Where payloads lie.
    """

    def __init__(self, stage: Stage, arenas: Arenas):
        self.stage = stage
        self._arrays = StageArrays(stage, arenas)

    def forward(self, launches: Coalesced, params: Params) -> None:
        """Does nothing."""

    def backward(
        self,
        launches: Coalesced,
        params: Params,
        consumer: GradientConsumer,
        states: Any,
        scalars: np.ndarray | None,
    ) -> Any:
        """Does nothing: sinks return no gradients."""
        return states

    def read(self, launch: Launch) -> Any:
        """The rows that arrive."""
        return self._arrays.read(launch, 0)
