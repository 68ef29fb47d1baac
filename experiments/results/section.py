"""A section of the results page: its commands, and how their records become a table."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Records = Sequence[Mapping[str, Any]]
"""JSON objects, as a command wrote them with `--json`, or a summary of these."""


@dataclass(frozen=True)
class Command:
    """An experiment that a section runs, in a process of its own.

    Args:
      name: Its name among all commands; also of its files.
      arguments: Behind `python -m experiments`, without `--json` and `--out`.
      minutes: Expected on two cores. A run that takes three times as long, and at least five minutes, is ended.
      summary: From the file that `--json` wrote to the records that are kept.
      draws: Whether it takes `--out`, a folder for pictures.
    """

    name: str
    arguments: tuple[str, ...]
    minutes: float
    summary: Callable[[Path], Records]
    draws: bool = False

    @property
    def text(self) -> str:
        """The command line, without the names of files."""
        return f"python -m experiments {shlex.join(self.arguments)}"

    @property
    def limit_s(self) -> float:
        """Seconds after which the run is ended."""
        return 60 * max(5.0, 3 * self.minutes)


@dataclass(frozen=True)
class Section:
    """A table of the page with its commands.

    Args:
      name: Its name on the command line.
      part: The heading under which it stands.
      title: Its own heading.
      introduction: Sentences above the table, in Markdown.
      commands: They are run one after the other.
      table: From the records of each command that has ended, by its name, to Markdown; empty if there is nothing to show.
      notes: Sentences below the table.
    """

    name: str
    part: str
    title: str
    introduction: str
    commands: tuple[Command, ...]
    table: Callable[[Mapping[str, Records]], str]
    notes: str = ""

    @property
    def minutes(self) -> float:
        """Expected on two cores."""
        return sum(command.minutes for command in self.commands)
