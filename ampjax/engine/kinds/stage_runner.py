"""The protocol of runners: the executor's calls for a stage of any kind."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Protocol

import numpy as np

from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.edge_sizes import EdgeSizes
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.kernels.weight_gradients import GradientConsumer
from ampjax.plan.stages import HOST, Stage

Params = tuple[Any, ...]
"""The parameters of a stage: a pytree for each of its parameterised nodes, in the order of `Stage.params`."""


class StageRunner(Protocol):
    """Carries out the launches of one stage. A runner must define `forward` and `backward`, and may override the other methods.

    Most runners keep a `StageArrays` (`stage_arrays.py`). Its `call` calls a `@kernel` for launches, with the rows of host ports. It gives the stage's
    arenas (`outputs`, `everything`) and a launch's padded slots (`lines`), and takes back the arenas that a kernel has changed (`put_outputs`,
    `put_gradients`).

    Attributes:
      stage: The stage.
      can_update_at_once: Whether `backward` takes any consumer of weight gradients, not only one that accumulates them.
    """

    stage: Stage
    can_update_at_once: bool = False

    @abstractmethod
    def forward(self, launches: Coalesced, params: Params) -> None:
        """Computes the outputs of launches of direction `forward` or `infer`; a launch may have no rows.

        Args:
          launches: One, or several that `can_coalesce`.
          params: The stage's parameters.
        """

    @abstractmethod
    def backward(
        self,
        launches: Coalesced,
        params: Params,
        consumer: GradientConsumer,
        states: Any,
        scalars: np.ndarray | None,
    ) -> Any:
        """Computes the gradients of launches of direction `backward`; a loss does so for direction `forward`, too.

        Gradients of inputs go to the inputs' adjoint rows, those of weights to the consumer.

        Args:
          launches: One, or several that `can_coalesce`.
          params: The stage's parameters. They are donated if the consumer changes them.
          consumer: Takes the weight gradients.
          states: The consumer's state for each parameterised node, such as an accumulator. Donated.
          scalars: If the consumer makes updates, the numbers that these need for each node, float32 `[nodes, 2]`; else None.

        Returns:
          The consumer's new states.
        """

    def can_coalesce(self, before: Launch, launch: Launch) -> bool:
        """Whether one call can carry out a launch and the launch before, which is of the same stage and direction."""
        del before, launch
        return False

    def read(self, launch: Launch) -> Any:
        """The rows that a `sink` or a `route_by` hands to the host, `[r, *shape]` (padded: take the first `n_rows`)."""
        del launch

    def expect_edges(self, sizes: EdgeSizes) -> None:
        """Tells an `edges` stage, before its first launch, the number of edges for which to have room."""
        del sizes

    @property
    def n_recorded_bytes(self) -> int:
        """Bytes of the activations that the forward pass has recorded for the adjoint."""
        return 0

    def record_row_bytes(self, params: Params) -> int:
        """Bytes of the records beside a row of the first output."""
        del params
        return 0


def needs_backward(stage: Stage) -> bool:
    """Whether the backward pass of a stage has anything to compute: the stage gets gradients, and parameters or an input need some."""
    comes_in = any(out.is_float for out in stage.outputs)
    takes_one = any(port.type.is_float for port in stage.ports if port.space != HOST)
    return comes_in and (bool(stage.params) or takes_one)
