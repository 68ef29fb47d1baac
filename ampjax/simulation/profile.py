"""How long this machine takes for each stage, measured.

What kernels take when they have the machine to themselves is measured by running one call at a time and waiting for each; what the host takes,
by its thread's processor time while devices work beside it, since that is how a run uses it. Dispatches that a run issues in one call are measured so, each with
its share. A profile is a table of numbers, which can be kept in a file and used where the machine is not at hand.
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
from ampjax.engine.kernels.looped import n_coalesced
from ampjax.errors import DataError, SettingsError
from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import FORWARD, INFER, Dispatch
from ampjax.sched.decisions.parameter_changes import Update
from ampjax.utils.bounded_reading import read_json

Times = Mapping[str, Mapping[int, float]]
"""By `direction stage`, with `, updating` or without, or `update node`: from rows to nanoseconds."""


@dataclass(frozen=True)
class Profile:
    """Times of stages and updates on a machine.

    Args:
      times: By `direction stage` (`forward linear1`, ...), `update node`, and `direction stage, updating` where a kernel makes the updates of what
        it brings: nanoseconds for some numbers of rows (an update's is 1), from the call until the device is done, of a machine that does nothing else.
      kernels: The same: the part of them that is the device's.
      issue: The same: what the call takes of the host's thread while devices work.
      control: The same: what the scheduler takes of it to choose a dispatch and to let its messages travel on.
    """

    times: Times
    kernels: Times = field(default_factory=dict)
    issue: Times = field(default_factory=dict)
    control: Times = field(default_factory=dict)

    def ns(self, what: str, rows: int, part: str = "times") -> float:
        """Nanoseconds for so many rows: between measured sizes in proportion, beyond the largest by the time of its rows.

        Args:
          what: A key of the tables.
          rows: Rows.
          part: Which table: `times`, `kernels`, `issue` or `control`.

        Raises:
          SettingsError: If it was never measured.
        """
        table: Times = getattr(self, part)
        if what not in table:
            raise SettingsError(
                f"profile, `{what}`", f"one of {sorted(table)}", "no time", "Measure the same graph and settings."
            )
        sizes, ns = (np.array(column) for column in zip(*sorted(table[what].items()), strict=True))
        if rows > sizes[-1]:
            return float(ns[-1] * rows / sizes[-1])
        return float(np.interp(rows, sizes, ns))

    def save(self, path: str | Path) -> None:
        """Writes it as JSON."""
        tables = {part: getattr(self, part) for part in PARTS}
        Path(path).write_text(json.dumps(tables), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Reads what `save` wrote.

        Raises:
          DataError: If there is no such file, or it is no profile.
        """
        try:
            found = read_json(path)
            return cls(**{part: _numbers(found[part]) for part in PARTS})
        except (OSError, ValueError, AttributeError, LookupError, TypeError, OverflowError) as error:
            raise DataError(f"{path}", "a profile", f"{error}", "Give a file that `Profile.save` wrote.") from error

    def __repr__(self) -> str:
        lines = []
        for what, sizes in self.times.items():
            most = max(sizes)
            lines.append(f"  {what}: {sizes[most] / 1e3:.1f} us for {most} rows")
        return "\n".join([f"Profile of {len(self.times)} kernels", *lines])


_UPDATING = ", updating"

PARTS = ("times", "kernels", "issue", "control")

Measured = dict[str, dict[str, dict[int, list[float]]]]
"""By part of a profile, as `Times`, with each time that was measured."""


def measure_devices(loop: Loop, executor: Executor, together: bool) -> Measured:
    """Runs a loop to its end, one call at a time, each waited for: what takes how long (`times`), and the devices' part of it (`kernels`).

    As the asyncio driver does, it decides on several dispatches (`drivers.issue_queue.AHEAD`) and then issues them, in streaks where they coalesce. Payloads are put where
    they belong at once, so a kernel may see those of a later instance: only times come out. What is compiled on the way is left out, so run the same once before.

    Args:
      loop: The run, of this executor.
      executor: Its executor.
      together: Whether kernels that can make updates do; if not, updates come after them.

    Returns:
      All times in nanoseconds.
    """
    found: Measured = {}
    waiting_ns = _waiting_ns(executor)

    def run(what: str, rows: Sequence[int], call: Callable[[], object]) -> None:
        before, start, of_host = compilations(), time.perf_counter_ns(), time.thread_time_ns()
        call()
        of_host = time.thread_time_ns() - of_host
        executor.fences.wait()
        total = max(0.0, time.perf_counter_ns() - start - waiting_ns)
        is_clean = compilations() == before
        _note(found, "times", what, rows, total if is_clean else None)
        _note(found, "kernels", what, rows, max(0.0, total - of_host) if is_clean else None)

    for decided in _decided(loop, {}):
        _carry_out(decided, loop, executor, run, together)
    return found


def measure_host(loop: Loop, executor: Executor, together: bool) -> Measured:
    """Runs a loop to its end, the host some dispatches ahead of the devices: the processor time of the host's thread (`issue` and `control`).

    Processor time, since a call that issues a kernel may return when the kernel is done, the operating system having given the core to it.
    Takes and gives what `measure_devices` does.
    """
    found: Measured = {}

    def run(what: str, rows: Sequence[int], call: Callable[[], object]) -> None:
        before, start = compilations(), time.thread_time_ns()
        call()
        of_host = time.thread_time_ns() - start
        _note(found, "issue", what, rows, of_host if compilations() == before else None)

    for decided in _decided(loop, found):
        _carry_out(decided, loop, executor, run, together)
        executor.fences.wait()
    return found


def _note(found: Measured, part: str, what: str, rows: Sequence[int], ns: float | None) -> None:
    """Keeps the time of dispatches of so many rows, an equal share for each, or only that they occurred where there is none."""
    for n in rows:
        times = found.setdefault(part, {}).setdefault(what, {}).setdefault(n, [])
        if ns is not None:
            times.append(ns / len(rows))


def _decided(loop: Loop, found: Measured) -> Iterator[list[Dispatch]]:
    """A run's dispatches, as many at a time as are decided before they are issued, `done` by then unless they read; what choosing them took is kept as `control`."""
    workers = range(loop.scheduler.plan.workers)
    waiting: list[Dispatch] = []
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
        waiting.append(dispatch)
        ns = time.thread_time_ns() - start
        if loop.scheduler.reads(dispatch):
            yield waiting
            waiting = []
        start = time.thread_time_ns()
        loop.done(dispatch)
        ns += time.thread_time_ns() - start
        if dispatch.stage >= 0:
            _note(found, "control", what_of(loop.scheduler.plan, dispatch), [max(1, dispatch.n_rows)], ns)
        if len(waiting) >= AHEAD[0] or sum(d.n_messages for d in waiting) >= AHEAD[1]:
            yield waiting
            waiting = []


Run = Callable[[str, Sequence[int], Callable[[], object]], None]
"""`run(what, rows, call)`: makes a call for dispatches of so many rows each, and keeps its time."""


def _carry_out(dispatches: Sequence[Dispatch], loop: Loop, executor: Executor, run: Run, together: bool) -> None:
    """Hands the parts of dispatches to `run`, in streaks where they coalesce. Updates are parts of their own, or `together` with the kernel that can make them."""
    launches = [loop.launch_of(dispatch) for dispatch in dispatches]
    plan, place = loop.scheduler.plan, 0
    while place < len(launches):
        end = place + n_coalesced(launches[place], launches[place + 1 :], executor.can_coalesce)
        streak, last, place = launches[place:end], dispatches[end - 1], end
        rows = [max(1, launch.n_rows) for launch in streak]
        if together and last.stage >= 0 and executor.updates_at_once(streak[-1]):
            run(updating(plan, last), rows, partial(executor.run, streak))
            continue
        if last.stage >= 0:
            alone = [launch._replace(changes=(), brings_updates=False) for launch in streak]
            run(what_of(plan, last), rows, partial(executor.run, alone))
        for change in last.changes:
            what = f"update {change.node}" if isinstance(change, Update) else "replicas"
            run(what, [1], partial(executor.change, change))


def what_of(plan: Plan, dispatch: Dispatch) -> str:
    """What a dispatch's time is kept under; inference takes the time of training's way forward, where alone it was measured."""
    return f"{FORWARD if dispatch.direction == INFER else dispatch.direction} {plan.stages[dispatch.stage].name}"


def updating(plan: Plan, dispatch: Dispatch) -> str:
    """What the time of a dispatch is kept under whose kernel makes its updates."""
    return what_of(plan, dispatch) + _UPDATING


def has_updating(found: Measured) -> bool:
    """Whether kernels have made updates."""
    return any(what.endswith(_UPDATING) for what in found.get("issue", ()))


def medians(passes: Sequence[Measured]) -> Profile:
    """A profile from all times of some passes."""
    joined: Measured = {part: {} for part in PARTS}
    for part, found in ((part, found) for tables in passes for part, found in tables.items()):
        for what, sizes in found.items():
            for rows, ns in sizes.items():
                if ns:
                    joined[part].setdefault(what, {}).setdefault(rows, []).extend(ns)
    return Profile(
        **{
            part: {what: {rows: float(np.median(ns)) for rows, ns in sizes.items()} for what, sizes in found.items()}
            for part, found in joined.items()
        }
    )


def _numbers(table: Mapping[str, Mapping[str, Any]]) -> Times:
    """A table as it was before it became JSON.

    Raises:
      ValueError: If it holds what no measurement gives.
    """
    numbers = {what: {int(n): float(ns) for n, ns in sizes.items()} for what, sizes in table.items()}
    for what, sizes in numbers.items():
        if not sizes or not all(n > 0 and 0 <= ns < math.inf for n, ns in sizes.items()):
            raise ValueError(f"times of `{what}` that are none: {sizes!r:.60}")
    return numbers


def _waiting_ns(executor: Executor) -> float:
    """What waiting takes where there is nothing to wait for."""
    executor.fences.wait()
    times = []
    for _ in range(20):
        start = time.perf_counter_ns()
        executor.fences.wait()
        times.append(time.perf_counter_ns() - start)
    return float(np.median(times))
