"""Measures the calls of a training run, one pass at a time.

Kernels are measured one call at a time, each waited for, so that each has the machine to itself. The host is measured by its thread's
processor time while devices work beside it, since that is how a run uses it. Dispatches that a run issues in one call are measured
together, and each gets an equal share. Where a few sizes of dispatches will do, the other calls are left out, and nothing is compiled for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from ampjax.drivers.asyncio_driver import AsyncioDriver
from ampjax.drivers.controller import InstanceSource
from ampjax.drivers.issue_queue import AHEAD
from ampjax.drivers.run import DriverLoop
from ampjax.engine.executor import Executor
from ampjax.engine.kernels.coalescing import n_coalesced
from ampjax.engine.kernels.launch import Launch
from ampjax.engine.timing.compilation_count import compilations
from ampjax.ir.instances import Instances
from ampjax.plan.ladders import ladder_for
from ampjax.plan.passes import Pass
from ampjax.plan.row_seeds import RowSeeds
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.scheduler import Scheduler
from ampjax.simulation.calls import Calls
from ampjax.simulation.profile import (
    UPDATING,
    Measured,
    note,
    timing_key,
    timing_key_with_updates,
    update_key,
)

Measure = Callable[[DriverLoop, Executor, bool, Calls], Measured]
"""Runs a loop and measures those calls that are wanted; the third argument says whether kernels make the updates that they can make."""


def measure_devices(
    loop: DriverLoop, executor: Executor, updates_in_kernels: bool, wanted: Calls
) -> Measured:
    """Runs a loop to its end and waits for each call: measures the time of each (`times`), and the devices' part (`kernels`).

    Like the asyncio driver it decides on several dispatches (`drivers.issue_queue.AHEAD`) and then issues them, in one call where they
    coalesce. Payloads are put where they belong at once, so a kernel may see those of a later instance: only times come out. A call that
    compiles is left out, so run the same once before.

    Args:
      loop: The run, of this executor.
      executor: Its executor.
      updates_in_kernels: Whether kernels that can make updates do so; if not, updates are calls of their own.
      wanted: Which calls are made.

    Returns:
      All times in nanoseconds.

    Raises:
      DeadlockError: If nothing can move.
    """
    measured: Measured = {}
    waiting_ns = _waiting_ns(executor)

    def time_stage(
        key: str,
        rows: Sequence[int],
        call: Callable[[], object],
    ) -> None:
        before = compilations()
        start = time.perf_counter_ns()
        host_start = time.thread_time_ns()
        call()
        host_ns = time.thread_time_ns() - host_start
        executor.fences.wait()
        total = max(0.0, time.perf_counter_ns() - start - waiting_ns)
        is_clean = compilations() == before
        note(measured, "times", key, rows, total if is_clean else None)
        note(
            measured,
            "kernels",
            key,
            rows,
            max(0.0, total - host_ns) if is_clean else None,
        )

    for decided in _group_decided(loop, {}):
        _carry_out(decided, loop, executor, time_stage, updates_in_kernels, wanted)
    return measured


def measure_host(
    loop: DriverLoop, executor: Executor, updates_in_kernels: bool, wanted: Calls
) -> Measured:
    """Runs a loop to its end, the host some dispatches ahead of the devices: measures the host's thread (`issue` and `control`).

    It measures processor time. The time on a clock would say little: the operating system may give the core to the kernel that a call
    issues, and the call returns when the kernel is done.

    Args:
      loop: The run, of this executor.
      executor: Its executor.
      updates_in_kernels: Whether kernels that can make updates do so; if not, updates are calls of their own.
      wanted: Which calls are made.

    Returns:
      All times in nanoseconds.

    Raises:
      DeadlockError: If nothing can move.
    """
    measured: Measured = {}

    def timed(
        key: str,
        rows: Sequence[int],
        call: Callable[[], object],
    ) -> None:
        before = compilations()
        start = time.thread_time_ns()
        call()
        host_ns = time.thread_time_ns() - start
        note(measured, "issue", key, rows, host_ns if compilations() == before else None)

    for decided in _group_decided(loop, measured):
        _carry_out(decided, loop, executor, timed, updates_in_kernels, wanted)
        executor.fences.wait()
    return measured


def _group_decided(loop: DriverLoop, measured: Measured) -> Iterator[list[Decided]]:
    """Yields a run's dispatches in the groups in which they are decided before their issue.

    Each is `done` as soon as it has been decided, unless it reads payloads; its launch is made before, while its instances are known. What the
    scheduler took for it is kept as `control`.
    """
    workers = range(loop.scheduler.plan.workers)
    waiting: list[Decided] = []
    loop.settle()
    while True:
        start = time.thread_time_ns()
        chosen = (loop.scheduler.next(worker) for worker in workers)
        dispatch = next((d for d in chosen if d is not None), None)
        if dispatch is None:
            if waiting:
                yield waiting
                waiting = []
            if loop.is_finished():
                return
            continue
        waiting.append((dispatch, loop.launch_of(dispatch)))
        ns = time.thread_time_ns() - start
        if loop.scheduler.contents.reads(dispatch):
            yield waiting
            waiting = []
        start = time.thread_time_ns()
        loop.done(dispatch)
        ns += time.thread_time_ns() - start
        if dispatch.stage >= 0:
            note(
                measured,
                "control",
                timing_key(loop.scheduler.plan, dispatch),
                [max(1, dispatch.n_rows)],
                ns,
            )
        if len(waiting) >= AHEAD[0] or sum(d.n_messages for d, _ in waiting) >= AHEAD[1]:
            yield waiting
            waiting = []


Decided = tuple[Dispatch, Launch]
"""A dispatch and its launch."""

Timed = Callable[[str, Sequence[int], Callable[[], object]], None]
"""`timed(key, rows, call)`: makes a call for dispatches of `rows` rows each, and keeps its time under a key."""


def _carry_out(
    decided: Sequence[Decided],
    loop: DriverLoop,
    executor: Executor,
    timed: Timed,
    updates_in_kernels: bool,
    wanted: Calls,
) -> None:
    """Makes and times the calls of some dispatches, one call for dispatches that coalesce, if wanted.

    An update is a call of its own; with `updates_in_kernels` the kernel makes it, where it can.
    """
    dispatches, launches = [list(column) for column in zip(*decided, strict=True)]
    plan = loop.scheduler.plan
    place = 0
    while place < len(launches):
        end = place + n_coalesced(launches[place], launches[place + 1 :], executor.can_coalesce)
        coalesced = launches[place:end]
        last = dispatches[end - 1]
        place = end
        rows = [max(1, launch.n_rows) for launch in coalesced]
        if last.stage >= 0:
            at_once = updates_in_kernels and executor.backward_runs.updates_at_once(coalesced[-1])
            key = timing_key_with_updates(plan, last) if at_once else timing_key(plan, last)
            is_wanted = wanted.want(
                key,
                ladder_for(plan.stages[last.stage])(rows[0]),
                len(rows) > 1,
            )
            if at_once:
                launched = coalesced
            else:
                launched = [n._replace(changes=(), brings_updates=False) for n in coalesced]
            if is_wanted or not executor.leave_out(launched):
                timed(key, rows, partial(executor.run, launched))
            if at_once:
                continue
        for change in last.changes:
            key = update_key(change) or "replicas"
            timed(key, [1], partial(executor.change, change))


def has_updates_in_kernels(measured: Measured) -> bool:
    """Tells whether some kernels have made updates."""
    return any(key.endswith(UPDATING) for key in measured.get("issue", ()))


def _waiting_ns(executor: Executor) -> float:
    """Nanoseconds that waiting takes where there is nothing to wait for."""
    executor.fences.wait()
    times = []
    for _ in range(20):
        start = time.perf_counter_ns()
        executor.fences.wait()
        times.append(time.perf_counter_ns() - start)
    return float(np.median(times))


async def driver_ns(loop: DriverLoop, run_ahead: int) -> float:
    """Runs a loop to its end as a trainer does, and measures the driver's thread.

    Args:
      loop: The run, with its executor.
      run_ahead: Dispatches that a worker may have issued before its device has done them, about.

    Returns:
      Nanoseconds of processor time for a dispatch: the calls of kernels, control, and all that is between them.

    Raises:
      DeadlockError: If nothing can move.
    """
    before = loop.scheduler.counts.read().dispatches
    start = time.thread_time_ns()
    await AsyncioDriver(loop, run_ahead).run()
    return (time.thread_time_ns() - start) / max(
        1, loop.scheduler.counts.read().dispatches - before
    )


def host_ns(measured: Measured) -> float:
    """Computes the mean nanoseconds for a dispatch from the results of `measure_host`."""
    times = {}
    for part in ("issue", "control"):
        times[part] = [
            ns
            for sizes in measured.get(part, {}).values()
            for found in sizes.values()
            for ns in found
        ]
    return (sum(times["issue"]) + sum(times["control"])) / max(1, len(times["control"]))


def training_times(
    scheduler: Scheduler,
    executor: Executor,
    instances: Instances,
    seed: int = 0,
    most: float = math.inf,
    sizes: Mapping[str, Iterable[int]] | None = None,
    check: Callable[[], object] = lambda: None,
) -> Iterator[list[Measured]]:
    """Measures a training run's kernels, and the host for each, with a scheduler and an executor that are there, again and again.

    The executor's parameters are trained on rows that may belong to other instances, so they are of no use afterwards.

    Args:
      scheduler: Decides; nothing is in flight.
      executor: Computes.
      instances: What is trained on, in order.
      seed: Of random bodies.
      most: Calls of a size that a pass measures.
      sizes: The padded sizes to measure, by key; None for all.
      check: Called before each call; what it raises ends the run.

    Yields:
      For `medians`: the times of each pass, without end.

    Raises:
      DeadlockError: If nothing can move.
    """

    def measured(measure: Measure, inside: bool, most: float = most) -> Measured:
        return measured_pass(
            scheduler,
            executor,
            instances,
            measure,
            inside,
            Calls(most, sizes, check),
            seed=seed,
        )

    # Once each to compile everything, and to see whether there are updates that kernels can make.
    once = most if most == math.inf else 1
    measured(measure_host, False, once)
    if has_updates_in_kernels(measured(measure_host, True, once)):
        in_kernels = (False, True)
    else:
        in_kernels = (False,)
    while True:
        yield [
            measured(measure, inside)
            for measure in (measure_devices, measure_host)
            for inside in in_kernels
        ]


def calls_of(
    scheduler: Scheduler, executor: Executor, instances: Instances, seed: int = 0
) -> Calls:
    """Lists the calls of a training run, with and without updates in kernels, without making calls that can be left out.

    Args:
      scheduler: Decides; nothing is in flight.
      executor: Would compute.
      instances: What is trained on, in order.
      seed: Of random bodies.
    """
    calls = Calls(most=0)
    for inside in (False, True):
        measured_pass(scheduler, executor, instances, measure_host, inside, calls, seed=seed)
    return calls


def rehearse(
    scheduler: Scheduler,
    executor: Executor,
    instances: Instances,
    seed: int,
    check: Callable[[], object],
) -> None:
    """Compiles all kernels of a training run, by making each call once; parameters are of no use afterwards.

    Args:
      scheduler: Decides; nothing is in flight.
      executor: Computes.
      instances: What is trained on, in order.
      seed: Of random bodies.
      check: Called before each call; what it raises ends the run.
    """
    measured_pass(
        scheduler,
        executor,
        instances,
        measure_host,
        True,
        Calls(1, None, check),
        seed=seed,
    )


def measured_pass(
    scheduler: Scheduler,
    executor: Executor,
    instances: Instances,
    measure: Measure,
    updates_in_kernels: bool,
    wanted: Calls,
    *,
    purpose: str = "train",
    seed: int = 0,
) -> Measured:
    """Measures one pass.

    Args:
      scheduler: Decides; nothing is in flight.
      executor: Computes.
      instances: What is run, in order.
      measure: `measure_devices` or `measure_host`.
      updates_in_kernels: As these take it.
      wanted: Which calls are made.
      purpose: What the instances are run for, one of `passes.PURPOSES`.
      seed: Of random bodies.

    Raises:
      DeadlockError: If nothing can move.
    """
    loop = loop_over(scheduler, executor, instances, purpose, seed)
    try:
        return measure(loop, executor, updates_in_kernels, wanted)
    finally:
        executor.abandon()


def loop_over(
    scheduler: Scheduler,
    executor: Executor,
    instances: Instances,
    purpose: str = "train",
    seed: int = 0,
) -> DriverLoop:
    """A run of some instances, in order.

    Args:
      scheduler: Decides; nothing is in flight.
      executor: Computes.
      instances: The instances.
      purpose: What they are run for, one of `passes.PURPOSES`.
      seed: Of random bodies.
    """
    whole = Pass(
        instances,
        np.arange(len(instances)),
        purpose,
        seeds=RowSeeds(seed),
    )
    return DriverLoop(scheduler, executor, [InstanceSource(scheduler, whole)])
