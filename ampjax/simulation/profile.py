"""A profile: this machine's time for each stage, measured by `measuring`: numbers in a table, which can be saved and used elsewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.errors import DataError, SettingsError
from ampjax.plan.planner import Plan
from ampjax.sched.decisions.dispatch import FORWARD, INFER, Dispatch
from ampjax.sched.decisions.parameter_changes import Change, JointUpdate, Update
from ampjax.utils.bounded_reading import read_json
from ampjax.utils.counted import count_of

Times = Mapping[str, Mapping[int, float]]
"""By `direction stage`, with `, updating` or without, or `update node`: from rows to nanoseconds."""


@dataclass(frozen=True)
class Profile:
    """Measured times of stages and updates on a machine; made by `amp.profile`.

    Args:
      times: Nanoseconds from the call until the device is done, on a machine that does nothing else, for some numbers of rows (1 for an
        update). The keys are `direction stage` (`forward linear1`, ...), `update node`, and `direction stage, updating` for a kernel that
        also makes the updates.
      kernels: With the same keys: the device's part of these times.
      issue: With the same keys: the time of the host's thread for the call, while devices work.
      control: With the same keys: the time of the host's thread to choose a dispatch, to let its messages travel on, and for whatever else a driver does.
    """

    times: Times
    kernels: Times = field(default_factory=dict)
    issue: Times = field(default_factory=dict)
    control: Times = field(default_factory=dict)

    def ns(
        self,
        key: str,
        rows: int,
        part: str = "times",
    ) -> float:
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
                f"profile, `{key}`",
                f"one of {sorted(table)}",
                "no time",
                "Measure the same graph and settings.",
            )
        sizes, ns = (np.array(column) for column in zip(*sorted(table[key].items()), strict=True))
        if rows > sizes[-1]:
            return float(ns[-1] * rows / sizes[-1])
        return float(np.interp(rows, sizes, ns))

    def with_control(self, ns: float) -> Profile:
        """The profile of a host that needs more time for each dispatch.

        Args:
          ns: Nanoseconds more.
        """
        return replace(
            self,
            control={
                key: {n: t + ns for n, t in sizes.items()} for key, sizes in self.control.items()
            },
        )

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
        """Reads a file written by `save`.

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
        except (
            OSError,
            ValueError,
            AttributeError,
            LookupError,
            TypeError,
            OverflowError,
        ) as error:
            raise DataError(
                f"{path}", "a profile", f"{error}", "Give a file that `Profile.save` wrote."
            ) from error

    def __repr__(self) -> str:
        lines = []
        for key, sizes in self.times.items():
            most = max(sizes)
            lines.append(f"  {key}: {sizes[most] / 1e3:.1f} us for {count_of(most, 'row')}")
        return "\n".join([f"Profile of {len(self.times)} kernels", *lines])


UPDATING = ", updating"
"""How the key of a kernel ends that also makes the updates."""

PARTS = ("times", "kernels", "issue", "control")

Measured = dict[str, dict[str, dict[int, list[float]]]]
"""By part of a profile, as `Times`, with each time that was measured."""


def note(
    measured: Measured,
    part: str,
    key: str,
    rows: Sequence[int],
    ns: float | None,
) -> None:
    """Keeps the time of a call for dispatches, an equal share for each.

    Args:
      measured: Where.
      part: A part of a profile.
      key: A key of its tables.
      rows: The rows of each dispatch.
      ns: Nanoseconds; None keeps only that there was such a call.
    """
    for n in rows:
        times = (
            measured.setdefault(part, {})
            .setdefault(key, {})
            .setdefault(
                n,
                [],
            )
        )
        if ns is not None:
            times.append(ns / len(rows))


def timing_key(plan: Plan, dispatch: Dispatch) -> str:
    """Writes the key of a dispatch's stages in a profile's tables: `forward linear1`.

    Inference has the key of the forward pass of training, as only that was measured.
    """
    return f"{FORWARD if dispatch.direction == INFER else dispatch.direction} {plan.stages[dispatch.stage].name}"


def timing_key_with_updates(plan: Plan, dispatch: Dispatch) -> str:
    """The key for a dispatch whose kernel also makes its updates: `backward linear1, updating`."""
    return timing_key(plan, dispatch) + UPDATING


def update_key(change: Change) -> str:
    """Writes the key of a parameter change, `update linear1`; empty for a change that only keeps replicas together."""
    if isinstance(change, JointUpdate):
        return f"update {change.group}"
    return f"update {change.node}" if isinstance(change, Update) else ""


def medians(passes: Sequence[Measured]) -> Profile:
    """Makes a profile of the medians of some passes' measurements."""
    return Profile(
        **{part: _of_sizes(times, np.median) for part, times in _join_passes(passes).items()}
    )


def quickest(passes: Sequence[Measured]) -> Profile:
    """A profile of the least times that some passes have measured; nothing takes longer than the same with more rows.

    Other programs on the machine only add to a time, so a few passes beside them tell more by their least times than by their medians.
    """
    least = {}
    for part, times in _join_passes(passes).items():
        least[part] = _of_sizes(times, np.min)
    return Profile(
        **{
            part: {key: _make_rising(times) for key, times in table.items()}
            for part, table in least.items()
        }
    )


def _join_passes(passes: Sequence[Measured]) -> Measured:
    joined: Measured = {part: {} for part in PARTS}
    for part, table in ((part, table) for tables in passes for part, table in tables.items()):
        for key, sizes in table.items():
            for rows, ns in sizes.items():
                if ns:
                    joined[part].setdefault(key, {}).setdefault(
                        rows,
                        [],
                    ).extend(ns)
    return joined


def _of_sizes(
    table: Mapping[str, Mapping[int, list[float]]],
    statistic: Callable[[list[float]], Any],
) -> dict[str, dict[int, float]]:
    result = {}
    for key, sizes in table.items():
        result[key] = {rows: float(statistic(ns)) for rows, ns in sizes.items()}
    return result


def _make_rising(times: Mapping[int, float]) -> dict[int, float]:
    """Lowers times so that they never fall with the number of rows: each to the least of the times with more rows."""
    rows = sorted(times)
    least = np.minimum.accumulate([times[n] for n in reversed(rows)])[::-1]
    result = {}
    for n, ns in zip(rows, least, strict=True):
        result[n] = float(ns)
    return result


def _numbers(table: Mapping[str, Mapping[str, Any]]) -> Times:
    """Converts a table back from JSON.

    Raises:
      ValueError: If it holds what no measurement gives.
    """
    numbers = {}
    for key, sizes in table.items():
        numbers[key] = {int(n): float(ns) for n, ns in sizes.items()}
    for key, sizes in numbers.items():
        if not sizes or not all(n > 0 and 0 <= ns < math.inf for n, ns in sizes.items()):
            raise ValueError(f"times of `{key}` that are none: {sizes!r:.60}")
    return numbers
