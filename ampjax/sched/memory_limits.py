"""Memory limits: shares of arenas in a device's memory, and the instances that are held back near a limit.

Control never reads a payload, so a program tells how many rows an instance needs (`unfold.demand`). Near the limit the controller admits by that only
what is sure to fit: an instance's forward pass can always finish, so a limit holds instances back but never blocks half-way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from ampjax.errors import LimitError
from ampjax.plan.stages import ArenaKey
from ampjax.sched.decisions.scheduler_settings import NO_ROW_LIMIT, SchedulerSettings
from ampjax.unfold.demand import ArenaRows


def row_bytes(key: ArenaKey) -> int:
    """Counts the bytes of a row of an arena, its adjoint included.

    Returns:
      How many bytes.
    """
    _, shape, dtype = key
    size = np.dtype(dtype).itemsize if dtype != "bfloat16" else 2
    return max(1, math.prod(shape)) * size * 2


def with_unseen(
    per_instance: Mapping[ArenaKey, float], arenas: Iterable[ArenaKey]
) -> dict[ArenaKey, float]:
    """The rows that an instance needs of each arena; arenas that no sampled instance touched get the largest number of any other.

    Returns:
      Rows of each arena.
    """
    most = max(per_instance.values(), default=0) or 1
    return {key: per_instance.get(key) or most for key in arenas}


def row_limits(
    per_instance: Mapping[ArenaKey, float],
    memory_limit: int,
    records: Mapping[ArenaKey, int] | None = None,
) -> ArenaRows:
    """Shares each device's memory limit out among its arenas, in proportion to the bytes that instances need in each.

    Args:
      per_instance: Rows that an instance needs in each arena, on average.
      memory_limit: Bytes for the arenas of one device.
      records: Bytes of recorded activations beside each row of an arena.

    Returns:
      The largest size of each arena, in rows, at least 2.
    """
    size_of = {}
    for key in per_instance:
        size_of[key] = row_bytes(key) + (records or {}).get(key, 0)
    bytes_of = {}
    for key, rows in per_instance.items():
        bytes_of[key] = (rows + 0.01) * size_of[key]
    total: dict[int, float] = {}
    for key, size in bytes_of.items():
        total[key[0]] = total.get(key[0], 0.0) + size
    result = {}
    for key, size in bytes_of.items():
        result[key] = max(
            2,
            int(memory_limit * size / total[key[0]] / size_of[key]),
        )
    return result


USUAL_MARGIN = 32
"""Instances may be this many times larger than those that were sampled before a limit that is not being counted can bind."""

MARGIN_WITH_SIZES = 2
"""The same where data say how large their instances are, so that the largest ones are among the sampled."""


class MemoryGuard:
    """Holds instances back that would not fit beside the instances in flight.

    While the limits are far away (`margin` times what `max_active_keys` of the largest sampled instances need), nothing is counted: to unfold every
    instance before it is needed takes longer than its kernels may.

    Args:
      limits: Rows of each arena at most.
      per_instance: The largest demand among sampled instances, rows of each arena.
      max_active_keys: Instances in flight at most.
      margin: `USUAL_MARGIN`, or `MARGIN_WITH_SIZES`.
      purpose: What instances are unfolded for, to see what they need. No row is freed meanwhile, so what training needs is what inference for losses needs.

    Attributes:
      tight: Whether the limits are so near that instances are counted.
    """

    def __init__(
        self,
        limits: ArenaRows,
        per_instance: Mapping[ArenaKey, float],
        max_active_keys: int,
        margin: int = USUAL_MARGIN,
        purpose: str = "both",
    ):
        self._limits = limits
        self.purpose = purpose
        self.tight = any(
            limits[key] < margin * max_active_keys * rows for key, rows in per_instance.items()
        )
        self._reserved: dict[tuple[int, bool], ArenaRows] = {}
        self._total: ArenaRows = {}

    def admit(self, instance: int, train: bool, need: ArenaRows) -> bool:
        """Reserves room for an instance.

        Returns:
          Whether there was room; if not, it must wait for others to end.

        Raises:
          LimitError: If it would not fit even alone.
        """
        for key, rows in need.items():
            limit = self._limits.get(key, NO_ROW_LIMIT) - 1
            if rows > limit:
                raise LimitError(
                    f"instance {instance}",
                    f"at most {limit} rows of shape {key[1]} {key[2]}, which the memory limit allows",
                    f"{rows} rows",
                    "Raise `memory_limit`, or split the instance.",
                )
            if self._total.get(key, 0) + rows > limit:
                return False
        for key, rows in need.items():
            self._total[key] = self._total.get(key, 0) + rows
        self._reserved[instance, train] = need
        return True

    def release(self, instance: int, train: bool) -> None:
        """Gives back the rows that an instance that has ended had reserved."""
        for key, rows in self._reserved.pop(
            (instance, train),
            {},
        ).items():
            self._total[key] -= rows


def with_limits(
    settings: SchedulerSettings,
    per_instance: Mapping[ArenaKey, float],
    limits: ArenaRows,
    in_flight: int,
    start: int | None = None,
) -> SchedulerSettings:
    """Sets the first sizes and the limits of arenas.

    Args:
      settings: The settings so far.
      per_instance: Rows that an instance needs of each arena, on average.
      limits: The largest size of each arena, in rows.
      in_flight: Instances in flight, for the first sizes.
      start: The first size of each arena, in rows; None derives it from `per_instance` and `in_flight`.

    Returns:
      The settings with `capacities` and `limits`.
    """
    expected = {}
    for key, rows in per_instance.items():
        expected[key] = start or int(1.25 * rows * in_flight) + 2
    capacities = {}
    for key, rows in expected.items():
        capacities[key] = min(
            limits[key],
            1 << (rows - 1).bit_length(),
        )
    return replace(settings, capacities=capacities, limits=limits)
