"""Counting and doing compilations: the ladder of dispatch sizes is compiled before training, so that nothing is compiled in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import jax
import numpy as np

from ampjax.engine.executor import Executor
from ampjax.engine.runner import ladder
from ampjax.sched.dispatch import Dispatch
from ampjax.sched.plan import HOST, Stage
from ampjax.sched.queues import BACKWARD, INFER
from ampjax.sched.scheduler import Scheduler

_counts = {"compilations": 0, "registered": 0}
_EVENT = "/jax/core/compile/backend_compile_duration"


def compilations() -> int:
    """XLA compilations in this process since the first call, loads from the persistent cache included."""
    if not _counts["registered"]:
        _counts["registered"] = 1
        jax.monitoring.register_event_duration_secs_listener(_count)
    return _counts["compilations"]


def _count(event: str, duration: float, **rest: object) -> None:
    if event == _EVENT:
        _counts["compilations"] += 1


def warm_up(
    executor: Executor, scheduler: Scheduler, sizes: Mapping[str, int], directions: Iterable[str]
) -> Iterator[Callable[[], None]]:
    """The compilations to do, each a function: every stage at every size of the ladder up to its largest, in each direction.

    Dispatches on the trash slot only are run, so nothing that matters is touched.

    Args:
      executor: Runs them.
      scheduler: Knows the arenas' sizes.
      sizes: Rows of each stage's largest dispatch, by name.
      directions: `forward`, `backward`, `infer`.
    """
    for stage in scheduler.plan.stages:
        if stage.kind in ("group", "reduce", "collect"):
            continue
        largest_size = ladder(sizes.get(stage.name, 1))
        for direction in directions:
            if direction == BACKWARD and stage.kind in ("loss", "sink") or direction != INFER and stage.kind == "sink":
                continue
            size = 1
            while size <= largest_size:
                yield lambda s=stage, d=direction, n=size: executor.warm(_idle_dispatch(scheduler, s, d, n), scheduler)
                size *= 2


def _idle_dispatch(scheduler: Scheduler, stage: Stage, direction: str, n: int) -> Dispatch:
    """A dispatch of `n` rows that reads and writes the trash slot only."""
    trash = np.zeros(n, np.int64)
    for port in stage.ports:
        if port.space == HOST:
            scheduler.pool(port.arena)
    states = np.zeros((n, scheduler.plan.layout.width), np.int64)
    sizes = np.ones(n, np.int64) if stage.ragged else None
    return Dispatch(
        0,
        stage.worker,
        stage,
        direction,
        states,
        trash,
        np.zeros((n, len(stage.ports)), np.int64),
        [trash] * len(stage.ports),
        [trash] * len(stage.outputs),
        n,
        sizes,
    )
