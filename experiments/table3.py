"""AMPNet's table 3: three workloads on a machine of devices that nobody owned, trained to their targets in its time (Appendix C)."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from ampjax.errors import SettingsError
from ampjax.train.history import History
from ampjax.utils.text_tables import compact
from experiments import list_reduction, qm9, sentiment
from experiments.common import Options
from experiments.list_reduction import ListReductionOptions
from experiments.qm9 import Qm9Options
from experiments.records import append
from experiments.sentiment import SentimentOptions


@dataclass(frozen=True)
class Workload:
    """A row of the table.

    Args:
      main: Trains it.
      options: The paper's settings: a device for each fully connected layer.
      paper_train_per_s: What the paper has; None where we do not have its figure.
    """

    main: Callable[[Any], list[History]]
    options: Options
    paper_train_per_s: float | None = None


WORKLOADS: Mapping[str, Workload] = {
    "list-reduction": Workload(
        list_reduction.main,
        ListReductionOptions(replicas=4, workers=6, max_active_keys=8),
        268_000.0,
    ),
    "sentiment": Workload(sentiment.main, SentimentOptions(workers=4)),
    "qm9": Workload(
        qm9.main,
        Qm9Options(workers=6, max_active_keys=16, epochs=25),
    ),
}


@dataclass(frozen=True, kw_only=True)
class Table3Options:
    """Table 3: throughput and time to target on devices of 10^12 operations a second, by the real scheduler with real numbers.

    Each workload is trained until its target. Fully connected layers take their flops' time; everything else takes none, or as long as it takes
    on this machine (the paper ran it in real time on 16 cores).

    Args:
      workloads: Which.
      rest: What everything else takes; both by default.
      flops: Operations per second of a device.
      epochs: Epochs at most; by default each workload's own.
      n_train: Training examples; by default each workload's own.
      synthetic: Generated data in place of files.
      data_dir: Folder with data files; else the environment variable AMPJAX_DATA.
      seed: Of all of it.
      profiles: Folder with a file of this machine's measured times for each workload: read if it is there, else measured and written.
      json: File to which a JSON object is appended for each workload and rest.
      out: Folder for each run's history, convergence plot and Gantt chart.
    """

    workloads: tuple[Literal["list-reduction", "sentiment", "qm9"], ...] = (
        "list-reduction",
        "sentiment",
        "qm9",
    )
    rest: tuple[Literal["none", "measured"], ...] = ("none", "measured")
    flops: float = 1e12
    epochs: int | None = None
    n_train: int | None = None
    synthetic: bool = False
    data_dir: Path | None = None
    seed: int = 0
    profiles: Path | None = None
    json: Path | None = None
    out: Path = Path("runs/table3")


@dataclass(frozen=True)
class Row:
    """A workload's figures.

    Args:
      workload: Its name.
      rest: What is no fully connected layer takes `none` or its `measured` time.
      train_per_s: Training examples per second of the machine.
      paper_train_per_s: The paper's.
      epochs_to_target: Epochs until the target; None if it was not reached.
      seconds_to_target: Seconds of the machine, validation included.
    """

    workload: str
    rest: str
    train_per_s: float
    paper_train_per_s: float | None
    epochs_to_target: int | None
    seconds_to_target: float | None


def main(
    options: Table3Options,
    console: Console | None = None,
) -> list[Row]:
    """Trains and prints the table.

    Raises:
      SettingsError: If no workload is given, or an option is outside what it can be.
      DataError: If a file is missing or damaged.
    """
    if not options.workloads or not options.rest:
        raise SettingsError(
            "table3", "at least one workload and one rest", f"{options}", "Name some."
        )
    rows = []
    for name in options.workloads:
        for rest in options.rest:
            rows.append(run(name, rest, options))
            append(options.json, [asdict(rows[-1])])
    print_table(rows, console or Console(highlight=False))
    return rows


def run(
    name: str,
    rest: Literal["none", "measured"],
    options: Table3Options,
) -> Row:
    """Trains one workload on the machine."""
    workload = WORKLOADS[name]
    o = replace(
        workload.options,
        flops=options.flops,
        rest=rest,
        profile=None if options.profiles is None else options.profiles / f"{name}.json",
        seed=(options.seed,),
        synthetic=options.synthetic,
        data_dir=options.data_dir,
        epochs=options.epochs or workload.options.epochs,
        out=options.out / f"{name}-{rest}",
        **({} if options.n_train is None else {"n_train": options.n_train}),
    )
    (history,) = workload.main(o)
    reached = history.first_to(o.target, "error" if name == "qm9" else "accuracy")
    return Row(
        name,
        rest,
        statistics.median(epoch.train_per_s for epoch in history.epochs),
        workload.paper_train_per_s,
        reached.epoch if reached else None,
        reached.seconds if reached else None,
    )


def print_table(rows: Sequence[Row], console: Console) -> None:
    """The table, the paper's figures in a column of their own."""
    table = compact(
        "workload",
        "everything\nelse takes",
        "train/s",
        "paper:\ntrain/s",
        "epochs",
        "seconds\nto target",
    )
    for row in rows:
        paper = "" if row.paper_train_per_s is None else f"{row.paper_train_per_s:,.0f}"
        found = (
            ("—", "not reached")
            if row.seconds_to_target is None
            else (row.epochs_to_target, f"{row.seconds_to_target:.3g}")
        )
        table.add_row(
            row.workload,
            row.rest,
            f"{row.train_per_s:,.0f}",
            paper,
            *map(str, found),
        )
    console.print(table)
