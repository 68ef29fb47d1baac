"""A program of a comparison, in a process of its own, with the environment that suits it best, where it waits until it is asked for a pass.

This module knows nothing of what is compared. `python -m experiments.bench.program MODULE:FUNCTION ARGUMENTS` is such a process.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol


class Program(Protocol):
    """What a process runs. Data are loaded and kernels compiled when it is made; a pass waits for its end."""

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
      needs: A package without which it can't run.
      cores: The cores that its process may use; by default all.
      to_target: Whether it is worth waiting for until it reaches a target.
      checkout: The folder of another checkout whose program this is; by default this one.
    """

    name: str
    setting: str
    make: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str | None] = field(default_factory=dict)
    needs: str | None = None
    cores: tuple[int, ...] = ()
    to_target: bool = True
    checkout: Path | None = None

    @property
    def missing(self) -> bool:
        """Whether the package that it needs is not installed."""
        return self.needs is not None and find_spec(self.needs) is None

    def variables(self) -> dict[str, str]:
        """All environment variables of its process."""
        own = {}
        for name, value in self.environment.items():
            if value is not None:
                own[name] = value
        if self.checkout:
            own["PYTHONPATH"] = str(self.checkout.absolute())
        return {
            name: value for name, value in os.environ.items() if name not in self.environment
        } | own


class Process:
    """A program in a process of its own.

    Args:
      entry: The program.

    Raises:
      RuntimeError: If the process ends before it is ready; its errors are on the terminal.
    """

    def __init__(self, entry: Entry):
        self.entry = entry
        command = [
            sys.executable,
            "-m",
            "experiments.bench.program",
            entry.make,
            json.dumps(dict(entry.arguments)),
        ]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=entry.variables(),
            cwd=entry.checkout,
            preexec_fn=partial(os.sched_setaffinity, 0, entry.cores) if entry.cores else None,
        )
        self._answer()

    def ask(self, what: str) -> dict[str, float]:
        """Asks for `train`, `infer`, `evaluate` or `updates`; gives `seconds`, and `value`: what the method returned.

        Raises:
          RuntimeError: If the process ends in place of an answer.
        """
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
        raise RuntimeError(
            f"bench, program `{self.entry.name}`: its process ended with status {self._process.wait()}"
        )


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
        print(
            "@" + json.dumps({"seconds": seconds, "value": value}),
            flush=True,
        )


if __name__ == "__main__":
    serve(*sys.argv[1:3])
