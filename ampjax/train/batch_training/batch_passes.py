"""One pass over the data by batches, from the first example to the last."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ampjax.drivers.early_end import EarlyEnd
from ampjax.engine.timing.compilation_count import compilations
from ampjax.ir.nodes import Node
from ampjax.plan.passes import Pass
from ampjax.plan.row_seeds import RowSeeds
from ampjax.sched.diagnose.statistics import RunCounts
from ampjax.train.batch_training.batch_data import BatchData
from ampjax.train.batch_training.batch_function import Batch, shape_of
from ampjax.train.batch_training.batch_losses import BatchLosses
from ampjax.train.batch_training.batch_predictions import BatchOutputs, gather_outputs
from ampjax.train.batch_training.batch_programs import BatchPrograms
from ampjax.train.batch_training.refusals import no_messages
from ampjax.train.grouping import in_batches
from ampjax.train.predictions import Predictions
from ampjax.utils.interrupts import interrupts_handled
from ampjax.utils.progress import SILENT, Reporter
from ampjax.utils.turns import Turns

if TYPE_CHECKING:
    from ampjax.train.runs.run_statistics import RunStatistics

RunBatches = Callable[[Sequence[Batch]], Mapping[str, Any] | None]
"""Runs the batches of a call, and gives outputs if the run is for them."""


class BatchPasses:
    """Runs passes over data, one at a time (`train.runs.pass_runner.PassRunner` by batches).

    Args:
      programs: What is computed.
      data: The data sets.
      counts: Counts rounds.
      statistics: Counts of the latest runs.

    Attributes:
      losses: Sums of losses and metrics.
      left_over: Empty: nothing is in flight between two batches.
    """

    over = False

    def __init__(
        self,
        programs: BatchPrograms,
        data: BatchData,
        counts: RunCounts,
        statistics: RunStatistics,
    ):
        self._programs = programs
        self._data = data
        self._counts = counts
        self._turns = Turns("trainer")
        self.losses = BatchLosses()
        self.statistics = statistics
        self.left_over: list[str] = []

    def now_s(self) -> float:
        """Seconds on this machine's clock."""
        return time.perf_counter()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Waits until all other runs have ended.

        Raises:
          SettingsError: If that would be for ever, as another run waits for this one.
        """
        async with self._turns.turn():
            try:
                yield
            except BaseException:
                self.losses.clear()
                raise

    def journalled(self, journal: Any, pace: Any = None) -> NoReturn:
        """Refuses to tell a journal of decisions: there are none.

        Args:
          journal: Not used.
          pace: Not used.

        Raises:
          SettingsError: Always.
        """
        raise no_messages("record")

    def watched(self, instrument: Any) -> NoReturn:
        """Refuses to tell an instrument of messages: there are none.

        Args:
          instrument: Not used.

        Raises:
          SettingsError: Always.
        """
        raise no_messages("update_log")

    async def run(
        self,
        data_pass: Pass,
        name: str,
        reporter: Reporter = SILENT,
        trace: Any = None,
        *,
        goes_on: bool = False,
        early: EarlyEnd | None = None,
    ) -> BatchOutputs:
        """Runs a pass to its end.

        Args:
          data_pass: The examples, and what they are run for.
          name: What progress and statistics call the run.
          reporter: Shows how many examples have ended.
          trace: None: there are no messages to tell of.
          goes_on: Whether this is the next part of the pass before it, and counts are added up.
          early: Ends it before all examples have been taken.

        Returns:
          The outputs of each batch, if the pass is for them.

        Raises:
          DataError: If a number in an example is not what the model can use.
        """
        del trace
        found: BatchOutputs = []
        if not len(data_pass.ids):
            return found
        self.statistics.begin(
            data_pass.train,
            name,
            goes_on,
        )
        purpose = data_pass.purpose
        packed = self._data.packed(
            data_pass.data,
            purpose,
        )
        groups = in_batches(
            data_pass.ids,
            self._data.size(data_pass.data, purpose),
        )
        rounds = Rounds(0)
        if early is not None:
            early.source = rounds
        run = self._runs(data_pass.seeds)[purpose]
        with (
            interrupts_handled(),
            reporter.part(name, len(data_pass.ids), compilations) as advance,
        ):
            # a condition that ends the pass is asked after each round
            is_together = data_pass.train and early is None
            batches = self._in_calls(
                packed.epoch(groups),
                is_together,
            )
            of_rounds = iter(groups)
            for some in batches:
                outputs = run(some)
                self._data.note(purpose, some[0])
                for _ in some:
                    numbers = next(of_rounds)
                    if outputs is not None:
                        found.append((numbers, outputs))
                    n = len(numbers)
                    self._counts.add_round(
                        n,
                        data_pass.train,
                    )
                    rounds.n_admitted += n
                    advance(n)
                    if early is not None:
                        early.settled([], n)
                if rounds.is_over:
                    break
                await asyncio.sleep(0)  # a cancellation takes effect here
        self._programs.wait()
        return found

    def _in_calls(
        self,
        batches: Iterable[Batch],
        is_together: bool,
    ) -> Iterator[list[Batch]]:
        """Takes batches of one shape together, as many as one call trains on.

        Args:
          batches: The batches, in their order.
          is_together: Whether a call may run several.
        """
        some: list[Batch] = []
        for batch in batches:
            if some and shape_of(batch) != shape_of(some[0]):
                yield some
                some = []
            some.append(batch)
            most = self._programs.most_rounds(batch) if is_together else 1
            if len(some) == most:
                yield some
                some = []
        if some:
            yield some

    def _runs(self, seeds: RowSeeds) -> dict[str, RunBatches]:
        """Returns the function that runs the batches of a call, by the purpose of the run."""

        def train(batches: Sequence[Batch]) -> None:
            n = len(batches)
            # the numbers of the epoch and of the round, from which the round's random numbers come
            places = np.empty((n, 2), np.uint32)
            places[:, 0] = seeds.epoch
            places[:, 1] = self._counts.n_rounds
            places[:, 1] += np.arange(n, dtype=np.uint32)
            sums = self._programs.train(
                batches,
                seeds.seed,
                places,
            )
            self.losses.add_rounds(True, sums, n)

        def losses(batches: Sequence[Batch]) -> None:
            self.losses.add(
                False,
                self._programs.losses(*batches),
            )

        def sinks(batches: Sequence[Batch]) -> Mapping[str, Any]:
            return self._programs.outputs(*batches)

        return {"train": train, "losses": losses, "sinks": sinks}

    def predictions(
        self, outputs: BatchOutputs, sinks: Mapping[str, Node]
    ) -> dict[str, Predictions]:
        """Gathers the outputs of a pass by sink.

        Args:
          outputs: What `run` gave.
          sinks: The sinks by name.

        Raises:
          GraphError: If an output is a sequence for each element of another one.
        """
        return gather_outputs(outputs, sinks)


class Rounds:
    """The progress of a pass, for conditions that end the pass early (`drivers.controller.InstanceSource` by batches).

    Args:
      n_admitted: How many examples have been taken.

    Attributes:
      is_over: Whether no more are to be taken.
    """

    def __init__(self, n_admitted: int):
        self.n_admitted = n_admitted
        self.is_over = False

    def end_early(self, multiple: int = 1) -> None:
        """Ends the pass here, which is always after a whole round.

        Args:
          multiple: Of how many examples rounds are made.
        """
        del multiple
        self.is_over = True
