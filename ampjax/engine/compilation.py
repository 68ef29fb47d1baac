"""Compiles the kernels of all dispatch sizes before training, which then compiles nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from ampjax.engine.executor_protocol import AnyExecutor
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.kinds.idle_launch import idle_launches
from ampjax.plan.ladders import ladder_for
from ampjax.plan.stages import Stage
from ampjax.sched.decisions.dispatch import BACKWARD, FORWARD, INFER
from ampjax.sched.decisions.parameter_changes import Update
from ampjax.sched.diagnose.statistics import StageStats
from ampjax.sched.scheduler import Scheduler


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
    executor: AnyExecutor,
    scheduler: Scheduler,
    sizes: Mapping[str, StageStats],
    directions: Iterable[str],
) -> Iterator[Ladder]:
    """The kernels to compile: every stage of the dry run at every size of its ladder, in each direction.

    A ladder ends at twice the largest dispatch of a dry run (a message counts for a row at least), or at `max_dispatch_size`; single ragged
    messages may be larger. Sizes that have been compiled before are left out. Only the trash slot is read and written.

    Args:
      executor: Runs them.
      scheduler: Knows the arenas' sizes.
      sizes: What a dry run has counted, by stage.
      directions: `forward`, `backward`, `infer`.

    Yields:
      What to compile for each stage and direction.
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
        # Twice as many as were seen, unless the limit is lower; never fewer than were seen.
        rows, messages = (max(most, min(2 * most, limit)) for most in (rows, messages))
        for direction in directions:
            if (direction == BACKWARD and stage.kind.starts_backward) or (
                direction != INFER and not stage.trains
            ):
                continue
            most = ladder_for(stage)(rows)
            # This size, and so all below it, have been compiled.
            if most <= scheduler.tables.cap_of(stage.number, direction):
                continue
            jobs = list[Callable[[], object]]()
            for idle in idle_launches(stage, direction, rows, messages, scheduler.tables.capacity):
                jobs.extend(_compilations_of(executor, scheduler, stage, idle))
            yield Ladder(jobs, partial(scheduler.tables.cap, stage.number, direction, most))


def _compilations_of(
    executor: AnyExecutor,
    scheduler: Scheduler,
    stage: Stage,
    idle: Launch,
) -> Iterator[Callable[[], object]]:
    """The compilations for launches of one size: without changes of parameters, and with each change that may come along."""
    reads = {}
    for port in stage.ports:
        reads[port.arena] = scheduler.tables.capacity(port.arena)
    yield partial(executor.warm, idle, reads)
    if _may_update(executor, scheduler, stage, idle):
        updates = [Update(node, idle.n_rows) for node in stage.params]
        bringing = idle._replace(changes=updates, brings_updates=True)
        yield partial(executor.warm, bringing, reads)
    dropped = tuple([node for node in stage.params if node in scheduler.settings.stalest])
    # Most often all gradients that may be dropped are dropped together.
    if dropped and idle.direction == BACKWARD:
        yield partial(executor.warm, idle._replace(dropped=dropped), reads)


def _may_update(
    executor: AnyExecutor,
    scheduler: Scheduler,
    stage: Stage,
    launch: Launch,
) -> bool:
    """Whether a launch of that size can bring all the gradient rows of an update of its stage's nodes."""
    brings = launch.direction == BACKWARD or (
        stage.kind.starts_backward and launch.direction == FORWARD
    )
    nodes = [node.params_name for node in stage.parameterised]
    due = bool(nodes) and scheduler.updates.are_due_after(nodes, launch.n_rows)
    return brings and due and executor.can_update_at_once(launch)
