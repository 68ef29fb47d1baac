"""Runs `reduce` and `collect` stages: sums of segments of rows. They differ in where each input row belongs."""

from __future__ import annotations

from typing import Any

import numpy as np

from ampjax.engine.kernels import segment_kernels
from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.kernels.segment_kernels import SegmentCollection, SegmentReduction
from ampjax.engine.kernels.weight_gradients import GradientConsumer
from ampjax.engine.kinds.stage_arrays import StageArrays, pad_slots
from ampjax.engine.kinds.stage_runner import Params, StageRunner, needs_backward
from ampjax.engine.memory.arenas import Arenas
from ampjax.plan.ladders import segment_sizes
from ampjax.plan.stages import HOST, Stage


class SegmentsRunner(StageRunner):
    """Carries out the launches of one `reduce` or `collect` stage.

    Args:
      stage: The stage.
      arenas: Where payloads lie.
    """

    def __init__(self, stage: Stage, arenas: Arenas):
        self.stage = stage
        self._arenas = arenas
        self._needs_backward = needs_backward(stage)
        self._reduces = stage.kind.reduces
        self._arrays = StageArrays(stage, arenas)
        if self._reduces:
            function = SegmentReduction(stage.nodes[0].op.function)
        else:
            function = SegmentCollection()
        self._forward = segment_kernels.forward(function, self._arrays.wiring)
        self._backward = segment_kernels.backward(function, self._arrays.wiring)

    def forward(self, launches: Coalesced, params: Params) -> None:
        """Sums each segment."""
        (launch,) = launches
        values, grads, read = self._arrays.outputs()
        self._arrays.put_outputs(
            *self._forward.once(values, grads, read, self._per_dispatch(launch))
        )

    def backward(
        self,
        launches: Coalesced,
        params: Params,
        consumer: GradientConsumer,
        states: Any,
        scalars: np.ndarray | None,
    ) -> Any:
        """Computes the gradients of inputs; there are no weights."""
        (launch,) = launches
        if self._needs_backward:
            values, grads = self._arrays.everything()
            n = np.int32(len(launch.out_rows[0]))
            self._arrays.put_gradients(
                self._backward.once(grads, values, self._per_dispatch(launch), n)
            )
        return states

    def _per_dispatch(self, launch: Launch) -> tuple[Any, ...]:
        """The arrays of a launch, as `segment_kernels.SegmentRows`."""
        out = launch.out_rows[0]
        r, m = segment_sizes(
            max(map(len, launch.in_rows)),
            len(out),
        )
        slots = []
        ids = []
        host = []
        for i, port in enumerate(self.stage.ports):
            rows = launch.in_rows[i]
            assert launch.sizes is not None
            # Where each row belongs: to its message, or where the topology says.
            if self._reduces:
                places = np.repeat(
                    np.arange(len(launch.sizes)),
                    launch.sizes,
                )
            else:
                places = launch.scatter[i]
            # Padding reads the first row, and belongs to a segment out of range.
            slots.append(pad_slots(rows, r, True))
            ids.append(
                np.concatenate(
                    [
                        places,
                        np.full(
                            r - len(rows),
                            m,
                        ),
                    ]
                ).astype(np.int32)
            )
            if port.space == HOST:
                host.append(self._arenas.host[port.arena][slots[-1]])
        return tuple(host), tuple(slots), tuple(ids), pad_slots(out, m, False)
