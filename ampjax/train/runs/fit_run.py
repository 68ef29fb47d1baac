"""The course of a fit: prepare, train an epoch, validate, call back, and so on to the last epoch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ampjax.engine.compilation import compilations
from ampjax.engine.loss_metrics import metrics_of
from ampjax.trace.trace import Trace
from ampjax.train.divergence import warn_of
from ampjax.train.history import Epoch, History
from ampjax.train.runs.pass_runner import INTERRUPTS
from ampjax.train.runs.session import Session
from ampjax.train.training_data import AnyInstances, n_examples
from ampjax.utils.progress import Reporter


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
    """

    session: Session
    data: AnyInstances
    valid: AnyInstances | None
    history: History
    reporter: Reporter
    trace: Trace | None = None

    async def run(self, epochs: int, callbacks: Sequence[Callable[[Epoch], Any]]) -> bool:
        """Trains to the last epoch, or until it is interrupted, or until a recording that is followed ends.

        Args:
          epochs: How many epochs.
          callbacks: Called with each epoch's record; a true result ends the run.

        Returns:
          Whether a callback has ended the run.

        Raises:
          Exception: As `PassRunner.run`.
        """
        session, history, warned = self.session, self.history, False
        history.interrupted = False
        try:
            async with session.passes.turn():
                ahead = session.settings.compile_ahead
                await session.preparation.prepare(self.data, self.valid, self.reporter, ahead=ahead)
            for _ in range(epochs):
                if session.passes.over:
                    return False
                epoch = await self._next_epoch()
                history.epochs.append(epoch)
                self.reporter.line(epoch.line())
                loss, where = epoch.train.get("loss", 0.0), f"epoch {epoch.epoch}"
                warned = warned or warn_of(loss, where, session.executor.store.params, self.data)
                if any([callback(epoch) for callback in callbacks]):  # a list: every callback is called
                    return True
        except INTERRUPTS:
            history.interrupted = True
        return False

    async def _next_epoch(self) -> Epoch:
        """Reshuffles the data and runs an epoch, in a turn of its own: others who wait for the trainer come between two epochs."""
        session = self.session
        if hasattr(self.data, "reshuffle"):
            self.data = self.data.reshuffle(session.position.rng)  # type: ignore[attr-defined]
        async with session.passes.turn():
            if session.position.epochs:
                await session.preparation.finish(self.reporter)
            with session.preparation.showing_postponed(self.reporter):
                return await self._epoch()

    async def _epoch(self) -> Epoch:
        """Trains on all instances once, then validates."""
        session, passes = self.session, self.session.passes
        spent_s = self.history.epochs[-1].seconds if self.history.epochs else 0.0
        session.position.epochs += 1
        number, compiled, began = session.position.epochs, compilations(), passes.now_s()
        metrics = await self._train(f"epoch {number}")
        train_s, stats = passes.now_s() - began, passes.statistics.latest
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
        )

    async def _train(self, name: str) -> dict[str, float]:
        """Trains on all instances; then what is due at the end of an epoch, such as averaging replicas. Gives the metrics."""
        session = self.session
        order = session.orders.training_order(self.data, session.position.rng)
        await session.passes.run(session.training_pass(self.data, order), name, self.reporter, self.trace)
        session.scheduler.rounds.end_of_epoch()
        await session.passes.run(session.training_pass(self.data, order[:0]), "")
        return metrics_of(session.executor.losses.take(True))

    async def _validate(self) -> tuple[dict[str, float], float]:
        """The metrics of validation, and the seconds it took; nothing without validation instances."""
        session = self.session
        if self.valid is None:
            return {}, 0.0
        began = session.passes.now_s()
        await session.passes.run(session.inference_pass(self.valid, "losses"), "validate", self.reporter)
        return metrics_of(session.executor.losses.take(False)), session.passes.now_s() - began


def _rate(data: AnyInstances, seconds: float) -> float:
    """Examples per second; infinite where nothing took any time."""
    return n_examples(data) / seconds if seconds else math.inf
