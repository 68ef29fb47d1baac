"""Begins a fit, or resumes one from its snapshots; used by the trainer and by replays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampjax.errors import SettingsError
from ampjax.train.checkpoints.fit_place import Cuts
from ampjax.train.history import History
from ampjax.train.runs.fit_run import FitRun
from ampjax.train.runs.session import Session
from ampjax.train.runs.snapshot_keeper import Keeper
from ampjax.train.training_data import AnyInstances
from ampjax.utils.progress import SILENT


def begin_fit(
    session: Session,
    keeper: Keeper | None,
    data: AnyInstances,
    valid: AnyInstances | None,
    history: History,
    resume: bool,
    *,
    recording: str | None = None,
) -> tuple[FitRun, Mapping[str, Any] | None]:
    """Makes a fit.

    Args:
      session: What runs.
      keeper: Its snapshots, or None.
      data: Training instances.
      valid: Validation instances, or None.
      history: Gets a record of each epoch.
      resume: Whether to go on from the newest whole snapshot.
      recording: As for `Keeper.begin`.

    Returns:
      The fit, and where its recording was when the snapshot was taken; None if there was none.

    Raises:
      SettingsError: If there is nothing to resume from, or snapshots go by a clock where the run does not.
      DataError, TableError: As `Keeper.begin`.
    """
    if keeper is None:
        if resume:
            fix = "Make the trainer with `snapshot=folder`."
            raise SettingsError("fit, `resume`", "a trainer with snapshots", "one without", fix)
        return FitRun(
            session=session, data=data, valid=valid, history=history, reporter=SILENT
        ), None
    if recording is not None and keeper.when.every_seconds is not None:
        fix = "Count instances: a recording does not know this machine's clock."
        raise SettingsError(
            "setting `every_seconds`", "`every_instances` with a recording", "both", fix
        )
    place, in_recording = keeper.begin(resume, history, recording)
    cuts = Cuts(keeper.when.every_instances, session.settings.flush_every or 1)
    fit = FitRun(
        session=session,
        data=data,
        valid=valid,
        history=history,
        reporter=SILENT,
        cuts=cuts,
        place=place,
        keeper=keeper,
    )
    return fit, in_recording
