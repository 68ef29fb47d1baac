"""Runs `transfer` stages: copies of rows to another memory space, and of their gradients back."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ampjax.engine.kernels import copy_kernels
from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.kernels.weight_gradients import GradientConsumer
from ampjax.engine.kinds.stage_arrays import StageArrays, pad_slots
from ampjax.engine.kinds.stage_runner import Params, StageRunner, needs_backward
from ampjax.engine.memory.arenas import Arenas
from ampjax.plan.stages import HOST, Stage
from ampjax.sched.decisions.dispatch import BACKWARD


class TransferRunner(StageRunner):
    """Carries out the launches of one `transfer` stage.

    Args:
      stage: The stage.
      arenas: Where payloads lie.
    """

    def __init__(self, stage: Stage, arenas: Arenas):
        self.stage = stage
        self._arenas = arenas
        self._arrays = StageArrays(stage, arenas)
        self._source = stage.ports[0].arena
        self._target = stage.arenas[0]
        self._needs_backward = needs_backward(stage)
        keys = self._source, self._target
        self._get = copy_kernels.get_rows(keys)
        self._return = copy_kernels.return_gradients(keys, stage.sole[0])

    def forward(self, launches: Coalesced, params: Params) -> None:
        """Copies rows."""
        (launch,) = launches
        if launch.n_rows:
            self.put(launch, self.take(launch))

    def backward(
        self,
        launches: Coalesced,
        params: Params,
        consumer: GradientConsumer,
        states: Any,
        scalars: np.ndarray | None,
    ) -> Any:
        """Copies gradients back; there are no weights."""
        (launch,) = launches
        if self._needs_backward and launch.n_rows:
            self.put(launch, self.take(launch))
        return states

    # `take` and `put` are separate since the two spaces may belong to two hosts.

    def take(self, launch: Launch) -> Any:
        """Reads the rows at their source; for direction `backward`, the gradients.

        Args:
          launch: The launch; it has rows.

        Returns:
          `[k, *shape]`.
        """
        a = self._arenas
        source = self._source
        target = self._target
        slots, to = self._arrays.lines(launch)
        if launch.direction == BACKWARD:
            return self._get.once(a.grads[target], to)
        if source[0] == HOST:
            return a.host[source][slots]
        return self._get.once(a.values[source], slots)

    def put(self, launch: Launch, rows: Any) -> None:
        """Writes the rows at their destination; for direction `backward`, adds the gradients there.

        Args:
          launch: The launch.
          rows: The rows or gradients that `take` has read.
        """
        a = self._arenas
        source = self._source
        target = self._target
        slots, to = self._arrays.lines(launch)
        if launch.direction == BACKWARD:
            # Gradients are added, so padding must go to the trash slot, not to the first row.
            slots = pad_slots(launch.in_rows[0], len(slots), False)
            a.grads[source] = self._return.once(
                a.grads[source],
                slots,
                jax.device_put(rows, a.devices[source[0]]),
            )
            return
        if source[0] != HOST:
            rows = jax.device_put(rows, a.devices[target[0]])
        self._arrays.put_rows(to, rows)
