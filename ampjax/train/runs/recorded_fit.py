"""Fits whose decisions are written to a file, and fits that follow such a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ampjax.drivers.replay_driver import Follower, RecordingEnds
from ampjax.trace.journal import FAILED, FINISHED, INTERRUPTED, Journal
from ampjax.trace.recording import Recorder, Recording
from ampjax.train.history import Epoch, History
from ampjax.train.provenance import differences, provenance, require_same
from ampjax.train.runs.fit_run import FitRun
from ampjax.train.runs.pace import Recorded
from ampjax.train.runs.session import Session


@contextmanager
def recorded(session: Session, path: str | Path | None, epochs: int, history: History) -> Iterator[None]:
    """Writes all that is decided to a file, as long as this is open.

    Args:
      session: What runs.
      path: The file; None writes nothing.
      epochs: How many epochs the run is to take.
      history: Tells whether the run was interrupted.

    Raises:
      OSError: If the file can't be written.
    """
    if path is None:
        yield
        return
    recorder, reason = Recorder(path, {"epochs": epochs, **_provenance(session)}), FAILED
    try:
        with session.passes.journalled(Journal(recorder.take, session.scheduler.contents.messages_of)):
            yield
        reason = INTERRUPTED if history.interrupted else FINISHED
    finally:
        recorder.close(reason)


async def follow(recording: Recording, fit: FitRun, callbacks: Sequence[Callable[[Epoch], Any]]) -> None:
    """Runs a recorded fit again, decision by decision.

    Args:
      recording: The recording.
      fit: A fit as the recorded one was when it began.
      callbacks: Called with each epoch's record; a true result ends the run.

    Raises:
      ReplayError: If the fit does not begin as the recorded one did; or at the first decision that differs.
      Exception: What the recorded run raised.
    """
    session, now = fit.session, _provenance(fit.session)
    require_same(recording.path, recording.header, now)
    follower = Follower(recording, session.scheduler.contents.messages_of, differences(recording.header, now))
    pace = Recorded(follower, session.settings.run_ahead)
    with session.passes.journalled(follower.journal, pace):
        called_off = await fit.run(recording.header["epochs"], callbacks)
    if called_off or fit.history.interrupted:
        return
    try:
        follower.require_end()
    except RecordingEnds:
        fit.history.interrupted = True


def _provenance(session: Session) -> dict[str, Any]:
    updates, seeds = session.scheduler.updates, session.row_seeds
    return provenance(session.plan, session.settings, session.executor.store, updates, session.position.rng, seeds)
