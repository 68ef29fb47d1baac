"""Measurements in a process of their own: `python -m experiments.bench.children MODULE:FUNCTION ARGUMENTS` prints what the function returns."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ampjax import errors

MISTAKE = 3
"""The status of a process whose last line is an error of ours rather than a result."""


def in_a_process(
    function: Callable[..., Any],
    arguments: Mapping[str, Any],
    environment: Mapping[str, str | None],
) -> Any:
    """Returns the result of a module's function in a fresh process.

    Args:
      function: The function; its result survives JSON.
      arguments: Its keyword arguments, which survive JSON too.
      environment: Environment variables that differ; None takes one away.

    Raises:
      AmpError: What the function raises of these.
      RuntimeError: If the process fails otherwise; its errors are on the terminal.
    """
    where = f"{function.__module__}:{function.__name__}"
    command = [
        sys.executable,
        "-m",
        "experiments.bench.children",
        where,
        json.dumps(dict(arguments)),
    ]
    variables = {
        name: value for name, value in {**os.environ, **environment}.items() if value is not None
    }
    done = subprocess.run(
        command,
        env=variables,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode == MISTAKE:
        name, *parts = json.loads(done.stdout.splitlines()[-1])
        raise getattr(errors, name)(*parts)
    if done.returncode:
        raise RuntimeError(f"bench, `{where}`: its process ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def run(where: str, arguments: str) -> None:
    """Calls a module's function in this process, and prints the result as JSON."""
    module, _, name = where.partition(":")
    try:
        result = getattr(importlib.import_module(module), name)(**json.loads(arguments))
    except errors.AmpError as error:
        print(json.dumps([type(error).__name__, error.where, error.expected, error.got, error.fix]))
        sys.exit(MISTAKE)
    print(json.dumps(result))


if __name__ == "__main__":
    run(*sys.argv[1:3])
