"""Writes and reads the snapshots of a fit.

A snapshot is a checkpoint of the trainer (`train.checkpoints.trainer_files`) with the fit's notes. The state of nodes is stored by name, and that of
control is one object; so nodes may be in this process or on hosts. Nothing is in flight when a snapshot is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from ampjax.errors import DataError, SettingsError
from ampjax.parallel.checkpoints.series import Series
from ampjax.train.checkpoints import trainer_files
from ampjax.train.checkpoints.fit_place import FitPlace
from ampjax.train.checkpoints.snapshot_settings import Snapshots
from ampjax.train.history import Epoch, History
from ampjax.train.provenance import find_change, identity
from ampjax.train.runs.session import Session

FORMAT = 2
"""The format of the notes."""

FREE = ("run_ahead", "compile_ahead", "check")
"""Settings that may differ in a resumed run: they change no decision."""


class Keeper:
    """The snapshots of a trainer.

    Args:
      session: What runs.
      when: When and where.

    Attributes:
      recording: Tells where the recording is that is being written or followed; None if none is.
    """

    def __init__(self, session: Session, when: Snapshots):
        if when.every_seconds is not None and session.position.is_virtual:
            raise SettingsError(
                "setting `every_seconds`",
                "`every_instances` with a cost model",
                f"{when.every_seconds!r}",
                "This machine's clock would change the schedule of the simulated one: count instances.",
            )
        self.when = when
        self._session = session
        self._series = Series(when.folder, "snapshot-", when.keep)
        self._last_s = time.monotonic()
        self.recording: Callable[[], Mapping[str, Any]] | None = None

    def begin(
        self, resume: bool, history: History, recording: str | None = None
    ) -> tuple[FitPlace | None, Mapping[str, Any] | None]:
        """Begins a fit, or resumes one from its newest complete snapshot.

        Args:
          resume: Whether to resume, if there is a snapshot.
          history: Gets the epochs before the snapshot.
          recording: Which part of the place in a recording must be known: `bytes` if it is written, `decisions` if it is replayed, None without.

        Returns:
          The place where the fit resumes, and the place in its recording; None if there is none.

        Raises:
          DataError: If there are snapshots but `resume` is False, or they are of another trainer. Nothing is changed then.
          TableError: If all are damaged. Nothing is changed then.

        Warns:
          SnapshotWarning: For each damaged snapshot that was skipped.
        """
        self._last_s = time.monotonic()
        self.recording = None
        session = self._session
        if not resume:
            fix = "Pass `resume=True` to `fit` to continue from there, or give another folder."
            self._series.begin("snapshots", fix)
            return None, None
        store = session.executor.store
        updates = session.scheduler.updates
        position = session.position
        saved = self._series.read(
            partial(
                trainer_files.read,
                store=store,
                updates=updates,
                position=position,
                operations=session.operations(),
            )
        )
        fit = None if saved is None else self._check_notes(saved, recording)
        self._series.claim()
        if saved is None or fit is None:
            return None, None
        trainer_files.apply(saved, store, updates, position)
        session.scheduler.abandon()  # queues know dispatches by numbers, which begin again
        session.scheduler.counts.resume(fit["counts"])
        session.passes.losses.resume(fit["losses"])
        place = FitPlace(**fit["place"])
        history.epochs[:] = [Epoch(**epoch) for epoch in fit["epochs"]]
        history.resumed[:] = fit["resumed"]
        return place, fit["recording"]

    @property
    def _identity(self) -> dict[str, Any]:
        """The properties that must be the same in a resumed fit."""
        return {
            "format": FORMAT,
            **identity(self._session.plan, self._session.settings),
        }

    @property
    def has_hosts(self) -> bool:
        """Tells whether parameters are on hosts, which may die."""
        return self._session.executor.is_remote

    @property
    def is_late(self) -> bool:
        """Tells whether the time between two snapshots is over."""
        return (
            self.when.every_seconds is not None
            and time.monotonic() - self._last_s >= self.when.every_seconds
        )

    def take(self, place: FitPlace, history: History) -> None:
        """Writes a snapshot; nothing may be in flight.

        Args:
          place: Where the fit stands.
          history: The epochs so far.

        Raises:
          DataError: If the folder can't be written.
          OSError: Likewise.
        """
        session = self._session
        fit = {
            **self._identity,
            "place": asdict(place),
            "counts": session.scheduler.counts.state(),
            "losses": session.passes.losses.state(),
            "recording": None if self.recording is None else self.recording(),
            "epochs": [vars(epoch) for epoch in history.epochs],
            "resumed": history.resumed,
        }
        number = max(self._series.numbers(), default=0) + 1
        store = session.executor.store
        updates = session.scheduler.updates
        position = session.position
        operations = session.operations()

        def save(folder: str | Path) -> None:
            trainer_files.save(
                folder,
                store,
                updates,
                position,
                operations,
                fit,
            )

        self._series.write(number, save)
        self._last_s = time.monotonic()

    def _check_notes(
        self,
        saved: trainer_files.Saved,
        recording: str | None,
    ) -> Mapping[str, Any]:
        """The fit's notes.

        Raises:
          DataError: If there are none, or they are of another graph or other settings, or without the place in a recording.
        """
        fit = saved.fit
        where = f"snapshots, `{self._series.folder}`"
        if fit is None:
            fix = "Read it by `Trainer.restore`, or give another folder."
            raise DataError(where, "what a fit has written", "what `Trainer.save` has", fix)
        difference = find_change(fit, self._identity, FREE)
        if difference is not None:
            part, was, now = difference
            fix = "Resume with the graph, workers and settings of the run that was killed."
            raise DataError(f"{where}, {part}", f"{was!r:.80}", f"{now!r:.80}", fix)
        if recording is not None and recording not in (fit["recording"] or {}):
            fix = "Resume without `record`: a recording must begin where its run does."
            raise DataError(
                f"{where}, recording", f"a place, in {recording}", f"{fit['recording']}", fix
            )
        return fit

    def __repr__(self) -> str:
        return (
            f"Keeper({str(Path(self._series.folder))!r}, {len(self._series.numbers())} snapshots)"
        )
