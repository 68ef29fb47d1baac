"""The records of a trace: slices of a worker's time, its waits, its queues, and the staleness of gradients."""

from __future__ import annotations

from dataclasses import dataclass

from ampjax.errors import SettingsError

KINDS = ("forward", "backward", "update", "transfer", "infer")
"""The kinds of work of a worker."""

REASONS = ("rows", "join", "throttled", "policy", "memory", "starved")
"""Why a worker has nothing to do.

`rows`: its host waits for rows of another host. `join`: messages wait for it, but each lacks a partner, or members of its group. `throttled`: there are more instances, but as many as may
be are in flight. `policy`: it could go on, and its policy wants it to wait. `memory`: it could go on, but there is no room for the
result, or for another instance. `starved`: none of these; what is in flight is elsewhere.
"""


@dataclass(frozen=True, slots=True)
class Slice:
    """A piece of a worker's time.

    Args:
      worker: The worker's number.
      node: The stage that ran, by its nodes' names; for an update the nodes that were updated.
      kind: `forward`, `backward`, `update`, `transfer` or `infer`.
      start_ns: When it began, in nanoseconds of the run's clock.
      end_ns: When it ended; not before it began.
      instances: The instances whose messages were in it, each once; empty for an update.
      rows: Rows of payload in it.
      messages: Messages in it.

    Raises:
      SettingsError: If the kind is none of these, or it ends before it begins.
    """

    worker: int
    node: str
    kind: str
    start_ns: int
    end_ns: int
    instances: tuple[int, ...] = ()
    rows: int = 0
    messages: int = 0

    def __post_init__(self) -> None:
        _one_of(f"slice of `{self.node}`, kind", self.kind, KINDS)
        _in_order(f"slice of `{self.node}`", self.start_ns, self.end_ns)

    @property
    def duration_ns(self) -> int:
        """The length of the slice."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Wait:
    """A time in which the scheduler had nothing for a worker, or in which its host waited for another's rows.

    Args:
      worker: The worker's number.
      reason: One of `REASONS`.
      start_ns: When it began to wait, or the reason changed.
      end_ns: When it got something, or the reason changed.

    Raises:
      SettingsError: If the reason is none of these, or it ends before it begins.
    """

    worker: int
    reason: str
    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        _one_of(f"wait of worker {self.worker}, reason", self.reason, REASONS)
        _in_order(f"wait of worker {self.worker}", self.start_ns, self.end_ns)


@dataclass(frozen=True, slots=True)
class QueueSample:
    """The queues of a worker at the choice of a dispatch (whose messages still count as waiting), or when the worker had nothing to do.

    Args:
      worker: The worker's number.
      time_ns: The moment.
      queues: Stage, direction (`forward`, `backward` or `infer`) and messages of each queue that was not empty.
    """

    worker: int
    time_ns: int
    queues: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class StalenessSample:
    """The staleness of the gradients of one update: versions between a message's forward pass and its gradient.

    Args:
      node: The node that was updated.
      time_ns: The end of the update.
      rows: Gradient rows in it.
      mean: Their mean staleness, in updates of the node.
    """

    node: str
    time_ns: int
    rows: int
    mean: float


@dataclass(frozen=True, slots=True)
class TracedHost:
    """A host of a run. Its measurements are in the trace by the driver's clock.

    Args:
      name: Its name.
      place: Its machine, in words.
      workers: The workers that it ran, by number.
      offset_ns: How far its own clock was ahead of the driver's: measured over the wire before and after the run.
      error_ns: The offset is right to within so much.
    """

    name: str
    place: str
    workers: tuple[int, ...]
    offset_ns: int = 0
    error_ns: int = 0


def _one_of(
    where: str,
    value: str,
    choices: tuple[str, ...],
) -> None:
    if value not in choices:
        raise SettingsError(
            where, f"one of {', '.join(choices)}", f"{value!r}", "Choose one of them."
        )


def _in_order(where: str, start_ns: int, end_ns: int) -> None:
    if end_ns < start_ns:
        raise SettingsError(
            where,
            "an end that is not before the start",
            f"{start_ns} ns to {end_ns} ns",
            "Take both times from one clock.",
        )
