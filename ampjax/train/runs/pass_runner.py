"""One pass over the data, from the first instance to the last; and the clean-up after an interrupt or an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from ampjax.drivers.controller import source_of
from ampjax.drivers.early_end import EarlyEnd
from ampjax.drivers.issue_queue import abandon
from ampjax.drivers.replay_driver import RecordingEnds
from ampjax.drivers.run import DriverLoop
from ampjax.engine.executor_protocol import AnyExecutor, AnyLosses
from ampjax.engine.timing.compilation_count import compilations
from ampjax.ir.nodes import Node
from ampjax.plan.passes import Pass
from ampjax.sched.diagnose.deadlock import report
from ampjax.sched.memory_limits import MemoryGuard
from ampjax.sched.scheduler import Scheduler
from ampjax.trace.instruments import Ended, Instrument
from ampjax.trace.journal import Journal
from ampjax.trace.trace import Trace
from ampjax.train.predictions import Outputs, Predictions, gather_predictions
from ampjax.train.runs.pace import Pace
from ampjax.train.runs.run_statistics import RunStatistics
from ampjax.utils.progress import SILENT, Reporter
from ampjax.utils.turns import Turns
from ampjax.utils.wait_with_warning import wait_with_warning

INTERRUPTS = KeyboardInterrupt, asyncio.CancelledError, RecordingEnds
"""What ends a run early without being a mistake: Ctrl-C, a cancelled task, the end of a recording."""


class PassRunner:
    """A runner of passes over data, one at a time: the only owner of messages in flight, and of the clean-up after an error.

    Args:
      scheduler: Decides.
      executor: Computes.
      pace: Asks the scheduler, and tells the time.
      guard: Gives what keeps the instances of a pass within the memory limit, or None.

    Attributes:
      statistics: Counts of the latest runs.
      left_over: What was in flight when a run was last interrupted, a line each.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: AnyExecutor,
        pace: Pace,
        guard: Callable[[Pass], MemoryGuard | None],
    ):
        self._scheduler = scheduler
        self._executor = executor
        self._guard = guard
        self._turns = Turns("trainer")
        self._pace = pace
        self._journal = None
        self._watching: list[Instrument] = []
        self.statistics = RunStatistics(scheduler)
        self.left_over: list[str] = []

    @property
    def losses(self) -> AnyLosses:
        """The sums of losses and metrics."""
        return self._executor.losses

    @property
    def over(self) -> bool:
        """Tells whether no more passes can be run, since a recording ends here."""
        return self._pace.over

    def now_s(self) -> float:
        """Seconds on the clock that passes go by."""
        return self._pace.now_s()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits until all other runs have ended, since they share the scheduler. An interrupt leaves nothing in flight for the next run.

        Raises:
          SettingsError: If that would be for ever, as another run waits for this one.
        """
        async with self._turns.turn():
            try:
                yield
            except INTERRUPTS:
                abandon(self._scheduler, self._executor)
                raise

    @contextmanager
    def journalled(
        self,
        journal: Journal,
        pace: Pace | None = None,
    ) -> Iterator[None]:
        """Tells a journal all that is decided, as long as this is open.

        Args:
          journal: The journal.
          pace: Asks the scheduler meanwhile; None leaves that as it is.
        """
        before = self._pace
        self._journal = journal
        self._pace = pace or before
        try:
            yield
        finally:
            self._journal = None
            self._pace = before

    @contextmanager
    def watched(self, instrument: Instrument) -> Iterator[None]:
        """Tells an instrument all that happens, as long as this is open.

        Args:
          instrument: The instrument.
        """
        self._watching.append(instrument)
        try:
            yield
        finally:
            self._watching.remove(instrument)

    async def run(
        self,
        data_pass: Pass,
        name: str,
        reporter: Reporter = SILENT,
        trace: Trace | None = None,
        *,
        goes_on: bool = False,
        early: EarlyEnd | None = None,
    ) -> Outputs:
        """Runs a pass to its end.

        Args:
          data_pass: The instances, and what they are run for.
          name: What progress and statistics call the run.
          reporter: Shows how many instances have ended.
          trace: Filled with where each worker's time goes.
          goes_on: Whether this is the next part of the pass before it, and counts are added up.
          early: Ends it before all instances are admitted.

        Returns:
          What has arrived at sinks.

        Raises:
          DeadlockError: If instances are in flight and nothing can move.
          LimitError: If an instance can't fit within the memory limit.
          RecordingEnds: If a recording that is followed ends in the middle of the pass.
          ReplayError: If a decision differs from the recorded one.
        """
        if len(data_pass.ids):
            self.statistics.begin(data_pass.train, name, goes_on)
        source = source_of(self._scheduler, data_pass, self._guard(data_pass))
        if early is not None:
            early.source = source
        with reporter.part(name, len(data_pass.ids), compilations) as advance:
            every = Ended(advance), self._journal, *self._watching, early
            instruments = [each for each in every if each is not None]
            loop = DriverLoop(self._scheduler, self._executor, [source], instruments)
            try:
                await self._to_the_end(loop, data_pass, trace)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt | asyncio.CancelledError):
                    self.left_over = report(self._scheduler.snapshot())
                loop.queue.abandon()
                raise
            return loop.queue.outputs

    def predictions(
        self,
        outputs: Outputs,
        sinks: Mapping[str, Node],
    ) -> dict[str, Predictions]:
        """Sorts what has arrived at sinks.

        Args:
          outputs: What `run` gave.
          sinks: The sinks by name; of copies of a sink any one.
        """
        return gather_predictions(self._executor.plan, outputs, sinks)

    async def _to_the_end(
        self,
        loop: DriverLoop,
        data_pass: Pass,
        trace: Trace | None,
    ) -> None:
        """Drives a loop until every instance has ended and the devices have done all that was issued."""
        journal = self._journal
        if journal is not None:
            journal.begins(data_pass)
        await self._pace.drive(loop, trace)
        await wait_with_warning(self._executor.fences.wait, "the last dispatch of some worker")
        if journal is not None:
            journal.ends(self._executor.store.all_params if data_pass.train else None)
