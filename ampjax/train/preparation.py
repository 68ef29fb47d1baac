"""Preparation before a run: arenas are sized and kernels compiled by the needs of sampled instances."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from ampjax.drivers.controller import batches_of
from ampjax.engine.compilation import Ladder, ladders
from ampjax.engine.executor_protocol import AnyExecutor
from ampjax.engine.kernels.edge_sizes import EdgeSizes
from ampjax.engine.timing.compilation_count import watch_compilations
from ampjax.ir.instances import declared_sizes
from ampjax.plan.passes import Pass
from ampjax.plan.planner import Plan
from ampjax.plan.stages import ArenaKey
from ampjax.sched.decisions.dispatch import BACKWARD, FORWARD, INFER
from ampjax.sched.dry_run import dry_run
from ampjax.sched.memory_limits import (
    MARGIN_WITH_SIZES,
    USUAL_MARGIN,
    MemoryGuard,
    row_limits,
    with_limits,
    with_unseen,
)
from ampjax.sched.scheduler import Scheduler
from ampjax.train.grouping import Orders
from ampjax.train.settings import Settings
from ampjax.train.training_data import AnyInstances
from ampjax.unfold.demand import ArenaRows, InstanceNeeds, needs
from ampjax.utils.progress import AS_NEEDED, COMPILING, Reporter

SAMPLED = 64
"""How many instances are sampled, at least, to size arenas and dispatches."""

Workload = tuple[AnyInstances, str]
"""Instances, and what they are run for: one of `passes.PURPOSES`."""
Sample = tuple[np.ndarray, InstanceNeeds]
"""The numbers of some sampled instances, and what they need."""


@contextmanager
def showing_compilations(reporter: Reporter, most: int) -> Iterator[None]:
    """Shows the compilations of this process as long as this is open.

    Args:
      reporter: Shows them.
      most: How many are expected, at most.
    """
    with reporter.part(AS_NEEDED, most) as advance, watch_compilations(advance):
        yield


class Preparation:
    """Sizes the arenas and compiles the ladder of dispatch sizes, once for each kind of pass.

    Args:
      plan: The plan.
      settings: The trainer's settings.
      scheduler: The scheduler, whose tables are resized with the arenas.
      executor: Holds the arenas and compiles kernels.
      orders: The orders in which instances are taken.
      memory_limit: Bytes for the payloads on one device, at most.
    """

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        scheduler: Scheduler,
        executor: AnyExecutor,
        orders: Orders,
        memory_limit: int,
    ):
        self._plan = plan
        self._settings = settings
        self._scheduler = scheduler
        self._executor = executor
        self._orders = orders
        self._memory_limit = memory_limit
        self._limits: tuple[ArenaRows, dict[ArenaKey, float]] | None = None
        self._largest = (
            0.0  # of the sizes that data sets declare, the largest that the guard has counted
        )
        self._sized_by_training = False
        self._prepared: set[tuple[int, str]] = (
            set()
        )  # length and purpose of workloads that kernels were compiled for
        self._postponed: list[
            Ladder
        ] = []  # compilations that are left to the first call of each kernel

    def guard(self, data_pass: Pass) -> MemoryGuard | None:
        """Gives the guard that holds back instances which would exceed the memory limit; None before arenas are sized.

        Args:
          data_pass: The pass.
        """
        if self._limits is None:
            return None
        data = data_pass.data
        purpose = "losses" if data_pass.train else data_pass.purpose
        sizes = declared_sizes(data)
        if sizes is not None and len(sizes) and not sizes.max() <= self._largest:
            self._count_largest(data, purpose, sizes)
        margin = USUAL_MARGIN if sizes is None else MARGIN_WITH_SIZES
        return MemoryGuard(*self._limits, self._settings.in_flight, margin, purpose)

    def _count_largest(
        self,
        data: AnyInstances,
        purpose: str,
        sizes: np.ndarray,
    ) -> None:
        """Counts the needs of the largest instances, for the guard. Arenas and kernels are made for the usual size."""
        assert self._limits is not None
        ids = np.argsort(-sizes, kind="stable")[:SAMPLED]
        _, most = self._limits
        for key, counts in self._needs((data, purpose), ids).each.items():
            most[key] = max(
                most.get(key, 0),
                int(counts.max()),
            )
        self._largest = float(sizes.max())

    async def prepare(
        self,
        data: AnyInstances,
        valid: AnyInstances | None,
        reporter: Reporter,
        purpose: str = "train",
        warm: bool = True,
        ahead: bool = True,
    ) -> None:
        """Sizes arenas and compiles kernels for a pass over `data`, and for one that evaluates losses over `valid`.

        What is sized and compiled already stays as it is.

        Args:
          data: Instances.
          valid: Validation instances, or None.
          reporter: Shows how many kernels are compiled.
          purpose: What `data` are run for, one of `passes.PURPOSES`.
          warm: False sizes arenas only.
          ahead: False compiles each kernel when it is first called; `finish` compiles those that have not been called.

        Raises:
          MessageError: If a message, payload or state function of a sampled instance does not fit.
        """
        if not warm and self._sized_by_training:
            return
        train = purpose == "train"
        if valid is None:
            workloads = [(data, purpose)]
        else:
            workloads = [(data, purpose), (valid, "losses")]
        resize = not self._sized_by_training and (train or self._limits is None)
        new = [w for w in workloads if resize or not self.is_ready(*w)]
        samples = [self._sample(workload) for workload in new]
        if resize:
            self._size_arenas(
                [needed for _, needed in samples],
                max(len(data) for data, _ in new),
            )
            self._sized_by_training = train
        if warm:
            wanted = self._with_changes(self._ladders(new, samples), train)
            if ahead:
                await self._compile(wanted, reporter)
            else:
                self._postpone(wanted)
            self._prepared.update((len(data), purpose) for data, purpose in new)

    def _with_changes(self, ladders: list[Ladder], train: bool) -> list[Ladder]:
        """Adds the kernels of parameter changes and of fences, if stages need any kernels."""
        if not ladders:
            return []
        fences = _fences(self._plan, self._executor)
        if not train:
            return [*ladders, fences]
        changes = _parameter_changes(self._plan, self._scheduler, self._executor)
        return [changes, *ladders, fences]

    def _postpone(self, ladders: Sequence[Ladder]) -> None:
        """Leaves kernels to their first calls; dispatches are limited to these sizes at once."""
        for ladder in ladders:
            ladder.limit()
            self._postponed.append(Ladder(ladder.compilations))

    def is_ready(self, data: AnyInstances, purpose: str) -> bool:
        """Tells whether arenas and kernels have been prepared for a pass over such data, or one as long.

        Args:
          data: Instances.
          purpose: What they are run for, one of `passes.PURPOSES`.
        """
        return (len(data), purpose) in self._prepared

    async def finish(self, reporter: Reporter) -> None:
        """Compiles the kernels that were postponed and have not been called since.

        Args:
          reporter: Shows how many kernels are compiled.
        """
        await self._compile(self._postponed, reporter)
        self._postponed = []

    def leave_to_calls(self) -> None:
        """Leaves kernels that were postponed to their first calls, for good."""
        self._postponed = []

    @contextmanager
    def showing_postponed(self, reporter: Reporter) -> Iterator[None]:
        """Shows the compilations of kernels that were postponed, as long as this is open.

        Args:
          reporter: Shows them.
        """
        with showing_compilations(
            reporter, sum(len(ladder.compilations) for ladder in self._postponed)
        ):
            yield

    def most_kernels(self, data: AnyInstances) -> int:
        """Counts the kernels that passes over some data can need, at most: training, and inference of losses and of sinks.

        Args:
          data: Instances.

        Raises:
          MessageError: If a message, payload or state function of a sampled instance does not fit.
        """
        workloads = [(data, purpose) for purpose in ("train", "losses", "sinks")]
        needed = self._ladders(
            workloads,
            [self._sample(workload) for workload in workloads],
        )
        return sum(len(ladder.compilations) for ladder in needed)

    def _sample(self, workload: Workload) -> Sample:
        """Counts the needs of some instances: some drawn at random, and the largest that are likely to be in flight together."""
        data, purpose = workload
        rng = np.random.default_rng(self._settings.seed)
        in_flight = self._settings.in_flight
        drawn = rng.permutation(len(data))[: max(SAMPLED, 2 * in_flight)]
        together = self._orders.largest(data, in_flight, purpose == "train", rng)
        ids = np.concatenate([drawn, np.setdiff1d(together, drawn)])
        return ids, self._needs(workload, ids)

    def _needs(self, workload: Workload, ids: np.ndarray) -> InstanceNeeds:
        data, purpose = workload
        return needs(self._plan, batches_of(data, ids), ids, purpose)

    def _size_arenas(self, samples: Sequence[InstanceNeeds], n_instances: int) -> None:
        """Sizes each arena for as many instances as can be in flight, of the most demanding ones, in training or in validation.

        That is at most `n_instances`, or `SAMPLED` if there are fewer, as later runs may have more instances.
        """
        s = self._settings
        mean = {}
        most = {}
        for needed in samples:
            for key, counts in needed.each.items():
                mean[key] = max(
                    mean.get(key, 0.0),
                    float(np.sort(counts)[-s.in_flight :].mean()),
                )
                most[key] = max(
                    most.get(key, 0),
                    int(counts.max()),
                )
        arenas = dict.fromkeys(
            key for stage in self._plan.stages if stage.kind.is_dispatched for key in stage.arenas
        )
        numbers = dict.fromkeys(number for needed in samples for number in needed.edges)
        seen = {}
        for n in numbers:
            seen[n] = [needed.edges[n] for needed in samples if n in needed.edges]
        self._executor.expect_edges({n: EdgeSizes.of(parts) for n, parts in seen.items()})
        limits = row_limits(
            with_unseen(mean, arenas), self._memory_limit, self._executor.record_row_bytes()
        )
        self._limits = (limits, with_unseen(most, arenas))
        self._largest = 0.0
        start = {key: mean.get(key, 0.0) for key in arenas}
        in_flight = min(s.in_flight, max(SAMPLED, n_instances))
        self._scheduler.resize(
            with_limits(self._scheduler.settings, start, limits, in_flight, s.arena_rows)
        )
        self._postponed.clear()
        self._prepared.clear()  # kernels are compiled for the arenas' sizes

    def _ladders(
        self,
        workloads: Sequence[Workload],
        samples: Sequence[Sample],
    ) -> list[Ladder]:
        """The kernels that passes will need, as far as a dry run of the largest sampled instances tells."""
        wanted = list[Ladder]()
        for (data, purpose), (ids, needed) in zip(workloads, samples, strict=True):
            largest = ids[needed.largest(self._settings.in_flight)]
            size = self._settings.dispatch_limit
            stats = dry_run(
                self._plan,
                batches_of(data, largest),
                largest,
                purpose,
                size,
            )
            directions = [FORWARD, BACKWARD] if purpose == "train" else [INFER]
            wanted += ladders(self._executor, self._scheduler, stats.stages, directions)
        return wanted

    async def _compile(self, wanted: Sequence[Ladder], reporter: Reporter) -> None:
        with reporter.part(
            COMPILING, sum(len(ladder.compilations) for ladder in wanted)
        ) as advance:
            for ladder in wanted:
                for compile_kernel in ladder.compilations:
                    compile_kernel()
                    advance(1)
                    await asyncio.sleep(0)  # a Ctrl-C takes effect here
                ladder.limit()  # last, so that an interrupted compilation is taken up again


def _parameter_changes(
    plan: Plan,
    scheduler: Scheduler,
    executor: AnyExecutor,
) -> Ladder:
    """The compilations of updates, and of averages over replicas."""
    store = executor.store
    return Ladder(
        [
            *(partial(store.warm_update, node) for node in plan.graph.parameterised),
            *(partial(store.warm_group, name) for name in scheduler.settings.joint),
            *(
                partial(store.warm_average, nodes)
                for nodes in scheduler.rounds.replicas.groups.values()
            ),
        ]
    )


def _fences(plan: Plan, executor: AnyExecutor) -> Ladder:
    """Lists the compilations of the fences that tell when a device has finished all issued work; fences need arenas."""
    result = []
    for worker in range(plan.workers):
        result.append(partial(executor.fences.of_worker, worker))
    return Ladder(result)
