"""Runs commands one after the other, each in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from experiments.records import read
from experiments.results.kept_records import NAME, Ended, Kept, add
from experiments.results.section import Command
from experiments.results.setting import ROOT

LONGEST_REASON = 200
"""Characters of a failure's reason that are kept."""

PROGRAM = sys.executable, "-m", "experiments"


def run_all(
    commands: Sequence[Command],
    kept: Kept,
    folder: Path,
    console: Console,
    check: Callable[[], None],
    most_minutes: float | None = None,
    program: Sequence[str] = PROGRAM,
    commit: str = "",
) -> None:
    """Runs all commands that have not ended well by now; the failure of one does not stop the others.

    Args:
      commands: In this order.
      kept: The records so far.
      folder: Where records, and what commands print, go.
      console: Where progress is shown.
      check: Called before each command; it raises an error if the run must not go on.
      most_minutes: No command begins that is expected to end later, counted from now; None for no limit.
      program: What a command's arguments stand behind.
      commit: The commit, if it is not the records' own.
    """
    todo = []
    for command in commands:
        before = kept.ended.get(command.name)
        if before is None or before.failure:
            todo.append(command)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    minutes = sum(command.minutes for command in todo)
    console.print(f"{len(todo)} of {len(commands)} commands, about {minutes:.0f} min")
    start = time.monotonic()
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=minutes)
        for command in todo:
            passed = (time.monotonic() - start) / 60
            if most_minutes is not None and passed + command.minutes > most_minutes:
                progress.console.print(f"{command.name}: left for --resume, the time is over")
                continue
            check()
            progress.update(task, description=command.name)
            ended = replace(run_one(command, folder, program), commit=commit)
            add(folder / NAME, ended)
            outcome = f"failed: {ended.failure}" if ended.failure else "done"
            progress.console.print(f"{command.name}: {outcome}, {ended.seconds:.0f} s")
            progress.advance(task, command.minutes)


def run_one(
    command: Command,
    folder: Path,
    program: Sequence[str] = PROGRAM,
) -> Ended:
    """Runs a command; the folder `raw` keeps its records and its output.

    Args:
      command: The command.
      folder: The run's.
      program: What its arguments stand behind.
    """
    raw = (folder / "raw").absolute()
    raw.mkdir(parents=True, exist_ok=True)
    records = raw / f"{command.name}.jsonl"
    records.unlink(missing_ok=True)
    printed = raw / f"{command.name}.txt"
    today = date.today().isoformat()
    begin = time.monotonic()
    arguments = [*program, *command.arguments, "--json", str(records)]
    if command.draws:
        arguments += ["--out", str(raw / command.name)]
    status = _status(
        arguments,
        command,
        printed,
    )
    seconds = time.monotonic() - begin
    failure = _failure(status, command, printed)
    found = []
    if read(records):
        try:
            found = list(command.summary(records))
        except Exception as error:  # the other commands go on, whatever one has written
            failure = failure or f"its records can't be read: {error!r}"[:LONGEST_REASON]
    elif not failure:
        failure = "it wrote no records"
    return Ended(
        command.name,
        command.text,
        round(seconds, 1),
        today,
        failure,
        found,
    )


def _status(
    arguments: Sequence[str],
    command: Command,
    printed: Path,
) -> int | None:
    """The exit status; None of a run that took too long. Whatever way this ends, the command's processes end, too."""
    with printed.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            arguments,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait(command.limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process together with all processes of its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _failure(
    status: int | None,
    command: Command,
    printed: Path,
) -> str:
    """The reason of a failure; empty without one."""
    if status == 0:
        return ""
    if status is None:
        return f"it took more than {command.limit_s / 60:.0f} minutes"
    lines = printed.read_text(encoding="utf-8", errors="replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    of_errors = [line for line in said if line.startswith("error:")]
    last = [*said, *of_errors][-1:] or [f"it ended with status {status}"]
    reason = last[0].removeprefix("error:").strip()
    return without_folders(reason)[:LONGEST_REASON]


def without_folders(text: str) -> str:
    """A text in which this machine's folders have other names.

    Args:
      text: May name the folder of the data, or the checkout.
    """
    data = os.environ.get("AMPJAX_DATA")
    if data:
        text = text.replace(data, "$AMPJAX_DATA")
    return text.replace(str(ROOT), ".")
