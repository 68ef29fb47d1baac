"""`python -m experiments results`: all figures of the results page from one commit, and the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from rich.console import Console

from ampjax.errors import SettingsError
from experiments.results import runs
from experiments.results.kept_records import NAME, Kept, begin, begin_again, load, require_same
from experiments.results.page import publish
from experiments.results.section import Command, Section
from experiments.results.sections import SECTIONS
from experiments.results.setting import setting_of


@dataclass(frozen=True, kw_only=True)
class ResultsOptions:
    """Measures the figures of the results page, section by section, each command in a process of its own, and writes the page from the records.

    It takes about 50 minutes on two cores, on which nothing else should run. Programs of packages that are not installed are left out.

    Args:
      out: Folder for the records; what each command printed is in its folder `raw`.
      only: Only sections, or commands, of these names.
      resume: Go on in a folder with records: commands that ended well are not run again.
      again: In a folder with records, measure the commands of --only again, at this commit, which the page then names beside them.
      allow_dirty: Measure although files differ from the commit; the page says so.
      docs: Folder of the documentation: writes its page `results.md` and the marked tables of `index.md` from the folder's records, and keeps these as
        `measurements/results.jsonl`.
      run: Whether to measure; `--no-run --docs docs` writes the pages again.
      minutes: Begins no command that is expected to end later than so many minutes after the start; --resume runs what is left.
      show: Only list sections, commands and minutes.
    """

    out: Path = Path("runs/results")
    only: tuple[str, ...] = ()
    resume: bool = False
    again: bool = False
    allow_dirty: bool = False
    docs: Path | None = None
    run: bool = True
    minutes: float | None = None
    show: bool = False


def main(
    options: ResultsOptions,
    console: Console | None = None,
    sections: Sequence[Section] = SECTIONS,
    program: Sequence[str] = runs.PROGRAM,
) -> Kept | None:
    """Measures, and writes the pages; gives the records.

    Args:
      options: The options.
      console: Where progress is shown.
      sections: Of the page.
      program: What a command's arguments stand behind.

    Raises:
      SettingsError: If a name is unknown, files differ from the commit, or the folder has records of another setting.
      DataError: If the folder's records can't be read.
    """
    console = console or Console(highlight=False)
    commands = chosen(sections, options.only)
    if options.show:
        _show(sections, console)
        return None
    path = options.out / NAME
    if options.run:
        _measure(options, commands, console, program)
    kept = load(path)
    if options.docs is not None:
        for written in publish(path, options.docs, sections):
            console.print(f"written: {written}")
    return kept


def chosen(sections: Sequence[Section], names: Sequence[str]) -> list[Command]:
    """The commands of sections, or the commands, of some names; all if there are no names.

    Args:
      sections: Of the page.
      names: Of sections and commands.

    Raises:
      SettingsError: If a name is unknown.
    """
    found = []
    known = set()
    for section in sections:
        known.add(section.name)
        for command in section.commands:
            known.add(command.name)
            if not names or section.name in names or command.name in names:
                found.append(command)
    unknown = sorted(set(names) - known)
    if unknown:
        raise SettingsError(
            "--only",
            f"some of {', '.join(sorted(known))}",
            ", ".join(unknown),
            "Choose among these; --show lists them.",
        )
    return found


def _measure(
    options: ResultsOptions,
    commands: Sequence[Command],
    console: Console,
    program: Sequence[str],
) -> None:
    """Runs the commands, all at one commit, which is another one than that of the records only where commands are measured again."""
    setting = setting_of(date.today().isoformat())
    if setting.changed and not options.allow_dirty:
        raise SettingsError(
            "results",
            f"the files of commit {setting.commit}",
            "files that differ from it",
            "Commit the changes, or add --allow-dirty for a trial.",
        )
    path = options.out / NAME
    if options.again:
        kept = begin_again(path, setting, [command.name for command in commands])
    else:
        kept = begin(path, setting, options.resume)
    commit = "" if setting.commit == kept.setting.commit else setting.commit

    def check() -> None:
        require_same(setting, setting_of(setting.date))

    runs.run_all(
        commands,
        kept,
        options.out,
        console,
        check,
        options.minutes,
        program,
        commit,
    )


def _show(sections: Sequence[Section], console: Console) -> None:
    """Prints sections, commands and minutes."""
    for section in sections:
        console.print(f"{section.name} ({section.minutes:.1f} min): {section.title}")
        for command in section.commands:
            console.print(f"  {command.name}: {command.text}", soft_wrap=True)
    console.print(f"{sum(section.minutes for section in sections):.0f} min together")
