"""The records of a run in one file: the setting in its first line, then a line for each command that has ended."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ampjax.errors import DataError, SettingsError
from experiments.records import append, read
from experiments.results.section import Records
from experiments.results.setting import Setting

NAME = "results.jsonl"


@dataclass(frozen=True)
class Ended:
    """A command that has ended.

    Args:
      command: Its name.
      text: The command line.
      seconds: As long as it took.
      date: When it began, as year, month and day.
      failure: Why there is nothing; empty if all went well.
      records: What is kept of its records.
      commit: Where it was measured again; empty for the commit of the whole run.
    """

    command: str
    text: str
    seconds: float
    date: str
    failure: str = ""
    records: Records = ()
    commit: str = ""


@dataclass(frozen=True)
class Kept:
    """A run's records.

    Args:
      setting: What all have in common.
      ended: By the command's name, the latest of each.
    """

    setting: Setting
    ended: Mapping[str, Ended]

    @property
    def later_commits(self) -> str:
        """The commits at which some commands were measured again; empty for none."""
        return ", ".join(sorted({each.commit for each in self.ended.values()} - {""}))

    def at(self, ended: Ended) -> str:
        """Commit and version of JAX of a command, in words."""
        if not ended.commit:
            return self.setting.at
        return replace(self.setting, commit=ended.commit).at

    def records(self) -> dict[str, Records]:
        """The records of commands that have some, by the command's name."""
        found = {}
        for name, each in self.ended.items():
            if each.records:
                found[name] = each.records
        return found


def load(path: Path) -> Kept:
    """Reads a file of records.

    Args:
      path: The file.

    Raises:
      DataError: If there is none, or it is no file of records.
    """
    lines = read(path)
    try:
        setting = Setting(**lines[0])
        ended = {}
        for line in lines[1:]:
            ended[line["command"]] = Ended(**line)
    except (IndexError, TypeError, KeyError) as error:
        raise DataError(
            f"{path}",
            "a setting, and a line for each command that has ended",
            f"{len(lines)} lines of something else",
            "Run `python -m experiments results --out FOLDER` first.",
        ) from error
    return Kept(setting, ended)


def begin_again(path: Path, setting: Setting, commands: Collection[str]) -> Kept:
    """The records of a run of which some commands are measured again, at another commit on the same machine.

    Args:
      path: The file.
      setting: This process's.
      commands: The names of these commands.

    Raises:
      SettingsError: If versions or the machine differ.
      DataError: If the file is no file of records.
    """
    kept = load(path)
    require_same(
        replace(kept.setting, commit=setting.commit, changed=setting.changed),
        setting,
    )
    others = {name: each for name, each in kept.ended.items() if name not in commands}
    return replace(kept, ended=others)


def begin(path: Path, setting: Setting, resume: bool) -> Kept:
    """The records of a run that begins, or goes on.

    Args:
      path: The file.
      setting: The run's.
      resume: Whether the file's records count, if there are some.

    Raises:
      SettingsError: If there are records, and they are not to count, or come from another commit, machine or version.
      DataError: If the file is no file of records.
    """
    if not path.is_file():
        append(path, [setting.record()])
        return Kept(setting, {})
    if not resume:
        raise SettingsError(
            f"--out {path.parent}",
            "a folder without records",
            "the records of a run",
            "Go on with --resume, or choose another folder.",
        )
    kept = load(path)
    require_same(kept.setting, setting)
    return kept


def require_same(kept: Setting, now: Setting) -> None:
    """Refuses to mix figures of different commits, versions or machines.

    Args:
      kept: The setting of the records.
      now: The setting of this process.

    Raises:
      SettingsError: If they differ in anything but the date.
    """
    if replace(kept, date=now.date) == now:
        return
    then_has = asdict(kept)
    now_has = asdict(now)
    differ = [name for name in now_has if name != "date" and then_has[name] != now_has[name]]
    raise SettingsError(
        "--resume",
        ", ".join(f"{name} {then_has[name]}" for name in differ),
        ", ".join(f"{name} {now_has[name]}" for name in differ),
        "Figures of one page have one setting: choose another folder to measure all again.",
    )


def add(path: Path, ended: Ended) -> None:
    """Appends a command that has ended.

    Args:
      path: The file.
      ended: The command.
    """
    record: dict[str, Any] = asdict(ended)
    append(path, [record])
