"""Numbered checkpoints of one run in one folder. Each is complete or not there; the last few are kept, and the newest undamaged one is read.

Each is a folder that `runner_files` writes atomically. A damaged one is not deleted: parts of it may still be of use.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ampjax.errors import DataError, TableError
from ampjax.parallel.checkpoints import runner_files
from ampjax.utils.setting_checks import a_path

T = TypeVar("T")


class SnapshotWarning(UserWarning):
    """A snapshot is damaged, so an older one was used."""


class Series:
    """A folder of numbered checkpoints.

    Args:
      folder: The folder; made when the first is written.
      stem: What the checkpoints' names begin with; their number follows.
      keep: How many of the newest are kept; None for all.

    Raises:
      SettingsError: If the folder is no path.
    """

    def __init__(
        self,
        folder: str | Path,
        stem: str,
        keep: int | None = None,
    ):
        self.folder = a_path("checkpoints, folder", folder).resolve()
        self._stem = stem
        self._keep = keep
        self._is_own = False  # whether what is there was written here, or gone on from

    def claim(self) -> None:
        """Notes that a run continues from one of these checkpoints, or from another that the user has chosen."""
        self._is_own = True

    def begin(self, what: str, fix: str) -> None:
        """Begins a run that continues from none of these checkpoints, unless they have been claimed.

        Args:
          what: What errors call them.
          fix: What a user is to do if there are some.

        Raises:
          DataError: If there are some of another run: it would not be clear of which run the newest is.
        """
        numbers = [] if self._is_own else self.numbers()
        if numbers:
            got = f"`{self.path(numbers[0]).name}` of another run"
            raise DataError(f"{what}, `{self.folder}`", "none yet", got, fix)
        self.claim()

    def numbers(self) -> list[int]:
        """Lists the numbers of the existing checkpoints, the newest first. Deletes the leftovers of killed saves beside them.

        Returns:
          The numbers.
        """
        if not self.folder.is_dir():
            return []
        name = re.compile(re.escape(self._stem) + r"(\d+)(\..*)?")
        matches = [match for path in self.folder.iterdir() if (match := name.fullmatch(path.name))]
        for number in {int(match[1]) for match in matches if match[2]}:
            runner_files.sweep(self.path(number))
        return sorted(
            {int(match[1]) for match in matches if self._is_there(int(match[1]))},
            reverse=True,
        )

    def path(self, number: int) -> Path:
        """The folder of a checkpoint.

        Returns:
          Its path.
        """
        return self.folder / f"{self._stem}{number}"

    def write(
        self,
        number: int,
        save: Callable[[Path], None],
    ) -> None:
        """Writes a checkpoint; only then deletes checkpoints older than the newest few and their chains.

        Args:
          number: Its number.
          save: Writes it into a folder, atomically.
        """
        save(self.path(number))
        if self._keep is None:
            return
        numbers = [n for n in self.numbers() if n <= number]
        needed = set()
        for kept in numbers[: self._keep]:
            needed.update(runner_files.bases_of(self.path(kept)))
        for old in numbers[self._keep :]:
            if self.path(old) not in needed:
                shutil.rmtree(self.path(old), ignore_errors=True)

    def read(
        self,
        load: Callable[[Path], T],
    ) -> T | None:
        """Reads the newest undamaged checkpoint.

        Args:
          load: Reads one, all of it or nothing.

        Returns:
          The result of `load`; None if there is no checkpoint.

        Raises:
          TableError: If there are some and all are damaged; the error is that of the newest.
          DataError: If the newest undamaged one is of another model.

        Warns:
          SnapshotWarning: For each damaged checkpoint that was skipped.
        """
        passed_over: list[TableError] = []
        for number in self.numbers():
            try:
                loaded = load(self.path(number))
            except TableError as error:
                passed_over.append(error)
                continue
            for error in passed_over:
                message = (
                    f"a snapshot is damaged, and `{self.path(number)}` was taken instead: {error}"
                )
                warnings.warn(message, SnapshotWarning, stacklevel=2)
            return loaded
        if passed_over:
            raise passed_over[0]
        return None

    def _is_there(self, number: int) -> bool:
        """Tells whether a checkpoint exists, perhaps under the name that it has while it is replaced."""
        path = self.path(number)
        return path.is_dir() or any(path.parent.glob(f"{path.name}.*.old"))
