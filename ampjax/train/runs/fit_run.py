"""The course of a fit: prepare, train an epoch, validate, call back, and so on to the last epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ampjax.drivers.early_end import EarlyEnd
from ampjax.engine.memory.loss_metrics import metrics_of
from ampjax.engine.timing.compilation_count import compilations
from ampjax.trace.trace import Trace
from ampjax.train.checkpoints.fit_place import Cuts, FitPlace, reshuffled
from ampjax.train.history import Epoch, History
from ampjax.train.runs.epoch_warnings import ToldOnce
from ampjax.train.runs.pass_runner import INTERRUPTS
from ampjax.train.runs.session import Session
from ampjax.train.runs.snapshot_keeper import Keeper
from ampjax.train.training_data import AnyInstances, n_examples
from ampjax.utils.progress import OnePart, Reporter


@dataclass(kw_only=True, eq=False)
class FitRun:
    """Trains for some epochs and validates after each.

    Args:
      session: What runs.
      data: Training instances; a data set with a method `reshuffle(rng)` is replaced by its result before each epoch.
      valid: Validation instances, or None.
      history: Gets a record of each epoch.
      reporter: Shows how far the run is.
      trace: Filled with where each worker's time goes in training.
      cuts: Where an epoch's training is cut, so that nothing is in flight there.
      place: The place where the fit resumes; None if it begins.
      keeper: Writes snapshots at cuts and after epochs.
      stop_on_nan: Whether training ends with an epoch after which parameters are not finite.
    """

    session: Session
    data: AnyInstances
    valid: AnyInstances | None
    history: History
    reporter: Reporter
    trace: Trace | None = None
    cuts: Cuts = field(default_factory=Cuts)
    place: FitPlace | None = None
    keeper: Keeper | None = None
    stop_on_nan: bool = True

    async def run(
        self,
        epochs: int,
        callbacks: Sequence[Callable[[Epoch], Any]],
    ) -> bool:
        """Trains to the last epoch, or until an interrupt or the end of a recording.

        Args:
          epochs: How many epochs, those among them that were complete where the fit was resumed.
          callbacks: Called with each epoch's record; a true result ends the run.

        Returns:
          Whether a callback has ended the run.

        Raises:
          Exception: As `PassRunner.run`.
        """
        session = self.session
        history = self.history
        told = ToldOnce()
        history.interrupted = history.diverged = False
        if self.place is not None and (self.place.stopped or self.place.completed >= epochs):
            return self.place.stopped
        try:
            async with session.passes.turn():
                ahead = session.settings.compile_ahead
                await session.preparation.prepare(
                    self.data,
                    self.valid,
                    self.reporter,
                    ahead=ahead,
                )
                self._begin()
            place = self._place
            while place.completed < epochs:
                if session.passes.over:
                    return False
                epoch = await self._next_epoch()
                history.epochs.append(epoch)
                self.reporter.line(epoch.line())
                lost = session.executor.store.not_finite
                told.of_epoch(session, epoch, lost, self.data, self.stop_on_nan)
                place.stopped = any(
                    [callback(epoch) for callback in callbacks]
                )  # a list: every callback is called
                if (
                    lost and self.stop_on_nan
                ):  # without a snapshot: those of before are what can be gone on from
                    history.diverged = True
                    return False
                self._leave(place.stopped or place.completed + 1 == epochs)
                if place.stopped:
                    return True
        except INTERRUPTS:
            history.interrupted = True
        return False

    def _begin(self) -> None:
        """Begins or resumes the fit."""
        session = self.session
        self._place = self.place or FitPlace.start(session.position)
        if self.keeper is not None and self.place is None and self.keeper.has_hosts:
            self.keeper.take(
                self._place, self.history
            )  # a host may die before the first one that is due
        if self.place is not None:
            self.data = self.place.come_back(
                self.data,
                session.orders,
                session.position,
            )
            number = session.position.epochs + 1
            self.history.resumed.append({"epoch": number, "instances": self.place.done})

    async def _next_epoch(self) -> Epoch:
        """Reshuffles the data and runs an epoch, in a turn of its own: others who wait for the trainer come between two epochs."""
        session = self.session
        self.data = reshuffled(self.data, session.position.rng)
        async with session.passes.turn():
            if session.position.epochs:
                await session.preparation.finish(self.reporter)
            with session.preparation.showing_postponed(self.reporter):
                return await self._epoch()

    async def _epoch(self) -> Epoch:
        """Trains on all instances once, then validates."""
        session = self.session
        passes = self.session.passes
        if self.history.epochs:
            spent_s = self.history.epochs[-1].seconds
        else:
            spent_s = 0.0
        session.position.epochs += 1
        number = session.position.epochs
        compiled = compilations()
        began = passes.now_s() - self._place.spent_s
        metrics = await self._train(f"epoch {number}", began)
        train_s = passes.now_s() - began
        stats = passes.statistics.latest
        valid_metrics, valid_s = await self._validate()
        return Epoch(
            number,
            metrics,
            valid_metrics,
            _rate(self.data, train_s),
            _rate(self.valid, valid_s) if self.valid is not None else 0.0,
            spent_s + passes.now_s() - began,
            stats.staleness_mean,
            stats.staleness_max,
            stats.messages,
            stats.dispatches,
            stats.updates,
            compilations() - compiled,
            stats.dropped,
        )

    async def _train(
        self,
        name: str,
        began_s: float,
    ) -> dict[str, float]:
        """Trains on all instances; then does the work due at the end of an epoch, such as averaging replicas. Returns the metrics."""
        session = self.session
        place = self._place
        order = session.orders.training_order(self.data, session.position.rng)
        place.enter(order)
        with self.reporter.part(name, len(order), compilations) as advance:
            advance(place.done)
            while place.done < len(order):
                await self._piece(order, name, OnePart(advance))
                if place.done < len(order):
                    place.spent_s = session.passes.now_s() - began_s
                    self._cut()
        session.scheduler.rounds.end_of_epoch()
        await session.passes.run(
            session.training_pass(self.data, order[:0]),
            "",
        )
        return metrics_of(session.passes.losses.take(True), len(order))

    async def _piece(
        self,
        order: np.ndarray,
        name: str,
        reporter: Reporter,
    ) -> None:
        """Trains on the instances up to the next cut."""
        session = self.session
        place = self._place
        cuts = self.cuts
        keeper = self.keeper
        early = None
        end = cuts.next(place, len(order))
        if keeper is not None and keeper.when.every_seconds is not None:
            early = EarlyEnd(lambda: keeper.is_late, cuts.round_size)
        piece = session.training_pass(self.data, order[place.done : end])
        await session.passes.run(
            piece,
            name,
            reporter,
            self.trace,
            goes_on=place.done > 0,
            early=early,
        )
        if early is None or early.source is None:
            n = len(piece.ids)
        else:
            n = early.source.n_admitted
        place.done = place.done + n
        place.since = place.since + n

    def _cut(self) -> None:
        """Takes a snapshot amidst an epoch. Gradients handed in for the replicas' next mean are not included: replicas begin that mean anew."""
        self.session.scheduler.rounds.replicas.forget_handed_in()
        self.session.executor.store.forget()
        self._place.since = 0
        if self.keeper is not None:
            self.keeper.take(self._place, self.history)

    def _leave(self, is_last: bool) -> None:
        """Ends an epoch, with a snapshot if one is due."""
        self._place.leave()
        keeper = self.keeper
        if self.cuts.is_due(self._place):
            self._place.since = 0
        elif keeper is not None and not (is_last or keeper.when.after_epochs or keeper.is_late):
            return
        if keeper is not None:
            keeper.take(self._place, self.history)

    async def _validate(self) -> tuple[dict[str, float], float]:
        """Computes the metrics of validation, and the seconds spent; nothing without validation instances."""
        session = self.session
        if self.valid is None:
            return {}, 0.0
        began = session.passes.now_s()
        await session.passes.run(
            session.inference_pass(self.valid, "losses"), "validate", self.reporter
        )
        metrics = metrics_of(
            session.passes.losses.take(False),
            len(self.valid),
        )
        return metrics, session.passes.now_s() - began


def _rate(data: AnyInstances, seconds: float) -> float:
    """Examples per second; infinite where nothing took any time."""
    return n_examples(data) / seconds if seconds else math.inf
