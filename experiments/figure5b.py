"""AMPNet's figure 5b: throughput and epochs to a target of list reduction, over `max_active_keys` and `min_update_interval`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
from rich.console import Console

from ampjax.errors import SettingsError
from ampjax.utils.text_tables import compact
from ampjax.viz.front import Point, front
from experiments import list_reduction
from experiments.common import require_positive
from experiments.list_reduction import ListReductionOptions
from experiments.report import Row, read, summarise

Place = tuple[int, int]
"""`max_active_keys` and `min_update_interval`."""


@dataclass(frozen=True, kw_only=True)
class Figure5bOptions:
    """Trains list reduction with each `max_active_keys` and `min_update_interval`; a table, and all settings in one picture.

    Many buckets in flight keep the machine busy and make gradients stale; long intervals make few and steady updates. Settings on one dashed
    line of the picture take the same time to the target.

    Args:
      max_active_keys: Buckets in flight.
      min_update_interval: Gradient rows between a node's updates: a bucket brings 6 on average; `linear2`, which gets one, waits for a sixth.
      full: The paper's 100,000 sequences, 13 epochs and 97 %.
      n_train: Training sequences.
      n_valid: Validation sequences.
      batch_size: Sequences in a bucket.
      hidden: Features of embedding and hidden state.
      epochs: Epochs at most, over which the learning rate falls.
      target: Validation accuracy to reach.
      policy: Which messages a worker takes next.
      max_dispatch_size: Messages in one dispatch at most: what lets throughput grow with the buckets in flight.
      flops: Train in the virtual time of devices of so many operations per second, in place of this machine's.
      seed: One seed or several.
      json: File to which each epoch of each run is appended.
      out: Folder for the picture and each run's own files.
    """

    max_active_keys: tuple[int, ...] = (1, 4, 16)
    min_update_interval: tuple[int, ...] = (1, 6, 24)
    full: bool = False
    n_train: int = 20_000
    n_valid: int = 2000
    batch_size: int = 100
    hidden: int = 128
    epochs: int = 8
    target: float = 0.6
    policy: str = "largest"
    max_dispatch_size: int = 8
    flops: float | None = None
    seed: tuple[int, ...] = (0,)
    json: Path | None = None
    out: Path = Path("runs/figure5b")


def main(
    options: Figure5bOptions,
    console: Console | None = None,
) -> dict[Place, Row]:
    """Trains, prints the table and draws; gives each setting's row. After Ctrl-C, those of the settings before the one in hand.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    swept = {name: getattr(options, name) for name in ("max_active_keys", "min_update_interval")}
    require_positive(
        "The defaults are 1, 4, 16 and 1, 6, 24.",
        **{name: min(v, default=0) for name, v in swept.items()},
    )
    for name, values in swept.items():
        if len(set(values)) < len(values):
            raise SettingsError(
                f"--{name.replace('_', '-')}", "different numbers", f"{values}", "Give each once."
            )
    if options.full:
        options = replace(
            options,
            n_train=100_000,
            n_valid=10_000,
            epochs=13,
            target=0.97,
        )
    rows: dict[Place, Row] = {}
    for place in product(*swept.values()):
        run = run_options(options, *place)
        if any(history.interrupted for history in list_reduction.main(run)):
            break
        ((setting, runs),) = read([folder(options, *place) / "history.jsonl"]).items()
        rows[place] = summarise(setting, runs)
    if rows:
        show(rows, console or Console(highlight=False))
        draw(rows, options.out / "figure5b.png")
        print(f"the picture is {options.out / 'figure5b.png'}")
    return rows


def folder(options: Figure5bOptions, keys: int, interval: int) -> Path:
    """Where a setting's files are."""
    return options.out / f"{keys}-{interval}"


def run_options(options: Figure5bOptions, keys: int, interval: int) -> ListReductionOptions:
    """One setting's run."""
    own = {"max_active_keys", "min_update_interval", "full", "out"}
    same = {}
    for field, value in vars(options).items():
        if field not in own:
            same[field] = value
    out = folder(options, keys, interval)
    return ListReductionOptions(max_active_keys=keys, min_update_interval=interval, out=out, **same)


def show(rows: Mapping[Place, Row], console: Console) -> None:
    """Prints a line for each setting: medians over seeds."""
    headers = (
        "in flight",
        "interval",
        "epochs to\ntarget",
        "seconds",
        "best",
        "train/s",
        "staleness",
    )
    table = compact(*headers)
    for (keys, interval), row in rows.items():
        epochs, seconds, best = (
            statistics.median(values) for values in (row.epochs, row.seconds, row.best)
        )
        reached = (f"{epochs:g}", f"{seconds:.1f}") if np.isfinite(epochs) else ("not reached", "")
        cells = f"{100 * best:.1f} %", f"{row.speed[0]:,.0f}", f"{row.staleness:.1f}"
        table.add_row(str(keys), str(interval), *reached, *cells)
    console.print(table)


def draw(rows: Mapping[Place, Row], path: Path) -> None:
    """The picture: a line for each interval, a point for each number of buckets in flight."""
    series: dict[str, list[Point]] = {}
    for (keys, interval), row in rows.items():
        point = Point(
            str(keys),
            row.speed[0],
            statistics.median(row.epochs),
        )
        series.setdefault(f"min_update_interval {interval}", []).append(point)
    front(
        series,
        next(iter(rows.values())).n_train,
        path,
    )
