"""Runs `edges` stages: a distribute, the nodes on its edges, their collect, and row-wise nodes behind the collect."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ampjax.engine.kernels import edge_kernels
from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.edge_sizes import EdgeSizes, PaddedEdges, Sizes, fit_edges
from ampjax.engine.kernels.kernel import Kernel
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.kernels.residuals import find_chain_residuals
from ampjax.engine.kernels.stage_program import make_chain_program
from ampjax.engine.kernels.weight_gradients import Accumulating, GradientConsumer
from ampjax.engine.kinds.recorded_activations import RecordedActivations
from ampjax.engine.kinds.stage_arrays import StageArrays, pad_slots
from ampjax.engine.kinds.stage_runner import Params, StageRunner, needs_backward
from ampjax.engine.memory.arenas import Arenas
from ampjax.plan.stages import Stage
from ampjax.sched.decisions.dispatch import FORWARD, INFER
from ampjax.unfold.rules.edges import REMEMBERED_DISPATCHES


class EdgesRunner(StageRunner):
    """Carries out the launches of one `edges` stage, each in a call of its own. Weight gradients are always accumulated.

    Args:
      stage: The stage.
      arenas: Where payloads lie.
    """

    def __init__(self, stage: Stage, arenas: Arenas):
        self.stage = stage
        self._program = make_chain_program(stage)
        self._draws = self._program.random
        self._needs_backward = needs_backward(stage)
        self._arrays = StageArrays(stage, arenas)
        self._records = RecordedActivations(
            stage, arenas, functools.partial(find_chain_residuals, self._program)
        )
        self._infer = edge_kernels.forward(self._program, self._arrays.wiring)
        self._train: Kernel | None = (
            None  # made when the parameters' shapes are known, as are the next
        )
        self._adjoints: dict[Accumulating, Kernel] = {}
        self._edge_sizes: EdgeSizes | None = None
        # Instances that travel together come often.
        self._fitted = functools.lru_cache(REMEMBERED_DISPATCHES)(fit_edges)

    def forward(self, launches: Coalesced, params: Params) -> None:
        """Computes output rows; in training also records the activations that the adjoint needs."""
        (launch,) = launches
        if _is_empty(launch):
            return
        arrays = self._arrays
        records = self._records
        values, grads, read = arrays.outputs()
        if launch.direction == FORWARD:
            kernel = self._train or self._make_train(params)
            donated = values, grads, records.grow()
            values, grads, records.arrays = self._call(
                kernel,
                params,
                donated,
                read,
                launch,
            )
        else:
            values = self._call(self._infer, params, values, read, launch)
        arrays.put_outputs(values, grads)

    def backward(
        self,
        launches: Coalesced,
        params: Params,
        consumer: GradientConsumer,
        states: Any,
        scalars: np.ndarray | None,
    ) -> Any:
        """Computes the gradients of inputs and weights, and accumulates the latter."""
        (launch,) = launches
        if not self._needs_backward or _is_empty(launch):
            return states
        assert isinstance(consumer, Accumulating)
        kernel = self._adjoints.get(consumer) or self._make_adjoint(params, consumer)
        values, grads = self._arrays.everything()
        read = values, self._records.grow()
        grads, states = self._call(
            kernel,
            params,
            (grads, states),
            read,
            launch,
        )
        self._arrays.put_gradients(grads)
        return states

    def expect_edges(self, sizes: EdgeSizes) -> None:
        """Tells for how many edges to leave room beside so many rows; without, the first launch tells."""
        self._edge_sizes = sizes

    @property
    def n_recorded_bytes(self) -> int:
        """Bytes of the activations that the forward pass has recorded for the adjoint."""
        return self._records.n_bytes

    def record_row_bytes(self, params: Params) -> int:
        """Bytes of the records beside a row of the first output."""
        return self._records.row_bytes(params)

    def _call(
        self,
        kernel: Kernel,
        params: Params,
        donated: Any,
        read: Any,
        launch: Launch,
    ) -> Any:
        """Calls a kernel for a launch; returns `donated`, changed."""
        # Rows and edges are padded together: the step of the ladder must have room for both.
        k, sizes, edges = self._fit(launch)
        host, pack = self._arrays.rows([launch], k, 1)
        if self._draws and launch.direction != INFER:
            seeds = self._seeds(launch, k, sizes)
        else:
            seeds = None
        return kernel.once(
            params,
            donated,
            read,
            (
                tuple([r[0] for r in host]),
                pack[0],
                seeds,
                None,
                edges,
            ),
            sizes,
        )

    def _fit(self, launch: Launch) -> tuple[int, Sizes, PaddedEdges]:
        """The padded rows of a launch, its padded sizes, and its edges."""
        edges = launch.edges
        assert edges is not None
        if self._edge_sizes is None:
            assert launch.sizes is not None
            self._edge_sizes = EdgeSizes.of([(launch.sizes, edges.loads(launch.sizes))])
        rows = max(launch.n_rows, len(launch.out_rows[0]))
        return self._fitted(self._edge_sizes, self._arrays.size_for, rows, edges)

    def _seeds(
        self, launch: Launch, k: int, sizes: Sizes
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """The random numbers of rows, and of the rows sent over each type of edges: a number for each edge, where its bodies are random, else none."""
        assert launch.edges is not None
        rows, *edges = launch.seeds
        if (
            not launch.edges.random
        ):  # nobody reads them, and what is sent may be less than the edges
            edges = [np.zeros(0, np.uint32)] * len(edges)
        return pad_slots(rows, k, True), tuple(
            pad_slots(of_type, n, True) for of_type, n in zip(edges, sizes[:-1], strict=True)
        )

    def _make_train(self, params: Params) -> Kernel:
        self._train = edge_kernels.forward_train(
            self._program, self._arrays.wiring, self._records.residuals(params)
        )
        return self._train

    def _make_adjoint(self, params: Params, consumer: Accumulating) -> Kernel:
        residuals = self._records.residuals(params)
        kernel = edge_kernels.backward(self._program, self._arrays.wiring, residuals, consumer)
        self._adjoints[consumer] = kernel
        return kernel


def _is_empty(launch: Launch) -> bool:
    """Whether a launch has no rows at all: no input rows and, if the stage collects, no output rows."""
    return not launch.n_rows and (launch.edges is None or not launch.edges.n_rows.any())
