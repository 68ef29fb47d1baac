"""What happens before data run: arenas are sized and kernels compiled, as sampled instances ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from ampjax.drivers.controller import LoopInstances, batches_of
from ampjax.engine.compilation import Ladder, ladders, told_of_compilations
from ampjax.engine.executor import Executor
from ampjax.engine.kernels.edge_sizes import EdgeSizes
from ampjax.ir.instances import Instances, told_sizes
from ampjax.plan.passes import Pass
from ampjax.plan.planner import Plan
from ampjax.plan.stages import ArenaKey
from ampjax.sched.decisions.dispatch import BACKWARD, FORWARD, INFER
from ampjax.sched.dry_run import dry_run
from ampjax.sched.memory_limits import FAR, KNOWN, Guard, row_limits, with_limits, with_unseen
from ampjax.sched.scheduler import Scheduler
from ampjax.train.grouping import Orders
from ampjax.train.settings import Settings
from ampjax.unfold.demand import Needs, Rows, needs
from ampjax.utils.progress import AS_NEEDED, COMPILING, Reporter

SAMPLED = 64
"""Instances, at least, that are looked at to size arenas and dispatches."""

AnyInstances = Instances | LoopInstances
Look = tuple[np.ndarray, Needs]
"""The numbers of some sampled instances, and what they need."""
Wanted = tuple[AnyInstances, str]
"""Instances, and what they are run for: one of `passes.PURPOSES`."""


@contextmanager
def as_needed(reporter: Reporter, most: int) -> Iterator[None]:
    """Shows the compilations of this process, `most` at most, as long as this is open."""
    with reporter.part(AS_NEEDED, most) as advance, told_of_compilations(advance):
        yield


class Preparation:
    """Sizes the arenas and compiles the ladder of dispatch sizes, once for each kind of pass.

    Args:
      plan: The plan.
      settings: The trainer's settings.
      scheduler: The scheduler, which is resized with the arenas.
      executor: Where arenas and kernels are.
      orders: The orders in which instances are taken.
      memory_limit: Bytes for the payloads on one device at most.
    """

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        scheduler: Scheduler,
        executor: Executor,
        orders: Orders,
        memory_limit: int,
    ):
        self._plan, self._settings, self._scheduler, self._executor = plan, settings, scheduler, executor
        self._orders, self._memory_limit = orders, memory_limit
        self._limits: tuple[Rows, dict[ArenaKey, float]] | None = None
        self._largest = 0.0  # among the sizes that data tell, of those that the guard knows
        self._sized_by_training = False
        self._looked_at: set[tuple[int, str]] = set()
        self._left: list[Ladder] = []

    def guard(self, of: Pass) -> Guard | None:
        """What keeps instances of a pass out that would exceed the memory limit; None before anything is sized."""
        if self._limits is None:
            return None
        data, purpose = of.data, "losses" if of.train else of.purpose
        sizes = told_sizes(data)
        if sizes is not None and len(sizes) and not sizes.max() <= self._largest:
            self._count_largest(data, purpose, sizes)
        margin = FAR if sizes is None else KNOWN
        return Guard(*self._limits, self._settings.in_flight, margin, purpose)

    def _count_largest(self, data: AnyInstances, purpose: str, sizes: np.ndarray) -> None:
        """Finds out what the largest instances need: the guard must know, though arenas and kernels are made for what is usual."""
        assert self._limits is not None
        ids = np.argsort(-sizes, kind="stable")[:SAMPLED]
        _, most = self._limits
        for key, counts in self._needs((data, purpose), ids).each.items():
            most[key] = max(most.get(key, 0), int(counts.max()))
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
        """Prepares a pass over `data`, then one for losses over `valid`; what was prepared before is left as it is.

        Args:
          data: Instances.
          valid: Validation instances.
          reporter: Shows how far it is.
          purpose: What `data` are run for, one of `passes.PURPOSES`.
          warm: False sizes arenas only.
          ahead: False leaves compilations to whoever needs them first, and those that nobody does to `finish`.
        """
        if not warm and self._sized_by_training:
            return
        train = purpose == "train"
        passes = [(data, purpose)] if valid is None else [(data, purpose), (valid, "losses")]
        resize = not self._sized_by_training and (train or self._limits is None)
        new = [p for p in passes if resize or (len(p[0]), p[1]) not in self._looked_at]
        looks = [self._look_at(p) for p in new]
        if resize:
            self._size_arenas([sampled for _, sampled in looks], max(len(data) for data, _ in new))
            self._sized_by_training = train
        if warm:
            found = self._ladders(new, looks)
            if found:
                changes = [Ladder(self._changes())] if train else []
                found = [*changes, *found, Ladder(self._fences())]
            if ahead:
                await self._compile(found, reporter)
            else:
                for ladder in found:
                    ladder.limit()
                    self._left.append(Ladder(ladder.compilations))
            self._looked_at.update((len(data), purpose) for data, purpose in new)

    async def finish(self, reporter: Reporter) -> None:
        """Compiles what has been left to whoever needs it, unless somebody did."""
        await self._compile(self._left, reporter)
        self._left = []

    @contextmanager
    def while_needed(self, reporter: Reporter) -> Iterator[None]:
        """Shows the compilations of what has been left to whoever needs it, as long as data run."""
        with as_needed(reporter, sum(len(ladder.compilations) for ladder in self._left)):
            yield

    def most_kernels(self, data: AnyInstances) -> int:
        """How many kernels passes over `data` can need, at most: training, and inference of losses and of sinks."""
        passes = [(data, purpose) for purpose in ("train", "losses", "sinks")]
        found = self._ladders(passes, [self._look_at(p) for p in passes])
        return sum(len(ladder.compilations) for ladder in found)

    def _look_at(self, wanted: Wanted) -> Look:
        """Counts what some instances need, drawn at random, and the largest that are likely to be in flight together."""
        data, purpose = wanted
        rng, in_flight = np.random.default_rng(self._settings.seed), self._settings.in_flight
        drawn = rng.permutation(len(data))[: max(SAMPLED, 2 * in_flight)]
        together = self._orders.largest(data, in_flight, purpose == "train", rng)
        sample = np.concatenate([drawn, np.setdiff1d(together, drawn)])
        return sample, self._needs(wanted, sample)

    def _needs(self, wanted: Wanted, ids: np.ndarray) -> Needs:
        data, purpose = wanted
        return needs(self._plan, batches_of(data, ids), ids, purpose)

    def _size_arenas(self, looks: Sequence[Needs], n_instances: int) -> None:
        """Sizes each arena for the sampled instances that need most of it, as many as can be in flight; in training or in validation.

        Not for fewer than are sampled, as more may come in later runs, but not for more than that or `n_instances` either.
        """
        s, mean, most = self._settings, {}, {}
        for sampled in looks:
            for key, counts in sampled.each.items():
                mean[key] = max(mean.get(key, 0.0), float(np.sort(counts)[-s.in_flight :].mean()))
                most[key] = max(most.get(key, 0), int(counts.max()))
        arenas = dict.fromkeys(key for stage in self._plan.stages if stage.kind != "group" for key in stage.arenas)
        numbers = dict.fromkeys(number for sampled in looks for number in sampled.edges)
        seen = {n: [sampled.edges[n] for sampled in looks if n in sampled.edges] for n in numbers}
        self._executor.expect_edges({n: EdgeSizes.of(parts) for n, parts in seen.items()})
        limits = row_limits(with_unseen(mean, arenas), self._memory_limit, self._executor.record_row_bytes())
        self._limits, self._largest = (limits, with_unseen(most, arenas)), 0.0
        start = {key: mean.get(key, 0.0) for key in arenas}
        in_flight = min(s.in_flight, max(SAMPLED, n_instances))
        self._scheduler.resize(with_limits(self._scheduler.settings, start, limits, in_flight, s.arena_rows))
        self._left.clear()
        self._looked_at.clear()  # kernels are compiled for the arenas' sizes

    def _ladders(self, passes: Sequence[Wanted], looks: Sequence[Look]) -> list[Ladder]:
        """The kernels that passes will need, as far as the largest sampled instances tell."""
        found = list[Ladder]()
        for wanted, (ids, sampled) in zip(passes, looks, strict=True):
            largest = ids[sampled.largest(self._settings.in_flight)]
            (data, purpose), size = wanted, self._settings.max_dispatch_size
            stats = dry_run(self._plan, batches_of(data, largest), largest, purpose, size)
            directions = [FORWARD, BACKWARD] if purpose == "train" else [INFER]
            found += ladders(self._executor, self._scheduler, stats.stages, directions)
        return found

    def _changes(self) -> list[Callable[[], object]]:
        """The compilations of parameter changes."""
        store = self._executor.store
        return [
            *(partial(store.warm_update, node) for node in self._plan.graph.parameterised),
            *(partial(store.warm_average, nodes) for nodes in self._scheduler.replicas.groups.values()),
        ]

    def _fences(self) -> list[Callable[[], object]]:
        """The compilations of the fences that tell how far a device is; they need arenas."""
        return [partial(self._executor.fences.of_worker, worker) for worker in range(self._plan.workers)]

    async def _compile(self, found: Sequence[Ladder], reporter: Reporter) -> None:
        with reporter.part(COMPILING, sum(len(ladder.compilations) for ladder in found)) as advance:
            for ladder in found:
                for compile_kernel in ladder.compilations:
                    compile_kernel()
                    advance(1)
                    await asyncio.sleep(0)  # a Ctrl-C is heard here
                ladder.limit()  # last: what is interrupted is taken up again
