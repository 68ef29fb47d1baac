"""Counting and doing compilations: the ladder of dispatch sizes is compiled before training, so that nothing is compiled in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np

from ampjax.engine.executor import Executor
from ampjax.engine.kernels.launch import Launch
from ampjax.plan.ladders import is_padded, ladder_for, segment_ladder, segment_sizes
from ampjax.plan.stages import Stage
from ampjax.sched.decisions import packs
from ampjax.sched.decisions.dispatch import BACKWARD, FORWARD, INFER
from ampjax.sched.decisions.parameter_changes import Update
from ampjax.sched.diagnose.statistics import StageStats
from ampjax.sched.scheduler import Scheduler
from ampjax.unfold.rules.edges import Edges

_counts = {"compilations": 0, "registered": 0}
_EVENT = "/jax/core/compile/backend_compile_duration"
_listeners: list[Callable[[], object]] = []


def compilations() -> int:
    """XLA compilations in this process since the first call, loads from the persistent cache included."""
    if not _counts["registered"]:
        _counts["registered"] = 1
        jax.monitoring.register_event_duration_secs_listener(_count)
    return _counts["compilations"]


def _count(event: str, duration_secs: float, **kwargs: str | int) -> None:
    if event == _EVENT:
        _counts["compilations"] += 1
        for listener in tuple(_listeners):
            listener()


@contextmanager
def told_of_compilations(listener: Callable[[], object]) -> Iterator[None]:
    """Calls `listener` after each XLA compilation of this process, loads from the persistent cache included, as long as this is open."""
    compilations()
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


@dataclass(frozen=True)
class Ladder:
    """The sizes of a stage's dispatches in one direction.

    Args:
      compilations: Each compiles a kernel of one size, unless that has been done.
      limit: Keeps dispatches to these sizes from then on; by default nothing.
    """

    compilations: Sequence[Callable[[], object]]
    limit: Callable[[], None] = lambda: None


def ladders(
    executor: Executor, scheduler: Scheduler, sizes: Mapping[str, StageStats], directions: Iterable[str]
) -> Iterator[Ladder]:
    """What to compile: every stage of the dry run at every size of its ladder, in each direction.

    What dispatches have been limited to before is left out.

    A ladder ends at twice the largest dispatch of a dry run (a message counts for a row at least), or at `max_dispatch_size`; single ragged
    messages may be larger. Only the trash slot is read and written.

    Args:
      executor: Runs them.
      scheduler: Knows the arenas' sizes.
      sizes: What a dry run has counted, by stage.
      directions: `forward`, `backward`, `infer`.
    """
    limit = scheduler.settings.max_dispatch_size
    for stage in scheduler.plan.stages:
        if not stage.kind.is_dispatched:
            continue
        seen = sizes[stage.name]
        if not seen.dispatches:
            continue
        messages = seen.most_messages
        # Ragged messages may all have been empty there, as those of a rare edge kind: leave room for a row in each.
        rows = max(seen.largest_dispatch, messages)
        rows, messages = (max(most, min(2 * most, limit)) for most in (rows, messages))
        for direction in directions:
            if (direction == BACKWARD and stage.kind.starts_backward) or (direction != INFER and not stage.trains):
                continue
            most = ladder_for(stage)(rows)
            if most <= scheduler.tables.cap_of(stage.number, direction):
                continue
            jobs: list[Callable[[], object]] = []
            reads = {port.arena: scheduler.tables.capacity(port.arena) for port in stage.ports}
            for n, m in _sizes(stage, rows, messages):
                idle = _idle(scheduler, stage, direction, n, m)
                jobs.append(partial(executor.warm, idle, reads))
                if _may_update(executor, scheduler, stage, idle):
                    updates = [Update(node, n) for node in stage.params]
                    jobs.append(partial(executor.warm, idle._replace(changes=updates, brings_updates=True), reads))
            yield Ladder(jobs, partial(scheduler.tables.cap, stage.number, direction, most))


def _sizes(stage: Stage, rows: int, messages: int) -> list[tuple[int, int]]:
    """The sizes to compile: rows, and for a reduce or collect also segments."""
    if not stage.kind.sums_segments:
        # Graphs with more edges than usual take the next step of the ladder: one more is compiled for them.
        more = 1 if stage.chain is not None else 0
        return [(n, n) for n in _steps(ladder_for(stage), rows, more)]
    segments = messages if stage.kind.reduces else rows
    steps = _steps(segment_ladder, max(rows, segments))
    return list(dict.fromkeys(segment_sizes(n, m) for n in steps for m in (n // 4, min(n, segments))))


def _steps(sizes: Callable[[int], int], most: int, more: int = 0) -> list[int]:
    """The steps of a ladder up to `most`, and some more."""
    steps = [sizes(1)]
    while steps[-1] < most:
        steps.append(sizes(steps[-1] + 1))
    for _ in range(more):
        steps.append(sizes(steps[-1] + 1))
    return steps


def _idle(scheduler: Scheduler, stage: Stage, direction: str, n: int, m: int) -> Launch:
    """A launch of `n` rows, into `m` segments, that reads and writes the trash slot only."""
    rows, out = np.zeros(n, np.int64), np.zeros(m if stage.kind.sums_segments else n, np.int64)
    size = n if is_padded(stage) else 0
    if size:
        pack = packs.padded([rows] * len(stage.ports), [out] * len(stage.outputs), size).ravel()
    else:
        pack = packs.made([rows] * len(stage.ports) + [out] * len(stage.outputs))
    sizes = np.ones(n, np.int64) if stage.ragged else None
    if stage.kind.reduces:
        sizes = np.append(np.zeros(m - 1, np.int64), n)
    ways = stage.chain.edge_types if stage.chain is not None else ()
    return Launch(
        0,
        stage.worker,
        stage.number,
        direction,
        n if size else 0,
        n,
        len(stage.ports),
        len(stage.outputs),
        pack,
        size,
        0,
        [scheduler.tables.capacity(key) for key in stage.arenas],
        sizes=sizes,
        edges=_no_edges(stage, n),
        scatter=[rows] * len(stage.ports) if stage.kind.collects else [],
        seeds=[np.zeros(n, np.uint32), *(np.zeros(0, np.uint32) for _ in ways)],
    )


def _may_update(executor: Executor, scheduler: Scheduler, stage: Stage, launch: Launch) -> bool:
    """Whether a launch of that size can bring all the gradient rows of an update of its stage's nodes."""
    brings = launch.direction == BACKWARD or (stage.kind.starts_backward and launch.direction == FORWARD)
    nodes = [node.params_name for node in stage.parameterised]
    due = bool(nodes) and scheduler.updates.are_due_after(nodes, launch.n_rows)
    return brings and due and executor.learns_at_once(launch)


def _no_edges(stage: Stage, n: int) -> Edges | None:
    """For a chain: `n` messages of a row each, without edges."""
    if stage.chain is None:
        return None
    nothing = np.zeros(0, np.int32)
    return Edges(nothing, nothing, np.zeros((n, len(stage.chain.edge_types)), np.int64), np.ones(n, np.int64))
