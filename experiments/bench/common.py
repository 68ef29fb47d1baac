"""Runs programs in turn and compares them.

Passes are taken in turn, so that whatever else the machine does hits all programs alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ampjax.errors import SettingsError
from ampjax.train.history import reaches
from ampjax.utils.text_tables import compact
from experiments.bench.program import Entry, Process
from experiments.records import append

PACKAGES = {
    "torch": 'PyTorch is not installed (pip install "ampjax[bench]"; its wheel for the CPU is enough)',
    "dynet": "DyNet can't be imported: its releases stop before today's Pythons",
}
"""What to say of a package that is not there."""


@dataclass(frozen=True)
class Result:
    """What was measured of a program: medians, but for the least and the most of training.

    Args:
      name: Its name.
      setting: Its setting, in words.
      train_per_s: Training throughput, examples per second.
      infer_per_s: Inference throughput, examples per second.
      seconds_to_target: Seconds of training until the target, if it was asked for and reached.
      updates: Optimizer steps in a pass.
      spread: Training throughput in the slowest and in the fastest pass.
    """

    name: str
    setting: str
    train_per_s: float
    infer_per_s: float
    seconds_to_target: float | None
    updates: float
    spread: tuple[float, float] = (0.0, 0.0)

    def record(
        self,
        bench: str,
        ours: Result,
    ) -> dict[str, Any]:
        """As a JSON object; `ratio_to_ours` is its training throughput over ours."""
        return {
            "bench": bench,
            "program": self.name,
            "setting": self.setting,
            "train_per_s": self.train_per_s,
            "infer_per_s": self.infer_per_s,
            "seconds_to_target": self.seconds_to_target,
            "ratio_to_ours": self.train_per_s / ours.train_per_s,
        }


def compare(
    bench: str,
    entries: Sequence[Entry],
    passes: int = 5,
    *,
    target: float | None = None,
    epochs: int = 13,
    json_file: Path | None = None,
    console: Console | None = None,
    metric: str = "accuracy",
) -> list[Result]:
    """Measures programs in turn; the first is ours. Those that need what is not installed are told and left out.

    Args:
      bench: The comparison's name.
      entries: The programs.
      passes: Measured passes of each; one more before them is not counted.
      target: A value of `metric`; if given, each program also trains up to it, and the time of its training passes is measured.
      epochs: Passes at most on the way there.
      json_file: File to which an object per program is appended.
      console: Where the table goes.
      metric: What `evaluate` gives: `accuracy`, or `error`, of which less is better.

    Raises:
      SettingsError: If `passes` or `epochs` is below 1.
    """
    if passes < 1 or epochs < 1:
        raise SettingsError(
            "bench, passes and epochs",
            "at least 1",
            f"{passes} and {epochs}",
            "Measure at least once.",
        )
    console = console or Console(highlight=False)
    processes: list[Process] = []
    try:
        for entry in present(entries, console):
            console.print(f"starting {entry.name} ({entry.setting})")
            process = _started(entry, console)
            if process is not None:
                processes.append(process)
        seconds = [_to_target(p, target, epochs, metric) for p in processes]
        speeds = _speeds(processes, passes)
        results = [
            _result(process, s, speed["train"], speed["infer"])
            for process, s, speed in zip(processes, seconds, speeds, strict=True)
        ]
    finally:
        for process in processes:
            process.close()
    console.print(_table(bench, results))
    append(
        json_file,
        (r.record(bench, results[0]) for r in results),
    )
    return results


def _started(entry: Entry, console: Console) -> Process | None:
    """A program's process; None if it needs another package and does not start, as with a package whose own libraries are missing."""
    try:
        return Process(entry)
    except RuntimeError as error:
        if entry.needs is None:
            raise
        console.print(f"going on without {entry.name}: {error}", soft_wrap=True)
        return None


def present(entries: Iterable[Entry], console: Console) -> list[Entry]:
    """The programs that can run here; of the others it says, once for each package, what is missing."""
    found = []
    absent = {}
    for entry in entries:
        if entry.missing:
            absent.setdefault(entry.needs, []).append(entry.name)
        else:
            found.append(entry)
    for package, names in absent.items():
        console.print(f"{PACKAGES[package]}: going on without {', '.join(dict.fromkeys(names))}")
    return found


def _speeds(
    processes: Sequence[Process],
    passes: int,
) -> list[dict[str, list[float]]]:
    """Examples per second of each program's passes, in turn; the first round is not counted."""
    speeds: list[dict[str, list[float]]] = [{"train": [], "infer": []} for _ in processes]
    for n in range(passes + 1):
        for process, speed in zip(processes, speeds, strict=True):
            for what, kept in speed.items():
                answer = process.ask(what)
                if n:
                    kept.append(answer["value"] / answer["seconds"])
    return speeds


def _result(
    process: Process,
    seconds: float | None,
    train: Sequence[float],
    infer: Sequence[float],
) -> Result:
    entry = process.entry
    updates = process.ask("updates")["value"]
    middle = statistics.median(train), statistics.median(infer)
    return Result(
        entry.name,
        entry.setting,
        *middle,
        seconds,
        updates,
        (min(train), max(train)),
    )


def _table(bench: str, results: Sequence[Result]) -> Any:
    """Programs and their figures, ours first."""
    headers = (
        "program",
        "setting",
        "train/s",
        "spread",
        "infer/s",
        "updates",
        "s to\ntarget",
        "ratio\nto ours",
    )
    table = compact(*headers, title=bench)
    for r in results:
        low, high = r.spread
        table.add_row(
            r.name,
            r.setting,
            f"{r.train_per_s:,.0f}",
            f"{low:,.0f} to {high:,.0f}",
            f"{r.infer_per_s:,.0f}",
            f"{r.updates:,.0f}",
            "" if r.seconds_to_target is None else f"{r.seconds_to_target:.1f}",
            f"{r.train_per_s / results[0].train_per_s:.2f}",
        )
    return table


def _to_target(
    process: Process,
    target: float | None,
    epochs: int,
    metric: str,
) -> float | None:
    """Seconds of training until the target is reached; None if it is not, or nobody asked."""
    if target is None or not process.entry.to_target:
        return None
    seconds = 0.0
    for _ in range(epochs):
        seconds += process.ask("train")["seconds"]
        if reaches(process.ask("evaluate")["value"], target, metric):
            return seconds
    return None
