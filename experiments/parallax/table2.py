"""Parallax's table 2: throughput of parameter servers by the number of partitions of sparse variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from rich.console import Console

from ampjax.utils.text_tables import compact
from experiments.parallax import paper
from experiments.parallax.measure import short, write_json
from experiments.parallax.options import LocalOptions
from experiments.parallax.programs import machines
from experiments.parallax.splits import Split
from experiments.parallax.workloads import workload


@dataclass(frozen=True, kw_only=True)
class Table2Options(LocalOptions):
    """Table 2: naive parameter servers here, with as many partitions of each sparse variable as the paper had, and fewer.

    Args:
      models: Which.
      partitions: Numbers of partitions, timed in turn.
    """

    models: tuple[Literal["lm", "nmt"], ...] = ("lm", "nmt")
    partitions: tuple[int, ...] = (
        1,
        2,
        4,
        8,
        16,
        32,
        64,
        128,
        256,
    )


def main(
    options: Table2Options,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints the table; gives its rows.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    console = console or Console(highlight=False)
    rows = []
    for model in options.models:
        for row in measure(options, model):
            rows.append(row)
    title = f"{options.workers} replicas, naive PS"
    table = compact(
        "model",
        "partitions",
        "ours\nper s",
        "over the\nworst",
        "paper\nper s",
        "over the\nworst",
        title=title,
    )
    for row in rows:
        numbers = (
            f"{row['partitions']}",
            short(row["per_s"]) + f" ± {100 * row['spread']:.0f} %",
            f"{row['ratio']:.2f}",
        )
        theirs = "" if row["paper_ratio"] is None else f"{row['paper_ratio']:.2f}"
        table.add_row(
            paper.NAMES[row["model"]],
            *numbers,
            short(row["paper"]),
            theirs,
        )
    console.print(table)
    write_json(options.json, "parallax-table2", rows)
    return rows


def measure(
    options: Table2Options,
    model: Literal["lm", "nmt"],
) -> list[dict[str, Any]]:
    """A model's rows of the table.

    Args:
      options: Of the experiment.
      model: The model.
    """
    resources = machines(options.machines, options.replicas)
    work = workload(
        model,
        options.workers,
        options.sizes,
        options.batches,
        options.seed,
    )
    split = Split.of(work, resources, "naive PS")
    timings = split.time(options.partitions, options.rounds, options.steps)
    worst = min(timing.per_s for timing in timings.values())
    published = paper.TABLE2[model]
    lowest = min(published.values())
    result = []
    for count, timing in timings.items():
        result.append(
            {
                "model": model,
                "partitions": count,
                "per_s": timing.per_s,
                "ratio": timing.per_s / worst,
                "spread": timing.spread,
                "paper": published.get(count),
                "paper_ratio": published[count] / lowest if count in published else None,
            }
        )
    return result
