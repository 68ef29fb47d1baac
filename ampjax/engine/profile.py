"""How long this machine takes for each stage, measured, and a cost model made from it.

A profile is measured by running instances one dispatch at a time and waiting for each, so it holds what kernels take when they have the machine
to themselves; it is a table of numbers, which can be kept in a file and used where the machine is not at hand.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ampjax.engine.cost import FlopsCost
from ampjax.engine.executor import Executor
from ampjax.engine.loop import Loop
from ampjax.errors import DataError, SettingsError
from ampjax.sched.dispatch import Dispatch, Update
from ampjax.sched.plan import Plan
from ampjax.sched.queues import FORWARD, INFER

Times = Mapping[str, Mapping[int, float]]
"""By `direction stage`, or `update node`: from rows to nanoseconds."""


@dataclass(frozen=True)
class Profile:
    """Times of stages and updates on a machine.

    Args:
      times: By `direction stage` (`forward linear1`, ...) and `update node`: nanoseconds for some numbers of rows (an update's is 1).
    """

    times: Times

    def ns(self, what: str, rows: int) -> float:
        """Nanoseconds for so many rows: between measured sizes in proportion, beyond the largest by the time of its rows.

        Raises:
          SettingsError: If it was never measured.
        """
        if what not in self.times:
            raise SettingsError(
                f"profile, `{what}`", f"one of {sorted(self.times)}", "no time", "Measure the same graph and settings."
            )
        sizes, ns = (np.array(column) for column in zip(*sorted(self.times[what].items()), strict=True))
        if rows > sizes[-1]:
            return float(ns[-1] * rows / sizes[-1])
        return float(np.interp(rows, sizes, ns))

    def save(self, path: str | Path) -> None:
        """Writes it as JSON."""
        Path(path).write_text(json.dumps({what: dict(sizes) for what, sizes in self.times.items()}), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Reads what `save` wrote.

        Raises:
          DataError: If there is no such file, or it is no profile.
        """
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls({what: {int(n): float(ns) for n, ns in sizes.items()} for what, sizes in found.items()})
        except (OSError, ValueError, AttributeError) as error:
            raise DataError(f"{path}", "a profile", f"{error}", "Give a file that `Profile.save` wrote.") from error

    def __repr__(self) -> str:
        lines = []
        for what, sizes in self.times.items():
            most = max(sizes)
            lines.append(f"  {what}: {sizes[most] / 1e3:.1f} us for {most} rows")
        return "\n".join([f"Profile of {len(self.times)} kernels", *lines])


Measured = dict[str, dict[int, list[float]]]
"""As `Times`, with each time that was measured."""


def measure(loop: Loop, executor: Executor) -> Measured:
    """Runs a loop to its end, one dispatch at a time, each waited for.

    Kernels that are compiled on the way count with their compilation, so run the same once before.

    Args:
      loop: The run, of this executor.
      executor: Its executor.

    Returns:
      All times in nanoseconds.
    """
    found: Measured = {}

    def note(what: str, rows: int, start: float) -> None:
        executor.wait()
        ns = time.perf_counter_ns() - start - waiting_ns
        found.setdefault(what, {}).setdefault(rows, []).append(max(0.0, ns))

    waiting_ns = _waiting_ns(executor)
    scheduler, workers = loop.scheduler, range(loop.scheduler.plan.workers)
    loop.settle()
    while True:
        dispatches = (scheduler.next(worker) for worker in workers)
        dispatch = next((d for d in dispatches if d is not None), None)
        if dispatch is None:
            if loop.finished():
                return found
            continue
        start = time.perf_counter_ns()
        executor.run(dispatch, scheduler)
        if dispatch.stage is not None:
            note(_name(dispatch), max(1, dispatch.n_rows), start)
        start = time.perf_counter_ns()
        executor.change(dispatch)
        for change in dispatch.changes:
            if isinstance(change, Update):
                note(f"update {change.node}", 1, start)
                start = time.perf_counter_ns()
        loop.done(dispatch)


def medians(passes: Sequence[Measured]) -> Profile:
    """A profile from all times of some passes."""
    joined: Measured = {}
    for found in passes:
        for what, sizes in found.items():
            for rows, ns in sizes.items():
                joined.setdefault(what, {}).setdefault(rows, []).extend(ns)
    return Profile({what: {rows: float(np.median(ns)) for rows, ns in sizes.items()} for what, sizes in joined.items()})


@dataclass(frozen=True)
class ProfileCost:
    """A machine whose devices are as fast as the one that was measured; its fully connected layers may run on faster devices.

    With `flops`, stages with fully connected layers take their flops' time and everything else its measured time: what the paper's table 3
    did, whose authors replaced such layers by waits and ran the rest (Appendix C).

    Args:
      plan: The plan; stages and nodes must have the names of those that were measured.
      profile: Measured times.
      flops: Operations per second for fully connected layers; None for measured times.
    """

    plan: Plan
    profile: Profile
    flops: FlopsCost | None = None

    def __call__(self, dispatch: Dispatch) -> int:
        """Nanoseconds that a dispatch takes."""
        if self.flops is not None and self.flops.has_layers(dispatch):
            return self.flops(dispatch)
        ns = self.profile.ns(_name(dispatch), dispatch.n_rows) if dispatch.stage is not None else 0.0
        updated = [change.node for change in dispatch.changes if isinstance(change, Update)]
        return round(ns + sum(self.profile.ns(f"update {node}", 1) for node in updated))


def _name(dispatch: Dispatch) -> str:
    """What a dispatch's time is kept under; inference takes the time of training's way forward, where alone it was measured."""
    assert dispatch.stage is not None
    return f"{FORWARD if dispatch.direction == INFER else dispatch.direction} {dispatch.stage.name}"


def _waiting_ns(executor: Executor) -> float:
    """What waiting takes where there is nothing to wait for."""
    executor.wait()
    times = []
    for _ in range(20):
        start = time.perf_counter_ns()
        executor.wait()
        times.append(time.perf_counter_ns() - start)
    return float(np.median(times))
