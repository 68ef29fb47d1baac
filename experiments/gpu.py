"""`python -m experiments gpu`: batches as one function beside plain JAX by hand, on one accelerator, within minutes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from ampjax.errors import SettingsError
from experiments.bench.batch.driver import BatchBench, row_of, table_of
from experiments.bench.batch.work import Amount

WORKS = (
    "list-reduction-100",
    "trees",
    "tagger",
    "small-graphs",
    "graph-attention",
    "attention-200",
    "attention-64",
    "molecules-64",
    "chain",
)
"""The works that are measured, in this order."""


@dataclass(frozen=True, kw_only=True)
class GpuOptions:
    """Checks on one accelerator that batches and plain JAX by hand agree, and measures both, in turn.

    A work that would begin after the time is over is left out, and named. Loops have the form that this back end takes.

    Args:
      minutes: Time for all works; the one that is under way when it is over is finished.
      rounds: Measured rounds of each form; one more before them is not counted.
      size: Examples, and lengths of generated ones, as a part of what is measured by default.
      synthetic: Generated data in place of the treebank, WikiNER and QM9.
      data_dir: Folder with data files; else AMPJAX_DATA.
      json: File to which a JSON object is appended for each work.
    """

    minutes: float = 7.0
    rounds: int = 5
    size: float = 1.0
    synthetic: bool = True
    data_dir: Path | None = None
    json: Path | None = None


def main(
    options: GpuOptions,
    console: Console | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[dict[str, Any]]:
    """Prints the device, a line for each measured work at once, and a table; gives the table's rows.

    Args:
      options: The options.
      console: Where it prints.
      clock: Seconds since any moment.

    Raises:
      SettingsError: If an option is outside what it can be.
      DataError: If a data file is missing or damaged.
      ValueError: If both forms of a work differ.
    """
    if options.rounds < 1 or min(options.size, options.minutes) <= 0:
        expected = "at least 1 round, a size and minutes above 0"
        raise SettingsError("gpu", expected, f"{options}", "Change the option.")
    console = console or Console(highlight=False)
    device = jax.devices()[0]
    console.print(f"{device.device_kind} ({device.platform}), JAX {jax.__version__}")
    amount = Amount(options.size, options.synthetic, options.data_dir)
    bench = BatchBench(rounds=options.rounds, json=options.json)
    end = clock() + 60 * options.minutes
    rows = []
    left_out = []
    for name in WORKS:
        if clock() > end:
            left_out.append(name)
            continue
        row = row_of(name, amount, bench)
        rows.append(row)
        console.print(f"{name}: same loss and gradients; {row['ratio']:.2f} of plain JAX's speed")
    console.print(table_of(rows))
    if left_out:
        console.print(f"Left out, the time was over: {', '.join(left_out)}")
    return rows
