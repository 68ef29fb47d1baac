"""The partition search during training: the search asks for numbers of partitions and receives the times of steps.

Owns the order of searches (one for each group of tables) and of samples. It has no clock of its own and touches no table.
"""

from __future__ import annotations

import collections
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ampjax.parallel.config.config import SampleTimes
from ampjax.parallel.config.partitioner import PartitionGroup
from ampjax.parallel.planning.partition_search import (
    Samples,
    SearchResult,
    check_seconds,
    next_count,
    search_result,
)


class Searches:
    """One search after the other.

    Args:
      groups: Tables that are split alike.
      start: The first number of partitions, the paper's number of machines.
      sample: How a number is timed.
      notes: A checkpoint's, with what `notes` gave in an earlier run: with the same `start`, searches that had ended are not made again.
    """

    def __init__(
        self,
        groups: Sequence[PartitionGroup],
        start: int,
        sample: SampleTimes,
        notes: Mapping[str, Any] | None = None,
    ):
        ended = notes["samples"] if notes and notes.get("start") == start else {}
        known = {group.label: _known_samples(group, ended) for group in groups}
        self.results: list[SearchResult] = [
            search_result(label, samples) for label, samples in known.items() if samples
        ]
        self._groups = collections.deque(group for group in groups if not known[group.label])
        self._start = start
        self._sample = sample
        self._samples: Samples = {}
        self._times: list[float] = []

    @property
    def notes(self) -> dict[str, Any]:
        """The samples of searches that have ended, in JSON's types."""
        samples = {}
        for result in self.results:
            samples[result.label] = [[*pair] for pair in result.samples.items()]
        return {"start": self._start, "samples": samples}

    @property
    def is_over(self) -> bool:
        """Tells whether all groups have their number."""
        return not self._groups

    def next_request(self) -> tuple[PartitionGroup, int] | None:
        """The group and the number of partitions that the next step should have; None where nothing is asked for."""
        if self.is_over:
            return None
        group = self._groups[0]
        count = next_count(self._samples, self._start, group.low, group.high)
        assert count is not None  # `tell` goes on to the next group when there is none
        return group, count

    def record(self, seconds: float) -> tuple[PartitionGroup, int] | None:
        """Takes one step's time, with the partitions that were wanted.

        Returns:
          The group and its number of partitions, if this ended its search.

        Raises:
          SettingsError: If a time is not above 0.
        """
        group = self._groups[0]
        count = self.next_request()[1]  # type: ignore[index] # asked only while a search goes on
        self._times.append(seconds)
        if len(self._times) < self._sample.iterations:
            return None
        times = self._times[self._sample.discarded :]
        self._times = []
        self._samples[count] = check_seconds(group.label, statistics.fmean(times))
        if next_count(self._samples, self._start, group.low, group.high) is not None:
            return None
        self.results.append(search_result(group.label, self._samples))
        self._groups.popleft()
        self._samples = {}
        return group, self.results[-1].partitions


def _known_samples(
    group: PartitionGroup,
    ended: Mapping[str, Sequence[Any]],
) -> Samples:
    """Returns the samples of a search that has ended, if the group may still have all of these numbers."""
    samples: Samples = dict(ended.get(group.label, ()))
    if all(group.low <= count <= group.high for count in samples):
        return samples
    return {}
