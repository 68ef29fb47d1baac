"""Fences: tiny arrays that are ready when a device has done everything issued before; and the waiting for devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax

from ampjax.engine.kernels.copy_kernels import first_element
from ampjax.engine.memory.arenas import Arenas
from ampjax.engine.memory.loss_metrics import LossMetrics
from ampjax.engine.parameters import ParameterStore
from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import BACKWARD, Dispatch
from ampjax.sched.decisions.parameter_changes import Change


class Fences:
    """The progress of devices.

    Args:
      plan: The plan.
      arenas: Kernels write these,
      store: these,
      losses: and these.
    """

    def __init__(
        self,
        plan: Plan,
        arenas: Arenas,
        store: ParameterStore,
        losses: LossMetrics,
    ):
        self._plan = plan
        self._arenas = arenas
        self._store = store
        self._losses = losses
        keys = [
            key
            for stage in plan.stages
            for key in (*(port.arena for port in stage.ports), *stage.arenas)
        ]
        self._first = first_element(tuple(dict.fromkeys(keys)))

    def of_worker(self, worker: int) -> jax.Array | None:
        """A fence that is ready when a worker's device has done everything issued to the worker; None before its first arena."""
        space = self._plan.spaces[worker]
        for key, values in self._arenas.values.items():
            if key[0] == space:
                return self._first.once(values)
        return None

    def of_kernels(self, dispatch: Dispatch) -> list[jax.Array]:
        """Fences that are ready when the kernels of a dispatch have been done."""
        if dispatch.stage < 0:
            return []
        stage = self._plan.stages[dispatch.stage]
        keys = dict.fromkeys([*stage.arenas, *(port.arena for port in stage.ports)])
        # Forward kernels write values, backward ones adjoint rows; any of these is ready when the
        # kernel has been done.
        values = self._arenas.values if dispatch.direction != BACKWARD else self._arenas.grads
        written = [array for key in keys if (array := values.get(key)) is not None]
        written += self._losses.of_stage(stage.number)
        written += jax.tree.leaves([self._store.accumulators[node] for node in stage.params])
        return self._first_of(written)

    def of_changes(self, changes: Sequence[Change]) -> list[jax.Array]:
        """Fences that are ready when parameter changes have been made."""
        return self._first_of(self._store.find_changed(changes))

    def warm(self) -> None:
        """Compiles the functions that fences run."""
        everything = (
            self._arenas.values,
            self._arenas.grads,
            self._store.params,
            self._store.accumulators,
        )
        jax.block_until_ready(self._first_of([*jax.tree.leaves(everything), *self._losses.warm()]))

    def is_idle(self, worker: int) -> bool:
        """Whether a worker's device has done everything issued to the worker."""
        return all(_is_ready(array) for array in self._list_written(worker))

    def wait_for(self, worker: int) -> None:
        """Blocks until a worker's device has done everything issued to the worker."""
        jax.block_until_ready(list(self._list_written(worker)))

    def wait(self) -> None:
        """Blocks until all devices have done everything that was issued."""
        jax.block_until_ready(
            (
                self._store.params,
                self._arenas.values,
                self._arenas.grads,
                self._store.accumulators,
            )
        )

    def _first_of(
        self,
        arrays: list[jax.Array],
    ) -> list[jax.Array]:
        return [self._first.once(array) for array in arrays if array.size]

    def _list_written(self, worker: int) -> Iterator[jax.Array]:
        """The arrays on a worker's device that kernels replace, arenas first: most kernels write to arenas, so `is_idle` ends early."""
        space = self._plan.spaces[worker]
        for of in (self._arenas.grads, self._arenas.values):
            yield from (array for key, array in of.items() if key[0] == space and array is not None)
        yield from self._store.arrays(
            n for n, host in self._plan.worker_of.items() if self._plan.spaces[host] == space
        )
        yield from self._losses.in_space(space)


def _is_ready(array: jax.Array) -> bool:
    return array.is_ready()  # pyright: ignore - jax.Array's type does not list it
