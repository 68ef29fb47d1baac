"""The protocol of executors, which drivers and trainers use: `engine.executor.Executor` in this process, `hosts.HostedExecutor` if hosts carry launches out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from ampjax.engine.kernels.coalescing import Coalesced
from ampjax.engine.kernels.edge_sizes import EdgeSizes
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.memory.loss_metrics import LossSums
from ampjax.engine.timing.measured import RemoteTiming
from ampjax.ir.host_tables import HostTable
from ampjax.plan.planner import Plan
from ampjax.plan.stages import ArenaKey
from ampjax.sched.decisions.decided_lines import Capacities, DecidedLines
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.decisions.parameter_changes import Change
from ampjax.sched.programs.feeds import Feed

Trees = Mapping[str, Any]
"""A pytree of arrays for each node, by name."""


class AnyTable(Protocol):
    """A table in host memory, and the gradients that wait for its update (`engine.memory.table_gradients.TableGradients`)."""

    @property
    def table(self) -> HostTable:
        """As `TableGradients.table`, with the rows of now."""
        ...

    @property
    def n_new(self) -> int:
        """As `TableGradients.n_new`."""
        ...

    def join_all(self) -> tuple[np.ndarray, np.ndarray]:
        """As `TableGradients.join_all`."""
        ...

    def dense(self) -> np.ndarray:
        """As `TableGradients.dense`."""
        ...

    def restore(
        self,
        ids: np.ndarray,
        rows: np.ndarray,
        n_new: int,
    ) -> None:
        """As `TableGradients.restore`; `table` is then the one to go on with."""
        ...


class AnyStore(Protocol):
    """Parameters, optimizer states and accumulated gradients (`engine.parameters.ParameterStore`)."""

    @property
    def params(self) -> Trees:
        """As `ParameterStore.params`."""
        ...

    @property
    def opt_state(self) -> Trees:
        """As `ParameterStore.opt_state`."""
        ...

    @property
    def accumulators(self) -> Trees:
        """As `ParameterStore.accumulators`."""
        ...

    @property
    def tables(self) -> Mapping[str, AnyTable]:
        """As `ParameterStore.tables`."""
        ...

    @property
    def all_params(self) -> Trees:
        """As `ParameterStore.all_params`."""
        ...

    @property
    def not_finite(self) -> list[str]:
        """As `ParameterStore.not_finite`."""
        ...

    def set_params(self, node: str, params: Any) -> None:
        """As `ParameterStore.set_params`."""
        ...

    def restore(self, params: Trees, opt_state: Trees, accumulators: Trees) -> None:
        """As `ParameterStore.restore`."""
        ...

    def forget(self) -> None:
        """As `ParameterStore.forget`."""
        ...

    def warm_update(self, node: str) -> None:
        """As `ParameterStore.warm_update`."""
        ...

    def warm_group(self, name: str) -> None:
        """As `ParameterStore.warm_group`."""
        ...

    def warm_average(self, nodes: Sequence[str]) -> None:
        """As `ParameterStore.warm_average`."""
        ...


class AnyLosses(Protocol):
    """Sums of losses and metrics (`engine.memory.loss_metrics.LossMetrics`)."""

    def take(self, train: bool) -> list[LossSums]:
        """As `LossMetrics.take`."""
        ...

    def state(self) -> list[list[Any]]:
        """As `LossMetrics.state`."""
        ...

    def resume(self, state: Sequence[Sequence[Any]]) -> None:
        """As `LossMetrics.resume`."""
        ...


class Fence(Protocol):
    """A sign that everything issued before is done: an array of JAX, or a ticket of a host."""

    def is_ready(self) -> bool:
        """As `jax.Array.is_ready`."""
        ...

    def block_until_ready(self) -> Any:
        """As `jax.Array.block_until_ready`."""
        ...


class AnyFences(Protocol):
    """The progress of devices (`engine.fences.Fences`)."""

    def of_worker(self, worker: int) -> Any:
        """As `Fences.of_worker`."""
        ...

    def of_kernels(self, dispatch: Dispatch) -> list[Any]:
        """As `Fences.of_kernels`."""
        ...

    def of_changes(self, changes: Sequence[Change]) -> list[Any]:
        """As `Fences.of_changes`."""
        ...

    def warm(self) -> None:
        """As `Fences.warm`."""
        ...

    def is_idle(self, worker: int) -> bool:
        """As `Fences.is_idle`."""
        ...

    def wait_for(self, worker: int) -> None:
        """As `Fences.wait_for`."""
        ...

    def wait(self) -> None:
        """As `Fences.wait`."""
        ...


class TakesLines(Protocol):
    """Carries dispatches out from the lines of compiled loops, without making launches (`hosts.HostedExecutor`)."""

    def takes_lines(self, decided: DecidedLines) -> bool:
        """As `HostedExecutor.takes_lines`."""
        ...

    def run_lines(self, decided: DecidedLines, capacities: Capacities) -> None:
        """As `HostedExecutor.run_lines`."""
        ...

    @property
    def latest_line(self) -> int:
        """As `HostedExecutor.latest_line`."""
        ...


class AnyExecutor(Protocol):
    """Carries launches out in the order of issue (`engine.executor.Executor` says the meaning of each method).

    A failure may show later than the call whose launch has failed; nothing is carried out then before `abandon`.
    It has more than 15 methods, as `Executor` has.
    """

    is_remote: bool
    """Whether hosts carry launches out. Then what was issued may turn out not to have been carried out (`take_lost`)."""
    plan: Plan
    sinks: frozenset[int]
    readings: dict[int, Any]

    @property
    def n_hosts(self) -> int:
        """Hosts that carry launches out; 1 for this process."""
        ...

    @property
    def for_lines(self) -> TakesLines | None:
        """The object that carries dispatches out from the lines of compiled loops; None where launches are needed."""
        ...

    @property
    def timing(self) -> RemoteTiming | None:
        """The timing of launches by the processes that carry launches out; None if that is this process, whose fences tell."""
        ...

    @property
    def store(self) -> AnyStore:
        """As `Executor.store`."""
        ...

    @property
    def losses(self) -> AnyLosses:
        """As `Executor.losses`."""
        ...

    @property
    def fences(self) -> AnyFences:
        """As `Executor.fences`."""
        ...

    def feed(self, feeds: Sequence[Feed]) -> None:
        """As `Executor.feed`."""
        ...

    @property
    def can_coalesce(self) -> Callable[[Launch, Launch], bool] | None:
        """As `Executor.can_coalesce`; None where launches are never handed on together."""
        ...

    def issue(self, launches: Coalesced) -> None:
        """As `Executor.issue`."""
        ...

    def run(self, launches: Coalesced) -> int:
        """As `Executor.run`."""
        ...

    def change(self, change: Change) -> None:
        """As `Executor.change`."""
        ...

    def choices(self, number: int, n_rows: int) -> np.ndarray:
        """As `Executor.choices`."""
        ...

    def oldest_unfinished(self) -> int | None:
        """The number of the first issued launch that may not have been carried out; None if there is none."""
        ...

    def take_lost(self) -> dict[int, int | None]:
        """As `HostedExecutor.take_lost`."""
        ...

    def abandon(self) -> None:
        """As `Executor.abandon`."""
        ...

    def expect_edges(self, stages: Mapping[int, EdgeSizes]) -> None:
        """As `Executor.expect_edges`."""
        ...

    def warm(
        self,
        launch: Launch,
        capacities: Mapping[ArenaKey, int],
    ) -> None:
        """As `Executor.warm`."""
        ...

    def can_update_at_once(self, launch: Launch) -> bool:
        """As `Executor.can_update_at_once`."""
        ...

    @property
    def device_bytes(self) -> dict[str, int]:
        """As `Executor.device_bytes`."""
        ...

    def record_row_bytes(self) -> dict[ArenaKey, int]:
        """As `Executor.record_row_bytes`."""
        ...
