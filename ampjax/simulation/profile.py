"""How long this machine takes for each stage, measured.

Kernels are measured one call at a time, each waited for, so that each has the machine to itself. The host is measured by its thread's
processor time while devices work beside it, since that is how a run uses it. Dispatches that a run issues in one call are measured
together, and each gets an equal share. A profile is a table of numbers, which can be kept in a file and used where the machine is not at
hand.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.drivers.issue_queue import AHEAD
from ampjax.drivers.run import Loop
from ampjax.engine.compilation import compilations
from ampjax.engine.executor import Executor
from ampjax.engine.kernels.coalescing import n_coalesced
from ampjax.engine.kernels.launch import Launch
from ampjax.errors import DataError, SettingsError
from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import FORWARD, INFER, Dispatch
from ampjax.sched.decisions.parameter_changes import Update
from ampjax.utils.bounded_reading import read_json
from ampjax.utils.counted import counted

Times = Mapping[str, Mapping[int, float]]
"""By `direction stage`, with `, updating` or without, or `update node`: from rows to nanoseconds."""


@dataclass(frozen=True)
class Profile:
    """Measured times of stages and updates on a machine; `amp.profile` makes it.

    Args:
      times: Nanoseconds from the call until the device is done, on a machine that does nothing else, for some numbers of rows (1 for an
        update). The keys are `direction stage` (`forward linear1`, ...), `update node`, and `direction stage, updating` for a kernel that
        also makes the updates.
      kernels: With the same keys: the device's part of these times.
      issue: With the same keys: the time of the host's thread for the call, while devices work.
      control: With the same keys: the time of the scheduler to choose a dispatch and to let its messages travel on.
    """

    times: Times
    kernels: Times = field(default_factory=dict)
    issue: Times = field(default_factory=dict)
    control: Times = field(default_factory=dict)

    def ns(self, key: str, rows: int, part: str = "times") -> float:
        """The time for a number of rows: interpolated between measured sizes; beyond the largest size, in proportion to the rows.

        Args:
          key: A key of the tables.
          rows: Number of rows.
          part: Which table: `times`, `kernels`, `issue` or `control`.

        Returns:
          Nanoseconds.

        Raises:
          SettingsError: If it was never measured.
        """
        table: Times = getattr(self, part)
        if key not in table:
            raise SettingsError(
                f"profile, `{key}`", f"one of {sorted(table)}", "no time", "Measure the same graph and settings."
            )
        sizes, ns = (np.array(column) for column in zip(*sorted(table[key].items()), strict=True))
        if rows > sizes[-1]:
            return float(ns[-1] * rows / sizes[-1])
        return float(np.interp(rows, sizes, ns))

    def save(self, path: str | Path) -> None:
        """Writes the tables as JSON.

        Args:
          path: The file; one that is there is replaced.

        Raises:
          OSError: If it can't be written.
        """
        tables = {part: getattr(self, part) for part in PARTS}
        Path(path).write_text(json.dumps(tables), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Reads what `save` wrote.

        Args:
          path: The file.

        Returns:
          The profile.

        Raises:
          DataError: If there is no such file, or it is no profile.
        """
        try:
            tables = read_json(path)
            return cls(**{part: _numbers(tables[part]) for part in PARTS})
        except (OSError, ValueError, AttributeError, LookupError, TypeError, OverflowError) as error:
            raise DataError(f"{path}", "a profile", f"{error}", "Give a file that `Profile.save` wrote.") from error

    def __repr__(self) -> str:
        lines = []
        for key, sizes in self.times.items():
            most = max(sizes)
            lines.append(f"  {key}: {sizes[most] / 1e3:.1f} us for {counted(most, 'row')}")
        return "\n".join([f"Profile of {len(self.times)} kernels", *lines])


_UPDATING = ", updating"

PARTS = ("times", "kernels", "issue", "control")

Measured = dict[str, dict[str, dict[int, list[float]]]]
"""By part of a profile, as `Times`, with each time that was measured."""


def measure_devices(loop: Loop, executor: Executor, updates_in_kernels: bool) -> Measured:
    """Runs a loop to its end and waits for each call: measures the time of each (`times`), and the devices' part of it (`kernels`).

    Like the asyncio driver it decides on several dispatches (`drivers.issue_queue.AHEAD`) and then issues them, in one call where they
    coalesce. Payloads are put where they belong at once, so a kernel may see those of a later instance: only times come out. A call that
    compiles is left out, so run the same once before.

    Args:
      loop: The run, of this executor.
      executor: Its executor.
      updates_in_kernels: Whether kernels that can make updates do so; if not, updates are calls of their own.

    Returns:
      All times in nanoseconds.

    Raises:
      DeadlockError: If nothing can move.
    """
    measured: Measured = {}
    waiting_ns = _waiting_ns(executor)

    def timed(key: str, rows: Sequence[int], call: Callable[[], object]) -> None:
        before, start, host_start = compilations(), time.perf_counter_ns(), time.thread_time_ns()
        call()
        host_ns = time.thread_time_ns() - host_start
        executor.fences.wait()
        total = max(0.0, time.perf_counter_ns() - start - waiting_ns)
        is_clean = compilations() == before
        _note(measured, "times", key, rows, total if is_clean else None)
        _note(measured, "kernels", key, rows, max(0.0, total - host_ns) if is_clean else None)

    for decided in _decided(loop, {}):
        _carry_out(decided, loop, executor, timed, updates_in_kernels)
    return measured


def measure_host(loop: Loop, executor: Executor, updates_in_kernels: bool) -> Measured:
    """Runs a loop to its end, the host some dispatches ahead of the devices: measures the host's thread (`issue` and `control`).

    It measures processor time. The time on a clock would say little: the operating system may give the core to the kernel that a call
    issues, and the call returns when the kernel is done.

    Args:
      loop: The run, of this executor.
      executor: Its executor.
      updates_in_kernels: Whether kernels that can make updates do so; if not, updates are calls of their own.

    Returns:
      All times in nanoseconds.

    Raises:
      DeadlockError: If nothing can move.
    """
    measured: Measured = {}

    def timed(key: str, rows: Sequence[int], call: Callable[[], object]) -> None:
        before, start = compilations(), time.thread_time_ns()
        call()
        host_ns = time.thread_time_ns() - start
        _note(measured, "issue", key, rows, host_ns if compilations() == before else None)

    for decided in _decided(loop, measured):
        _carry_out(decided, loop, executor, timed, updates_in_kernels)
        executor.fences.wait()
    return measured


def _note(measured: Measured, part: str, key: str, rows: Sequence[int], ns: float | None) -> None:
    """Keeps the time of a call for dispatches of `rows` rows each, an equal share for each; None keeps only that there was such a call."""
    for n in rows:
        times = measured.setdefault(part, {}).setdefault(key, {}).setdefault(n, [])
        if ns is not None:
            times.append(ns / len(rows))


def _decided(loop: Loop, measured: Measured) -> Iterator[list[Decided]]:
    """Lets a run decide on its dispatches, and gives as many at a time as are decided before they are issued.

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
            if loop.finished():
                return
            continue
        ns = time.thread_time_ns() - start
        waiting.append((dispatch, loop.launch_of(dispatch)))
        if loop.scheduler.contents.reads(dispatch):
            yield waiting
            waiting = []
        start = time.thread_time_ns()
        loop.done(dispatch)
        ns += time.thread_time_ns() - start
        if dispatch.stage >= 0:
            _note(measured, "control", timing_key(loop.scheduler.plan, dispatch), [max(1, dispatch.n_rows)], ns)
        if len(waiting) >= AHEAD[0] or sum(d.n_messages for d, _ in waiting) >= AHEAD[1]:
            yield waiting
            waiting = []


Decided = tuple[Dispatch, Launch]
"""A dispatch and its launch."""

Timed = Callable[[str, Sequence[int], Callable[[], object]], None]
"""`timed(key, rows, call)`: makes a call for dispatches of `rows` rows each, and keeps its time under a key."""


def _carry_out(
    decided: Sequence[Decided], loop: Loop, executor: Executor, timed: Timed, updates_in_kernels: bool
) -> None:
    """Makes and times the calls of some dispatches, one for those that coalesce.

    An update is a call of its own; with `updates_in_kernels` the kernel makes it, where it can.
    """
    dispatches, launches = [list(column) for column in zip(*decided, strict=True)]
    plan, place = loop.scheduler.plan, 0
    while place < len(launches):
        end = place + n_coalesced(launches[place], launches[place + 1 :], executor.can_coalesce)
        coalesced, last, place = launches[place:end], dispatches[end - 1], end
        rows = [max(1, launch.n_rows) for launch in coalesced]
        if updates_in_kernels and last.stage >= 0 and executor.backward_runs.updates_at_once(coalesced[-1]):
            timed(timing_key_with_updates(plan, last), rows, partial(executor.run, coalesced))
            continue
        if last.stage >= 0:
            without_changes = [launch._replace(changes=(), brings_updates=False) for launch in coalesced]
            timed(timing_key(plan, last), rows, partial(executor.run, without_changes))
        for change in last.changes:
            key = f"update {change.node}" if isinstance(change, Update) else "replicas"
            timed(key, [1], partial(executor.change, change))


def timing_key(plan: Plan, dispatch: Dispatch) -> str:
    """The key of a profile's tables for what a dispatch runs: `forward linear1`.

    Inference has the key of the forward pass of training, as only that was measured.

    Args:
      plan: The plan.
      dispatch: A dispatch with a stage.
    """
    return f"{FORWARD if dispatch.direction == INFER else dispatch.direction} {plan.stages[dispatch.stage].name}"


def timing_key_with_updates(plan: Plan, dispatch: Dispatch) -> str:
    """The key for a dispatch whose kernel also makes its updates: `backward linear1, updating`.

    Args:
      plan: The plan.
      dispatch: A dispatch with a stage.
    """
    return timing_key(plan, dispatch) + _UPDATING


def has_updates_in_kernels(measured: Measured) -> bool:
    """Whether some kernels have made updates."""
    return any(key.endswith(_UPDATING) for key in measured.get("issue", ()))


def medians(passes: Sequence[Measured]) -> Profile:
    """A profile of the medians of what some passes have measured."""
    return Profile(**{part: _of_sizes(times, np.median) for part, times in _joined(passes).items()})


def quickest(passes: Sequence[Measured]) -> Profile:
    """A profile of the least times that some passes have measured; nothing takes longer than the same with more rows.

    Other programs on the machine only add to a time, so a few passes beside them tell more by their least times than by their medians.
    """
    least = {part: _of_sizes(times, np.min) for part, times in _joined(passes).items()}
    return Profile(**{part: {key: _rising(times) for key, times in table.items()} for part, table in least.items()})


def _joined(passes: Sequence[Measured]) -> Measured:
    joined: Measured = {part: {} for part in PARTS}
    for part, table in ((part, table) for tables in passes for part, table in tables.items()):
        for key, sizes in table.items():
            for rows, ns in sizes.items():
                if ns:
                    joined[part].setdefault(key, {}).setdefault(rows, []).extend(ns)
    return joined


def _of_sizes(
    table: Mapping[str, Mapping[int, list[float]]], statistic: Callable[[list[float]], Any]
) -> dict[str, dict[int, float]]:
    return {key: {rows: float(statistic(ns)) for rows, ns in sizes.items()} for key, sizes in table.items()}


def _rising(times: Mapping[int, float]) -> dict[int, float]:
    """Times that never fall with the number of rows: each is lowered to the least of those with more rows."""
    rows = sorted(times)
    least = np.minimum.accumulate([times[n] for n in reversed(rows)])[::-1]
    return {n: float(ns) for n, ns in zip(rows, least, strict=True)}


def _numbers(table: Mapping[str, Mapping[str, Any]]) -> Times:
    """A table as it was before it became JSON.

    Raises:
      ValueError: If it holds what no measurement gives.
    """
    numbers = {key: {int(n): float(ns) for n, ns in sizes.items()} for key, sizes in table.items()}
    for key, sizes in numbers.items():
        if not sizes or not all(n > 0 and 0 <= ns < math.inf for n, ns in sizes.items()):
            raise ValueError(f"times of `{key}` that are none: {sizes!r:.60}")
    return numbers


def _waiting_ns(executor: Executor) -> float:
    """Nanoseconds that waiting takes where there is nothing to wait for."""
    executor.fences.wait()
    times = []
    for _ in range(20):
        start = time.perf_counter_ns()
        executor.fences.wait()
        times.append(time.perf_counter_ns() - start)
    return float(np.median(times))
