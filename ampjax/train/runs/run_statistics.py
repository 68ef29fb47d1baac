"""Counts of the latest runs: one of training, one of inference."""

from __future__ import annotations

from dataclasses import replace

from ampjax.sched.diagnose.statistics import Statistics
from ampjax.sched.scheduler import Scheduler


class RunStatistics:
    """The scheduler's counts in the last run of training and in the last run of inference.

    The scheduler counts one run at a time. Its counts are copied when the next run begins, or when they are asked for.

    Args:
      scheduler: What counts.
    """

    def __init__(self, scheduler: Scheduler):
        self._scheduler = scheduler
        self._latest: tuple[bool, str] | None = (
            None  # the run that is being counted: whether it trains, its name
        )
        self._kept: dict[bool, Statistics] = {}  # by whether the run trained

    def begin(
        self,
        train: bool,
        name: str,
        goes_on: bool = False,
    ) -> None:
        """Starts to count a run.

        Args:
          train: Whether it is training.
          name: What `Statistics.run` calls it.
          goes_on: Whether it is the next part of the same run, so that counts are not reset.
        """
        if not goes_on:
            self._keep()
            self._scheduler.counts.reset()
        self._latest = train, name

    @property
    def latest(self) -> Statistics:
        """Counts of the run that was begun last, so far."""
        return self._scheduler.counts.read()

    @property
    def training(self) -> Statistics:
        """Counts of the last run of training; of the last run if nothing has been trained."""
        self._keep()
        return self._kept.get(True) or self._kept.get(False) or self._scheduler.counts.read()

    @property
    def inference(self) -> Statistics:
        """Counts of the last run of inference; all zero if there has been none."""
        self._keep()
        return self._kept.get(False) or Statistics()

    def _keep(self) -> None:
        if self._latest is not None:
            train, name = self._latest
            self._kept[train] = replace(
                self._scheduler.counts.read(),
                run=name,
            )
