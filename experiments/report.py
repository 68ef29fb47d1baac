"""The papers' tables from runs' JSON Lines: each run's time and epochs to a target, and the median over runs (AMPNet, tables 1 and 2)."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from ampjax.errors import DataError, SettingsError
from ampjax.train.history import best, reaches
from ampjax.utils.bounded_reading import parse_json
from ampjax.viz.front import Point, front

Record = Mapping[str, Any]
"""One epoch, as an experiment writes it."""

Setting = tuple[str, str, int, str]
"""Experiment, mode, `max_active_keys`, and the other options that are not the experiment's defaults."""


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Makes a Markdown table with a row for each setting, with medians over seeds. If a run was made twice, the last one counts.

    Seconds are those of training and validation, after the paper's protocol (Appendix C): epochs x (n_train / train_per_s + n_valid / valid_per_s);
    start and compilation are not in them. A run that did not reach the target counts as infinitely late.

    Args:
      files: JSON Lines files that experiments wrote.
      target: Validation accuracy (for regression: error) to reach; by default each experiment's own.
      plot: A picture of throughput against epochs to the target, with lines of equal time (figure 5); for runs of one experiment.
      by: What its points are told apart by, and joined along: `max-active-keys` (figure 5a) or `min-update-interval` (5b).
    """

    files: tyro.conf.Positional[tuple[Path, ...]]
    target: float | None = None
    plot: Path | None = None
    by: Literal["max-active-keys", "min-update-interval"] = "max-active-keys"


@dataclass(frozen=True)
class Row:
    """What the runs of a setting came to.

    Args:
      setting: The setting.
      seeds: Seeds of the runs.
      epochs: Epochs to the target, a run each; infinite if it was not reached.
      seconds: Seconds to the target, as `ReportOptions` says.
      best: Best validation values, a run each.
      metric: `accuracy` or `error`.
      speed: Median training and validation examples per second.
      staleness: Mean staleness, median over epochs.
      n_train: Training examples in an epoch.
      min_update_interval: Of nodes that have none of their own.
    """

    setting: Setting
    seeds: Sequence[int]
    epochs: Sequence[float]
    seconds: Sequence[float]
    best: Sequence[float]
    metric: str
    speed: tuple[float, float]
    staleness: float
    n_train: int
    min_update_interval: int = 0


def main(
    options: ReportOptions,
    console: Console | None = None,
) -> list[Row]:
    """Prints the table.

    Raises:
      SettingsError: If no file is given.
      DataError: If a file is missing, or a line of it is no record of an experiment.
    """
    if not options.files:
        raise SettingsError("report", "at least one file", "none", "Give files that --json wrote.")
    rows = []
    for setting, runs in sorted(read(options.files).items()):
        rows.append(summarise(setting, runs, options.target))
    headers = (
        "experiment",
        "mode",
        "max_active_keys",
        "other options",
        "seeds",
        "epochs to target",
        "seconds to target",
    )
    table = Table(
        *headers, "best (median, s.d.)", "train/s", "valid/s", "staleness", box=box.MARKDOWN
    )
    for row in rows:
        table.add_row(*_cells(row))
    (console or Console(width=240, highlight=False)).print(table)
    if options.plot is not None:
        plot(rows, options.plot, options.by)
    return rows


def plot(
    rows: Sequence[Row],
    path: Path,
    by: str = "max-active-keys",
) -> None:
    """Draws throughput against epochs to the target: a line for each mode and choice of options, a point for each value of `by`.

    Args:
      rows: Of one experiment.
      path: The picture.
      by: `max-active-keys` or `min-update-interval`.

    Raises:
      SettingsError: If the rows belong to several experiments, or the file name is not that of a picture.
    """
    sizes = {(row.setting[0], row.n_train) for row in rows}
    if len(sizes) != 1:
        raise SettingsError(
            "--plot",
            "runs of one experiment on the same data",
            f"{sorted(sizes)}",
            "Give files of one experiment.",
        )
    lines: dict[str, dict[int, Point]] = {}
    for row in rows:
        line, value = _place(row, by)
        lines.setdefault(line, {})[value] = Point(
            str(value), row.speed[0], statistics.median(row.epochs)
        )
    front(
        {line: [points[n] for n in sorted(points)] for line, points in lines.items()},
        rows[0].n_train,
        path,
    )


def _place(row: Row, by: str) -> tuple[str, int]:
    """The line on which a setting stands, and its value there."""
    _, mode, keys, other = row.setting
    if by == "max-active-keys":
        return f"{mode} {other}".strip(), keys
    others = [option for option in other.split() if not option.startswith("min_update_interval=")]
    return " ".join([mode, f"max_active_keys={keys}", *others]), row.min_update_interval


def read(files: Iterable[Path]) -> dict[Setting, dict[int, list[Record]]]:
    """The epochs of every run, by setting and seed.

    Raises:
      DataError: If a file is missing, or a line of it is no record of an experiment.
    """
    settings: dict[Setting, dict[int, list[Record]]] = {}
    for path in files:
        for number, line in enumerate(_lines(path), 1):
            try:
                record = parse_json(line)
                other = " ".join(f"{name}={value}" for name, value in record["options"].items())
                key = (record["experiment"], record["mode"], record["max_active_keys"], other)
                run = settings.setdefault(key, {}).setdefault(
                    record["seed"],
                    [],
                )
                if record["epoch"] == 1:
                    run.clear()
                run.append(record)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"{path}, line {number}",
                    "an epoch of an experiment as a JSON object, as --json writes it",
                    f"{line.strip()[:60]!r} ({type(error).__name__}: {error})",
                    "Give files that `python -m experiments NAME --json FILE` wrote.",
                ) from error
    return settings


def summarise(
    setting: Setting,
    runs: Mapping[int, Sequence[Record]],
    target: float | None = None,
) -> Row:
    """A setting's row.

    Args:
      setting: The setting.
      runs: Its epochs by seed.
      target: What to reach; by default what the run was told to.
    """
    records = []
    for run in runs.values():
        for record in run:
            records.append(record)
    metric = "accuracy" if "valid_accuracy" in records[0] else "error"
    epochs = []
    seconds = []
    bests = []
    for run in runs.values():
        values = [record[f"valid_{metric}"] for record in run]
        goal = run[0]["target"] if target is None else target
        first = next(
            (i for i, value in enumerate(values) if reaches(value, goal, metric)),
            None,
        )
        epochs.append(np.inf if first is None else float(run[first]["epoch"]))
        seconds.append(np.inf if first is None else sum(map(_seconds, run[: first + 1])))
        bests.append(best(values, metric))
    train_per_s, valid_per_s, staleness = (
        statistics.median(record[name] for record in records)
        for name in ("train_per_s", "valid_per_s", "staleness_mean")
    )
    return Row(
        setting,
        tuple(runs),
        epochs,
        seconds,
        bests,
        metric,
        (train_per_s, valid_per_s),
        staleness,
        records[0]["n_train"],
        records[0].get("min_update_interval", 0),
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path}", "a file of text", f"{error}", "Give files that --json wrote."
        ) from error


def _seconds(record: Record) -> float:
    return record["n_train"] / record["train_per_s"] + record["n_valid"] / record["valid_per_s"]


def _cells(row: Row) -> list[str]:
    experiment, mode, keys, other = row.setting
    middle = statistics.median(row.best)
    spread = statistics.stdev(row.best) if len(row.best) > 1 else None
    unit, digits = (100, 2) if row.metric == "accuracy" else (1, 3)
    found = (
        f"{unit * middle:.{digits}f}"
        + (" %" if unit == 100 else "")
        + ("" if spread is None else f", {unit * spread:.{digits}f}")
    )
    each = ", ".join(_count(n) for n in row.epochs)
    epochs = _count(statistics.median(row.epochs)) + (f" ({each})" if len(row.epochs) > 1 else "")
    late = statistics.median(row.seconds)
    seconds = f"{late:.1f}" if np.isfinite(late) else "not reached"
    return [
        experiment,
        mode,
        str(keys),
        other,
        str(len(row.seeds)),
        epochs,
        seconds,
        found,
        *(f"{v:,.0f}" for v in row.speed),
        f"{row.staleness:.1f}",
    ]


def _count(n: float) -> str:
    return f"{n:g}" if np.isfinite(n) else "—"
