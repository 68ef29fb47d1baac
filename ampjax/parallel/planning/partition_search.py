"""The number of partitions: iteration time = θ0 + θ1/P + θ2·P, sampled, fitted, minimised (Parallax §4.2).

Splitting a table lets its updates run in parallel (θ1/P) and costs something for each partition (θ2·P). All functions are pure:
samples in, the next number to try or the answer out. Who takes the times is not known here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ampjax.errors import SettingsError

Samples = dict[int, float]
"""Seconds of an iteration for each number of partitions that was tried, in the order of trying."""

ROUNDING = 1e-9  # of a time: no clock tells less


@dataclass(frozen=True)
class Fit:
    """The model's coefficients.

    Args:
      theta0: Seconds that do not depend on the partitions.
      theta1: Seconds of work that partitions share.
      theta2: Seconds that each partition costs.
    """

    theta0: float
    theta1: float
    theta2: float

    def seconds(self, partitions: float) -> float:
        """The iteration time that the model predicts."""
        return self.theta0 + self.theta1 / partitions + self.theta2 * partitions

    @property
    def minimum(self) -> float | None:
        """The minimum of the model, a real number; None where there is no minimum above 0."""
        if self.theta1 > 0 and self.theta2 > 0:
            return float(np.sqrt(self.theta1 / self.theta2))
        return None


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    Args:
      label: Whose partitions.
      partitions: The number chosen.
      samples: Seconds of an iteration by number of partitions.
      fit: The fitted model; None with fewer than three samples.
    """

    label: str
    partitions: int
    samples: Samples
    fit: Fit | None

    def __str__(self) -> str:
        tried = ", ".join(
            f"{count}: {seconds:.3g} s" for count, seconds in sorted(self.samples.items())
        )
        model = "" if self.fit is None else _formula(self.fit)
        return f"{self.label}: {self.partitions} partitions (tried {tried}{model})"

    def __repr__(self) -> str:
        return str(self)


def next_count(
    samples: Samples,
    start: int,
    low: int = 1,
    high: int = 1 << 20,
) -> int | None:
    """The next number of partitions to try.

    From `start` the number doubles until an iteration takes longer. Only if the first doubling already did, smaller numbers are
    tried by halving: the model falls on one side of its minimum only. Halving ends when time rises, or when the model through
    the samples has its minimum inside them. So there are at most 3 + |log2(P*/start)| samples.

    Args:
      samples: What was tried so far.
      start: The first number, the paper's number of machines.
      low: The smallest number allowed.
      high: The largest.

    Returns:
      The number, or None at the end.
    """
    first = min(max(start, low), high)
    if first not in samples:
        return first
    up = [first]
    while up[-1] in samples and (len(up) == 1 or samples[up[-1]] < samples[up[-2]]):
        if up[-1] == high:
            break
        up.append(min(2 * up[-1], high))
    if up[-1] not in samples:
        return up[-1]
    if len(up) > 2 or (len(up) == 2 and samples[up[1]] < samples[first]):
        return None
    return _halve(samples, first, low)


def _halve(samples: Samples, first: int, low: int) -> int | None:
    down = first
    while down > low:
        smaller = max(down // 2, low)
        if smaller not in samples:
            return None if down < first and _is_bracketed(samples) else smaller
        if samples[smaller] >= samples[down]:
            return None
        down = smaller
    return None


def _is_bracketed(samples: Samples) -> bool:
    """Tells whether the model's minimum lies among the numbers tried, so that a smaller one would only confirm the minimum."""
    model = fit(samples)
    return model is not None and model.minimum is not None and model.minimum >= min(samples)


def fit(samples: Samples) -> Fit | None:
    """Fits θ0 + θ1/P + θ2·P to samples by least squares. A term of the size of rounding errors becomes 0.

    Args:
      samples: At least three, else there is no fit.

    Returns:
      The coefficients; None with fewer than three samples.

    >>> fit({1: 13.0, 2: 9.0, 4: 8.5}).minimum
    3.16...
    """
    if len(samples) < 3:
        return None
    counts = np.array(list(samples), np.float64)
    columns = np.stack(
        [np.ones_like(counts), 1 / counts, counts],
        axis=1,
    )
    seconds = np.array(list(samples.values()))
    theta = np.linalg.lstsq(columns, seconds, rcond=None)[0]
    theta[np.abs(theta * columns).max(0) < ROUNDING * seconds.max()] = 0
    return Fit(*(float(value) for value in theta))


def best_count(samples: Samples) -> int:
    """The number of partitions that is fastest by the fitted model, among the integers between the smallest and the largest tried.

    Where the model has no minimum (times that only noise tells apart) or there are fewer than three samples, it is the
    fastest that was tried.

    Raises:
      SettingsError: If nothing was tried.
    """
    if not samples:
        raise SettingsError(
            "partition search", "at least one sample", "none", "Time a number of partitions first."
        )
    fastest = min(samples, key=lambda count: samples[count])
    model = fit(samples)
    if model is None or model.minimum is None:
        return fastest
    low = min(samples)
    high = max(samples)
    floor = int(np.clip(np.floor(model.minimum), low, high))
    return min(
        (floor, min(floor + 1, high)),
        key=model.seconds,
    )


def search(
    label: str,
    time: Callable[[int], float],
    start: int,
    low: int = 1,
    high: int = 1 << 20,
) -> SearchResult:
    """The whole search with a function that times a number of partitions.

    Args:
      label: Whose partitions.
      time: Gives the seconds of an iteration with so many partitions.
      start: The number of machines.
      low: The smallest number allowed.
      high: The largest.

    Returns:
      The number, with its samples and fit.

    Raises:
      SettingsError: If `low` is above `high`, or a time is not above 0.
    """
    if not 1 <= low <= high:
        raise SettingsError(
            f"partition search of `{label}`", "1 <= low <= high", f"{low} and {high}", "Swap them."
        )
    samples: Samples = {}
    while (count := next_count(samples, start, low, high)) is not None:
        samples[count] = check_seconds(label, time(count))
    return search_result(label, samples)


def search_result(label: str, samples: Samples) -> SearchResult:
    """The result of a search that has ended.

    Raises:
      SettingsError: If nothing was tried.
    """
    return SearchResult(label, best_count(samples), dict(samples), fit(samples))


def check_seconds(label: str, seconds: float) -> float:
    """Returns a time, if the value is a possible time.

    Raises:
      SettingsError: If it is not above 0.
    """
    if not 0 < seconds < float("inf"):
        raise SettingsError(
            f"partition search of `{label}`",
            "a time above 0",
            f"{seconds!r}",
            "Return the seconds that a step took, as `time.perf_counter` counts them.",
        )
    return seconds


def _formula(model: Fit) -> str:
    return f"; {model.theta0:.3g} + {model.theta1:.3g}/P + {model.theta2:.3g}·P"
