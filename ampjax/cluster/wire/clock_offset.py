"""The offset of another process's clock from this one's, measured over the wire as the network time protocol does (RFC 5905)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

TRIES = 6
"""How often the other clock is read: the reading that was there and back soonest is the best."""


class ClockReading(NamedTuple):
    """One reading of another process's clock.

    Args:
      there_ns: The time that it told.
      here_ns: The middle between the question and the answer, by this process's clock.
      error_ns: The two are the same moment to within so much: half of the time between question and answer, since nobody knows which of the
        two was longer under way.
    """

    there_ns: int
    here_ns: int
    error_ns: int

    @property
    def offset_ns(self) -> int:
        """The lead of the other clock."""
        return self.there_ns - self.here_ns


def read_clock(
    ask: Callable[[], int],
    clock: Callable[[], int],
    tries: int = TRIES,
) -> ClockReading:
    """Reads another process's clock.

    Args:
      ask: Asks it for its time, in nanoseconds.
      clock: This process's clock.
      tries: How often to ask.

    Returns:
      The best of the readings.
    """
    readings = []
    for _ in range(tries):
        begin_ns = clock()
        there_ns = ask()
        end_ns = clock()
        readings.append(
            ClockReading(
                there_ns,
                (begin_ns + end_ns) // 2,
                -((begin_ns - end_ns) // 2),
            )
        )
    return min(readings, key=lambda reading: reading.error_ns)


class ClockMap:
    """Tells when something was by this process's clock that another one's has timed. Clocks may run at different speeds.

    Args:
      begin: A reading before it,
      end: and one after it.
    """

    def __init__(self, begin: ClockReading, end: ClockReading):
        self._begin = begin
        self._end = end

    @property
    def offset_ns(self) -> int:
        """The lead of the other clock, in the middle between the readings."""
        return (self._begin.offset_ns + self._end.offset_ns) // 2

    @property
    def error_ns(self) -> int:
        """The error bound of all conversions, as long as the other clock's speed does not change."""
        return max(self._begin.error_ns, self._end.error_ns)

    def here(self, there_ns: np.ndarray) -> np.ndarray:
        """Moments by this process's clock.

        Args:
          there_ns: int64: the same by the other one's; later ones stay later.

        Returns:
          int64, of the same shape.
        """
        begin = self._begin
        end = self._end
        since = np.asarray(there_ns, np.int64) - begin.there_ns
        drift = end.offset_ns - begin.offset_ns
        lost = np.rint(since * (drift / max(end.there_ns - begin.there_ns, 1))).astype(np.int64)
        return begin.here_ns + since - lost
