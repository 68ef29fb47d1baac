"""Measurements of a process that carries launches out for a driver elsewhere: numbers alone, so that another process can read all of this."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

(
    NUMBER,
    STAGE,
    CHANGES,
    START,
    CHANGES_AT,
    IS_TIMED,
    IDLE,
    WAITED,
    KERNELS_TAKE,
    CHANGES_TAKE,
    COMPILED,
) = range(11)
"""The columns of `MeasuredHost.launches`: the launch's number; its stage (-1 for parameter changes alone); whether parameters change; when the
kernels and the changes were issued; whether it was timed; if so, what a `Timing` holds."""

LAUNCH_TIMES = [START, CHANGES_AT, IDLE]
"""Those that are moments."""

WAIT_WORKER, WAIT_BEGIN, WAIT_END = range(3)
"""The columns of `MeasuredHost.waits`."""


class MeasuredHost(NamedTuple):
    """The measurements of one host during a run; all moments by the driver's clock.

    Args:
      name: The host's name.
      place: Its machine, in words.
      workers: The workers that it runs, by number.
      offset_ns: How far its own clock is ahead of the driver's.
      error_ns: That is right to within so much.
      launches: `[n, 11]` int64: what was carried out, in that order.
      waits: `[m, 3]` int64: a worker, and from when until when it waited for another host's rows.
      done_ns: A time when all had ended.
      n_dropped: Launches that were not kept.
      sent: Bytes that it has sent meanwhile, by the name of who got them.
      received: Bytes that the driver has sent to it meanwhile.
    """

    name: str
    place: str
    workers: tuple[int, ...]
    offset_ns: int
    error_ns: int
    launches: np.ndarray
    waits: np.ndarray
    done_ns: int
    n_dropped: int
    sent: Mapping[str, int]
    received: int


class RemoteTiming(Protocol):
    """Timing of launches by the processes that carry launches out."""

    def begin(
        self,
        clock: Callable[[], int],
        every: int,
        most: int,
    ) -> None:
        """Lets the processes begin to time. Nothing is under way.

        Args:
          clock: The driver's clock, in nanoseconds.
          every: About one launch in so many is timed; 1 times all.
          most: So many launches are kept, at most.
        """
        ...

    def finish(self) -> Sequence[MeasuredHost]:
        """Takes the measurements of all processes; waits until everything issued is done.

        Returns:
          What each has measured; nothing, if one of them has failed.
        """
        ...
