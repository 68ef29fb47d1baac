"""How many arena rows an instance needs, found by routing its messages without numbers.

Control never reads a payload, so a dry run of the scheduler tells the demand exactly. Near the memory limit the controller admits by it only
what is sure to fit: an instance's forward pass can always finish, so a limit holds instances back but never blocks half-way.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ampjax.errors import LimitError, MessageError
from ampjax.ir.instances import Messages
from ampjax.ir.state import SLOT, State
from ampjax.sched.dispatch import Dispatch
from ampjax.sched.plan import Plan
from ampjax.sched.policy import largest
from ampjax.sched.queues import BACKWARD
from ampjax.sched.scheduler import Scheduler, SchedulerSettings
from ampjax.sched.stages import ArenaKey, Stage
from ampjax.sched.stats import Statistics

ENDLESS = 1_000_000
"""Dispatches of a dry run from which on its instances are said to be in a loop that they never leave. All instances share a dispatch, so this is
about the number of stages that a single message passes."""

LONG = 50_000
"""Dispatches of a dry run from which on somebody who waits is told where its instances go round."""

Rows = dict[ArenaKey, int]
Batch = Mapping[str, Messages]


@dataclass(frozen=True)
class DryRun:
    """What a run of the control plane alone has counted.

    Args:
      each: For each device arena, the rows that each instance needs `[n]`, if nothing is freed before it has ended.
      work: `[n]`: the rows that stages took in for each instance.
      stats: Messages and dispatch sizes.
      edges: For the stages of chains, by number: the rows of their messages, and their edges on each way, dispatch by dispatch.
    """

    each: dict[ArenaKey, np.ndarray]
    work: np.ndarray
    stats: Statistics
    edges: dict[int, list[tuple[np.ndarray, np.ndarray]]] = field(default_factory=dict)

    @property
    def rows(self) -> Rows:
        """The rows that all instances need together."""
        return {key: int(counts.sum()) for key, counts in self.each.items()}

    def largest(self, n: int) -> np.ndarray:
        """The positions of the `n` instances with the most work."""
        return np.argsort(-self.work, kind="stable")[:n]


def dry_run(
    plan: Plan,
    batches: Sequence[Batch],
    ids: Sequence[int],
    purpose: str = "train",
    max_dispatch_size: int = 1 << 30,
) -> DryRun:
    """Runs the control plane alone on some instances that are all in flight at once, with unlimited arenas.

    Args:
      plan: The plan.
      batches: The instances' messages, as `Instances.gather` gives them; several batches are pumped one after the other.
      ids: The instances' numbers.
      purpose: What they are run for, one of `passes.PURPOSES`.
      max_dispatch_size: Rows in one dispatch at most.

    Raises:
      MessageError: If an instance seems never to end, or as `Scheduler.pump` and `Scheduler.done` do.
    """
    n = len(ids)
    settings = SchedulerSettings(max_active_keys=n, max_dispatch_size=max_dispatch_size, policy=largest, history=1)
    scheduler = Scheduler(plan, settings)
    slots = scheduler.open(np.asarray(ids), purpose)
    position = np.zeros(int(slots.max()) + 1, np.int64)
    position[slots] = np.arange(n)
    dry = DryRun({}, np.zeros(n, np.int64), scheduler.stats)
    for batch in batches:
        scheduler.pump(slots, batch)
        _drain(scheduler, dry, position)
    scheduler.close(slots)
    return dry


def _drain(scheduler: Scheduler, dry: DryRun, position: np.ndarray) -> None:
    """Does all that can be done, and counts; `position[slot]` is an instance's place."""
    n, moved = len(dry.work), True
    while moved:
        moved = False
        for worker in range(scheduler.plan.workers):
            while (dispatch := scheduler.next(worker)) is not None:
                if dispatch.stage is not None and dispatch.direction != BACKWARD:
                    of = position[dispatch.states[:, SLOT]]
                    dry.work[:] += np.bincount(of, dispatch.sizes, n).astype(np.int64)
                    rows = np.bincount(of, dispatch.out_sizes, n).astype(np.int64)
                    for key in dispatch.stage.arenas:
                        dry.each[key] = dry.each.get(key, 0) + rows
                    if dispatch.edges is not None and dispatch.sizes is not None:
                        seen = dry.edges.setdefault(dispatch.stage.number, [])
                        seen.append((dispatch.sizes, dispatch.edges.counts))
                scheduler.done(dispatch)
                moved = True
                if dispatch.number == LONG:
                    warnings.warn(
                        f"{dispatch!r}, without numbers: instances that take so long may be in a loop that they never leave. Interrupt the run if so.",
                        RuntimeWarning,
                        stacklevel=2,
                    )
                if dispatch.number > ENDLESS and dispatch.stage is not None:
                    raise _endless(dispatch, dispatch.stage, scheduler.plan)


def _endless(dispatch: Dispatch, stage: Stage, plan: Plan) -> MessageError:
    state = State(dispatch.states[:1], plan.layout, stage.ports[0].type.fields)
    return MessageError(
        f"node `{stage.name}`",
        "instances that end",
        f"one that goes on after {ENDLESS} dispatches without numbers, {state!r}",
        "Mend the condition that should let it out of the loop.",
    )


def row_bytes(key: ArenaKey) -> int:
    """Bytes of a row of an arena, its adjoint included."""
    _, shape, dtype = key
    size = np.dtype(dtype).itemsize if dtype != "bfloat16" else 2
    return max(1, math.prod(shape)) * size * 2


def with_unseen(per_instance: Mapping[ArenaKey, float], arenas: Iterable[ArenaKey]) -> dict[ArenaKey, float]:
    """The rows that an instance needs of each arena, with a guess for those that no sampled instance touched: as many as of any other.

    Args:
      per_instance: Rows that sampled instances need.
      arenas: All arenas that there can be.
    """
    most = max(per_instance.values(), default=0) or 1
    return {key: per_instance.get(key) or most for key in arenas}


def row_limits(
    per_instance: Mapping[ArenaKey, float], memory_limit: int, records: Mapping[ArenaKey, int] | None = None
) -> Rows:
    """Shares each device's memory limit out among its arenas, in proportion to the bytes that instances need in them.

    Args:
      per_instance: Rows that an instance needs in each arena, on average.
      memory_limit: Bytes for the arenas of one device.
      records: Bytes of recorded activations beside each row of an arena.
    """
    size_of = {key: row_bytes(key) + (records or {}).get(key, 0) for key in per_instance}
    bytes_of = {key: (rows + 0.01) * size_of[key] for key, rows in per_instance.items()}
    total: dict[int, float] = {}
    for key, size in bytes_of.items():
        total[key[0]] = total.get(key[0], 0.0) + size
    return {key: max(2, int(memory_limit * size / total[key[0]] / size_of[key])) for key, size in bytes_of.items()}


FAR = 32
"""Instances may be this many times larger than those that were sampled before a limit that is not being counted can bind."""

KNOWN = 2
"""The same where data say how large their instances are, so that the largest ones are among the sampled."""


class Guard:
    """Holds instances back that would not fit beside those in flight.

    While the limits are far away (`margin` times what `max_active_keys` of the largest sampled instances need), nothing is counted: to dry-run every
    instance takes longer than its kernels may.

    Args:
      plan: The plan.
      limits: Rows of each arena at most.
      per_instance: The largest demand among sampled instances, rows of each arena.
      max_active_keys: Instances in flight at most.
      margin: `FAR`, or `KNOWN`.
      purpose: What inference is for; training needs the rows of that for losses.
    """

    def __init__(
        self,
        plan: Plan,
        limits: Rows,
        per_instance: Mapping[ArenaKey, float],
        max_active_keys: int,
        margin: int = FAR,
        purpose: str = "both",
    ):
        self._plan, self._limits, self._purpose = plan, limits, purpose
        self.tight = any(limits[key] < margin * max_active_keys * rows for key, rows in per_instance.items())
        self._reserved: dict[tuple[int, bool], Rows] = {}
        self._total: Rows = {}

    def demands(self, ids: Sequence[int], batches: Sequence[Batch]) -> list[Rows]:
        """What each of some instances needs; many together cost little more than one.

        Training needs the rows that inference needs (no row is freed here), so there is no need to go backward.

        Args:
          ids: The instances' numbers, no two the same.
          batches: Their messages.
        """
        each = dry_run(self._plan, batches, ids, self._purpose).each
        return [{key: int(counts[i]) for key, counts in each.items()} for i in range(len(ids))]

    def admit(self, instance: int, train: bool, need: Rows) -> bool:
        """Reserves room for an instance that needs so many rows; False if it must wait for others to end.

        Raises:
          LimitError: If it would not fit even alone.
        """
        for key, rows in need.items():
            limit = self._limits.get(key, 1 << 60) - 1
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
        """Gives back what an instance that has ended had reserved."""
        for key, rows in self._reserved.pop((instance, train), {}).items():
            self._total[key] -= rows


def with_limits(
    settings: SchedulerSettings,
    per_instance: Mapping[ArenaKey, float],
    limits: Rows,
    in_flight: int,
    start: int | None = None,
) -> SchedulerSettings:
    """Settings whose arenas start at `start` rows, or at what `in_flight` of the sampled instances suggest, within the limits."""
    expected = {key: start or int(1.25 * rows * in_flight) + 2 for key, rows in per_instance.items()}
    capacities = {key: min(limits[key], 1 << (rows - 1).bit_length()) for key, rows in expected.items()}
    return replace(settings, capacities=capacities, limits=limits)
