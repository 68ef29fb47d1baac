"""The tables of a run that continues from a checkpoint: the checkpoint's tables, whatever alpha would say today.

Knows plans and settings; reads no file.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ampjax.errors import DataError, SettingsError
from ampjax.parallel.config.config import ParallaxConfig
from ampjax.parallel.config.leaf_paths import matches

AS_SAVED = "as in the checkpoint that the run goes on from"
"""Completes a variable's choice."""


@dataclass(frozen=True)
class SavedTables:
    """The tables of a checkpoint.

    Args:
      folder: The checkpoint, for errors.
      axes: By path the axes along which their rows are counted.
    """

    folder: str
    axes: Mapping[str, tuple[int, ...]]

    def require_allowed(
        self,
        config: ParallaxConfig,
        may_be_tables: Collection[str],
        text: Mapping[str, str],
    ) -> None:
        """Checks that the user did not choose other kinds by name.

        Args:
          config: The settings.
          may_be_tables: The variables that could be tables.
          text: By path how it is written for users.

        Raises:
          SettingsError: If a setting says of a variable that it is dense, or a table, and the checkpoint says the contrary.
        """
        fix = "Leave the setting as it was; or begin a new run from its parameters: `get_runner(loss_fn, runner.params, ...)`."
        for path in self.axes:
            name = text.get(path, path)
            if pattern := next((each for each in config.keep_dense if matches(each, name)), None):
                where = f"setting `keep_dense`, `{pattern}`"
                got = f"a checkpoint with table `{name}`, {self.folder}"
                raise SettingsError(where, "a run in which it is dense", got, fix)
        dense = [text[path] for path in may_be_tables if path not in self.axes]
        if config.alpha_threshold > 1 and dense:
            where = f"setting `alpha_threshold`, {config.alpha_threshold:g}, by which all sparse variables are tables"
            got = f"a checkpoint in which `{dense[0]}` is dense, {self.folder}"
            raise SettingsError(where, "a run in which they are", got, fix)

    def foreign(self, path: str, why: str) -> DataError:
        """The error for a table that the program does not use as one.

        Args:
          path: The table, as it is written for users.
          why: What the program does with it.
        """
        where = f"checkpoint {self.folder}, table `{path}`"
        return DataError(
            where, "a variable that is read row by row", why, "Restore into the same model."
        )
