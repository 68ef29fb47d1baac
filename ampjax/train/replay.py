"""Replays recorded runs: `fit(..., record=...)` wrote what was decided, and here it is decided again."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial as bind
from pathlib import Path
from typing import Any

from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.trace.recording import Recording
from ampjax.train.history import History
from ampjax.train.provenance import settings_of
from ampjax.train.runs.begin_fit import begin_fit
from ampjax.train.runs.recorded_fit import follow, provenance_of
from ampjax.train.snapshots.fit_place import Cuts
from ampjax.train.trainer import Callback, Trainer
from ampjax.train.training_data import Data
from ampjax.utils.blocking import blocking
from ampjax.utils.progress import Reporter


def replay(
    path: str | Path,
    trainer: Trainer | Graph,
    train: Data,
    valid: Data | None = None,
    *,
    partial: bool = False,
    callbacks: Iterable[Callback] = (),
    progress: bool = True,
    resume: bool = False,
    **options: Any,
) -> History:
    """Runs a recorded `fit` again, decision by decision, to bitwise the same parameters (same machine, same versions).

    The recording holds the order of all that happened; messages and numbers are computed anew, and compared with its checksums on
    the way: each dispatch's messages, and all parameters after each pass. Works also where an event loop runs, as in a notebook.

    Args:
      path: What `fit(..., record=path)` has written.
      trainer: A trainer as the recorded one was when its `fit` began. Or the graph: then a trainer is made with the recorded settings.
      train: The training instances of the recorded run.
      valid: Its validation instances.
      partial: Whether a recording that was cut off (by a killed run) is replayed up to there; the history says `interrupted` then.
      callbacks: The callbacks of the recorded run, as far as they ran or changed something.
      progress: Whether to show progress.
      resume: Whether to go on from the newest whole snapshot of a replay that was killed; the trainer is one with snapshots.
      **options: With a graph: what the recorded trainer was given beside its settings: `tx`, `params`, `controller`, `devices`.

    Returns:
      The history, with the times of the replay. The trainer has the parameters of the recorded run.

    Raises:
      ReplayError: If the file is no recording, or cut off, or not of such a trainer; or at the first decision that differs.
      SettingsError: If options come with a trainer, or there is nothing to resume from.
      DataError, TableError: If snapshots can't be gone on from, as for `Trainer.fit`.
      Exception: What the recorded run raised.
    """
    recording = Recording(path, partial)
    if isinstance(trainer, Graph):
        trainer = Trainer(trainer, settings=settings_of(recording.path, recording.header), **options)
    elif options:
        raise SettingsError(
            f"replay, option `{next(iter(options))}`",
            "none beside a trainer",
            f"{next(iter(options.values()))!r}",
            "Give it to the trainer, or pass the graph instead.",
        )
    history, session = History(), trainer.session
    data, held_out = session.train_and_valid(train, valid)
    start = provenance_of(session)
    run, place = begin_fit(session, trainer.keeper, data, held_out, history, resume, is_recorded=True)
    run.cuts = Cuts(recording.header.get("cut every"), session.settings.flush_every or 1)
    with Reporter(progress) as run.reporter:
        blocking(follow(recording, run, [bind(callback, trainer) for callback in callbacks], start, place))
    return history
