"""Fits whose decisions are written to a file, and fits that follow such a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ampjax.drivers.replay_driver import Follower, RecordingEnds
from ampjax.trace.journal import FAILED, FINISHED, INTERRUPTED, Journal
from ampjax.trace.recording import Recorder, Recording
from ampjax.train.history import Epoch
from ampjax.train.provenance import differences, provenance, require_same
from ampjax.train.runs.fit_run import FitRun
from ampjax.train.runs.pace import Recorded
from ampjax.train.runs.session import Session


@contextmanager
def recorded(
    fit: FitRun,
    path: str | Path | None,
    epochs: int,
    place: Mapping[str, Any] | None,
) -> Iterator[None]:
    """Writes all that a fit decides to a file, as long as this is open.

    Args:
      fit: The fit.
      path: The file; None writes nothing.
      epochs: How many epochs the run is to take.
      place: Where the file was when the snapshot was taken that the fit goes on from; None begins anew.

    Raises:
      ReplayError: If the file is another.
      OSError: If it can't be written.
    """
    if path is None:
        yield
        return
    header = {
        "epochs": epochs,
        "cut every": fit.cuts.every,
        "stops": fit.stop_on_nan,
        **provenance_of(fit.session),
    }
    recorder = Recorder(path, header, place)
    reason = FAILED
    journal = Journal(recorder.take, fit.session.scheduler.contents.messages_of)
    journal.before = None if place is None else place["before"]
    if fit.keeper is not None:
        fit.keeper.recording = lambda: {**recorder.place(), "before": journal.before}
    try:
        with fit.session.passes.journalled(journal):
            yield
        reason = INTERRUPTED if fit.history.interrupted else FINISHED
    finally:
        recorder.close(reason)


async def follow(
    recording: Recording,
    fit: FitRun,
    callbacks: Sequence[Callable[[Epoch], Any]],
    start: Mapping[str, Any],
    place: Mapping[str, Any] | None = None,
) -> None:
    """Runs a recorded fit again, decision by decision.

    Args:
      recording: The recording.
      fit: A fit as the recorded one was when it began, or as it was when a snapshot of a replay was taken.
      callbacks: Called with each epoch's record; a true result ends the run.
      start: What the fit, or the replay that it goes on with, begins from: `provenance_of`.
      place: Where in the recording the snapshot was taken.

    Raises:
      ReplayError: If the fit does not begin as the recorded one did; or at the first decision that differs.
      Exception: What the recorded run raised.
    """
    session = fit.session
    require_same(recording.path, recording.header, start)
    follower = Follower(
        recording, session.scheduler.contents.messages_of, differences(recording.header, start)
    )
    if place is not None:
        follower.skip(place["decisions"])
        follower.journal.before = place["before"]
    fit.stop_on_nan = recording.header.get("stops", False)
    if fit.keeper is not None:
        fit.keeper.recording = lambda: {
            "decisions": follower.taken,
            "before": follower.journal.before,
        }
    pace = Recorded(follower, session.settings.run_ahead)
    with session.passes.journalled(follower.journal, pace):
        called_off = await fit.run(recording.header["epochs"], callbacks)
    if called_off or fit.history.interrupted:
        return
    try:
        follower.require_end()
    except RecordingEnds:
        fit.history.interrupted = True


def provenance_of(session: Session) -> dict[str, Any]:
    """Describes the beginning of a fit.

    Args:
      session: What runs.

    Returns:
      As `train.provenance.provenance`.
    """
    updates = session.scheduler.updates
    seeds = session.row_seeds
    return provenance(
        session.plan,
        session.settings,
        session.executor.store,
        updates,
        session.position.rng,
        seeds,
    )
