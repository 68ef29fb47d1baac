"""The times at which a runner saves itself, and the checkpoint from which a runner continues after a crash."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ampjax.errors import SettingsError
from ampjax.parallel.checkpoints.series import Series
from ampjax.parallel.config.config import Checkpoints

T = TypeVar("T")


class RunnerCheckpoints:
    """The checkpoints that a runner writes by itself.

    Args:
      when: When and where; None for none.
    """

    def __init__(self, when: Checkpoints | None):
        self._when = when
        self._last_s = time.monotonic()
        self._chain: list[Path] = []  # of this process, from the last one with all rows on
        if when is None:
            self._series = None
        else:
            self._series = Series(when.folder, "step-", when.keep)

    def claim(self) -> None:
        """Notes that the model continues from one of these checkpoints, or from another that the user has chosen."""
        if self._series is not None:
            self._series.claim()

    def begin(self) -> None:
        """Begins to train.

        Raises:
          DataError: If there are checkpoints that the model does not go on from.
        """
        if self._series is not None:
            fix = "Call `runner.resume()` first to go on from there, or give another folder."
            self._series.begin("checkpoints", fix)

    def resume(
        self,
        restore: Callable[[Path], T],
    ) -> T | None:
        """Continues from the newest complete checkpoint.

        Args:
          restore: Reads one, all of it or nothing.

        Returns:
          What `restore` gave; None if there is no checkpoint.

        Raises:
          SettingsError: If the settings name no folder.
          TableError, DataError: As `Series.read`.
        """
        if self._series is None:
            fix = "Pass `ParallaxConfig(checkpoint=Checkpoints(folder))`."
            raise SettingsError("resume", "a folder of checkpoints in the settings", "none", fix)
        checkpoint = self._series.read(restore)
        self._series.claim()
        return checkpoint

    def save_if_due(
        self,
        steps: int,
        save: Callable[[Path, Path | None], None],
    ) -> Path | None:
        """Writes a checkpoint after so many steps, or so much time.

        Args:
          steps: Steps taken so far.
          save: Writes one into a folder, atomically; it may continue another one.

        Returns:
          The folder, if it has.
        """
        if self._when is None or self._series is None:
            return None
        by_time = self._when.every_seconds
        is_late = by_time is not None and time.monotonic() - self._last_s >= by_time
        if not (is_late if self._when.every_steps is None else steps % self._when.every_steps == 0):
            return None
        path = self._series.path(steps)
        base = self._base_for(path)
        self._series.write(steps, lambda path: save(path, base))
        self._last_s = time.monotonic()
        self._chain = [path] if base is None else [*self._chain, path]
        return path

    def _base_for(self, path: Path) -> Path | None:
        """The checkpoint that the next one continues; None if the next one is to have all rows."""
        assert self._when is not None
        chain = self._chain
        if not chain or len(chain) >= self._when.full_every or path in chain:
            return None
        return chain[-1] if chain[-1].is_dir() else None
