"""Fits that write which gradients each update is made of."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ampjax.trace.update_log import UpdateLog
from ampjax.train.runs.fit_run import FitRun
from ampjax.utils.setting_checks import a_path


@contextmanager
def logged(
    fit: FitRun,
    path: str | Path | None,
) -> Iterator[None]:
    """Writes a log of a fit's updates, as long as this is open.

    Args:
      fit: The fit. If it is resumed from a snapshot, the log continues there, too.
      path: The file; None writes nothing.

    Raises:
      SettingsError: If it is no path.
      DataError: If the file to go on with is no log.
      OSError: If it can't be written.
    """
    if path is None:
        yield
        return
    session = fit.session
    scheduler = session.scheduler
    position = session.position
    versions = None if fit.place is None else scheduler.updates.versions
    file = a_path("fit, `update_log`", path)
    with (
        UpdateLog(file, scheduler.contents.gradients, lambda: position.epochs, versions) as log,
        session.passes.watched(log),
    ):
        yield
