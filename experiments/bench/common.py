"""Runs programs in turn and compares them.

Each program lives in a process of its own, with the environment that suits it best, and waits there until it is asked for a pass. Passes are
taken in turn, so that whatever else the machine does hits all of them alike.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from ampjax.errors import SettingsError
from ampjax.history import reaches
from ampjax.tables import compact


class Program(Protocol):
    """What a peer's process runs. Data are loaded and kernels compiled when it is made; a pass waits for its end."""

    def train(self) -> int:
        """One training pass; gives the number of examples."""
        ...

    def infer(self) -> int:
        """One inference pass; gives the number of examples."""
        ...

    def evaluate(self) -> float:
        """The validation accuracy (for regression: error) as things stand."""
        ...

    def updates(self) -> float:
        """Optimizer steps in a training pass, for a parameter on average."""
        ...


@dataclass(frozen=True)
class Entry:
    """A program in a comparison.

    Args:
      name: Its name.
      setting: Its setting, in words.
      make: Where it is made: `module:function`; the function gives a `Program`.
      arguments: Keyword arguments of that function.
      environment: Environment variables of its process; None takes one away.
    """

    name: str
    setting: str
    make: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What was measured of a program: medians."""

    name: str
    setting: str
    train_per_s: float
    infer_per_s: float
    seconds_to_target: float | None
    updates: float

    def record(self, bench: str, ours: Result) -> dict[str, Any]:
        """As a JSON object; `ratio_to_ours` is its training throughput over ours."""
        return {
            "bench": bench,
            "program": self.name,
            "setting": self.setting,
            "train_per_s": self.train_per_s,
            "infer_per_s": self.infer_per_s,
            "seconds_to_target": self.seconds_to_target,
            "ratio_to_ours": self.train_per_s / ours.train_per_s,
            "updates": self.updates,
        }


class Process:
    """A program in a process of its own.

    Args:
      entry: The program.

    Raises:
      RuntimeError: If the process ends before it is ready; its errors are on the terminal.
    """

    def __init__(self, entry: Entry):
        self.entry = entry
        environment = dict(os.environ)
        for name, value in entry.environment.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        command = [sys.executable, "-m", "experiments.bench.common", entry.make, json.dumps(dict(entry.arguments))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()

    def ask(self, what: str) -> dict[str, float]:
        """Asks for `train`, `infer`, `evaluate` or `updates`; gives `seconds`, and `value`: what the method returned."""
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise RuntimeError(f"bench, program `{self.entry.name}`: its process ended with status {self._process.wait()}")


def compare(
    bench: str,
    entries: Sequence[Entry],
    passes: int = 5,
    target: float | None = None,
    epochs: int = 13,
    json_file: Path | None = None,
    console: Console | None = None,
    metric: str = "accuracy",
) -> list[Result]:
    """Measures programs in turn; the first is ours.

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
            "bench, passes and epochs", "at least 1", f"{passes} and {epochs}", "Measure at least once."
        )
    console = console or Console(highlight=False)
    processes: list[Process] = []
    try:
        for entry in entries:
            console.print(f"starting {entry.name} ({entry.setting})")
            processes.append(Process(entry))
        to_target = [_to_target(p, target, epochs, metric) if target is not None else None for p in processes]
        speeds: dict[tuple[int, str], list[float]] = {}
        for n in range(passes + 1):
            for i, process in enumerate(processes):
                for what in ("train", "infer"):
                    answer = process.ask(what)
                    if n:
                        speeds.setdefault((i, what), []).append(answer["value"] / answer["seconds"])
        updates = [process.ask("updates")["value"] for process in processes]
    finally:
        for process in processes:
            process.close()
    results = [
        Result(
            e.name,
            e.setting,
            statistics.median(speeds[i, "train"]),
            statistics.median(speeds[i, "infer"]),
            to_target[i],
            updates[i],
        )
        for i, e in enumerate(entries)
    ]
    table = compact(
        "program", "setting", "train/s", "spread", "infer/s", "updates", "s to\ntarget", "ratio\nto ours", title=bench
    )
    for i, r in enumerate(results):
        low, high = min(speeds[i, "train"]), max(speeds[i, "train"])
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
    console.print(table)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        with json_file.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(r.record(bench, results[0])) + "\n" for r in results)
    return results


def _to_target(process: Process, target: float, epochs: int, metric: str) -> float | None:
    """Seconds of training until the target is reached; None if it is not."""
    seconds = 0.0
    for _ in range(epochs):
        seconds += process.ask("train")["seconds"]
        if reaches(process.ask("evaluate")["value"], target, metric):
            return seconds
    return None


def serve(make: str, arguments: str) -> None:
    """What a program's process does: makes it, says so, and answers requests until its input ends."""
    from experiments.common import cache_compilations

    cache_compilations()
    module, _, function = make.partition(":")
    program: Program = getattr(importlib.import_module(module), function)(**json.loads(arguments))
    print("@{}", flush=True)
    for line in sys.stdin:
        begin = time.perf_counter()
        value = getattr(program, line.strip())()
        seconds = time.perf_counter() - begin
        print("@" + json.dumps({"seconds": seconds, "value": value}), flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:3])
