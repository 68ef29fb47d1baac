"""Replays recorded runs: `fit(..., record=...)` wrote the decisions, which are repeated here."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial as bind
from pathlib import Path
from typing import Any

from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.trace.recording import Recording
from ampjax.train.checkpoints.fit_place import Cuts
from ampjax.train.history import History
from ampjax.train.provenance import settings_of
from ampjax.train.runs.begin_fit import begin_fit
from ampjax.train.runs.recorded_fit import follow, provenance_of
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
    """Runs a recorded `fit` again, decision by decision; the parameters come out the same, bit for bit (on the same machine and versions).

    The recording has the order of all decisions. Messages and numbers are computed anew and compared with its checksums: the messages of
    each dispatch, and all parameters after each pass. This also works while an event loop runs, as in a notebook.

    Args:
      path: The recording that `fit(..., record=path)` has written.
      trainer: A trainer in the state that the recorded one had when its `fit` began. Or the graph: then a trainer is made with the recorded
        settings.
      train: The training instances of the recorded run.
      valid: Its validation instances.
      partial: Whether an incomplete recording (of a killed run) is replayed to its end; the history then has `interrupted` set.
      callbacks: The callbacks of the recorded run, if they ran or changed anything.
      progress: Whether to show progress.
      resume: Whether to continue from the newest complete snapshot of a replay that was killed; the trainer must have snapshots.
      **options: With a graph: the recorded trainer's arguments other than its settings: `tx`, `params`, `controller`, `devices`.

    Returns:
      The history, with the times of the replay. The trainer has the parameters of the recorded run.

    Raises:
      ReplayError: If the file is no recording, is incomplete, or is of another trainer; or at the first decision that differs.
      SettingsError: If options are given with a trainer, or there is nothing to resume from.
      DataError, TableError: If snapshots can't be resumed from, as for `Trainer.fit`.
      Exception: The error that the recorded run raised.
    """
    recording = Recording(path, partial)
    if isinstance(trainer, Graph):
        trainer = Trainer(
            trainer, settings=settings_of(recording.path, recording.header), **options
        )
    elif options:
        raise SettingsError(
            f"replay, option `{next(iter(options))}`",
            "none beside a trainer",
            f"{next(iter(options.values()))!r}",
            "Give it to the trainer, or pass the graph instead.",
        )
    history = History()
    session = trainer.session
    data, held_out = session.train_and_valid(train, valid)
    start = provenance_of(session)
    run, place = begin_fit(
        session, trainer.keeper, data, held_out, history, resume, recording="decisions"
    )
    run.cuts = Cuts(
        recording.header.get("cut every"),
        session.settings.flush_every or 1,
    )
    with Reporter(progress) as run.reporter:
        blocking(
            follow(
                recording, run, [bind(callback, trainer) for callback in callbacks], start, place
            )
        )
    return history
