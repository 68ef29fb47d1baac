"""The times and the folder of a fit's snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ampjax.utils.setting_checks import a_path, at_least, one_interval


@dataclass(frozen=True)
class Snapshots:
    """The times and the folder of `fit`'s snapshots; `fit(..., resume=True)` continues from the newest one.

    A snapshot is taken when nothing is in flight: no instance is admitted until all instances in flight have ended. In synchronous and
    pipeline training nothing is in flight after each update, so snapshots do not change the run. An asynchronous pipeline is emptied, which
    costs the time to fill it again and changes the schedule. So a resumed run has the bits of a run *with the same snapshots* that was not
    killed.

    With neither `every_instances` nor `every_seconds` there is a snapshot after each epoch. There is always one at the end of the fit.

    Args:
      folder: A folder for these snapshots alone. For each, a folder `snapshot-N` is made in it; a new one is complete before an old one is
        removed.
      every_instances: The least number of training instances between two snapshots; pipeline training finishes the round first.
      every_seconds: The least number of seconds of real time between two snapshots. The places of the snapshots then depend on the clock, so
        this can't be combined with a recording, nor with the virtual time of a cost model.
      keep: How many of the newest are kept. With two, one is left if the newest is damaged.

    Raises:
      SettingsError: If a number is too small, both intervals are given, or the folder is no path.
    """

    folder: str | Path
    every_instances: int | None = None
    every_seconds: float | None = None
    keep: int = 2

    def __post_init__(self) -> None:
        a_path("snapshots, `folder`", self.folder)
        at_least("keep", self.keep, 1)
        one_interval("every_instances", self.every_instances, self.every_seconds)

    @property
    def after_epochs(self) -> bool:
        """Tells whether there is a snapshot after each epoch."""
        return self.every_instances is None and self.every_seconds is None


def snapshots_from(snapshots: Snapshots | str | Path | None) -> Snapshots | None:
    """Makes settings from the user's argument.

    Args:
      snapshots: Settings; a folder; or None.

    Raises:
      SettingsError: If it is none of these.
    """
    return (
        snapshots if snapshots is None or isinstance(snapshots, Snapshots) else Snapshots(snapshots)
    )
