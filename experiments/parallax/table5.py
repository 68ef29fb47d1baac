"""Parallax's table 5: the partition search against trying one number after the other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

import ampjax.parallel as px
from ampjax.parallel.planning.partition_search import SearchResult
from ampjax.utils.text_tables import compact
from ampjax.viz.partitions import partition_search
from experiments.parallax import paper
from experiments.parallax.measure import short, write_json
from experiments.parallax.options import LocalOptions
from experiments.parallax.programs import machines
from experiments.parallax.splits import Split
from experiments.parallax.workloads import workload


@dataclass(frozen=True, kw_only=True)
class Table5Options(LocalOptions):
    """Table 5: the number of partitions that the search finds, and the best of brute force in steps of two up to a drop by a tenth.

    Args:
      models: Which.
      iterations: Steps of a sample of the search; the first half does not count, as in the paper (whose samples have 100).
      last: The largest number that brute force tries.
      out: Folder for a picture of each search.
    """

    models: tuple[Literal["lm", "nmt"], ...] = ("lm", "nmt")
    iterations: int = 40
    last: int = 32
    out: Path = Path("runs/parallax-table5")


def main(
    options: Table5Options,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints the table; gives its rows.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    console = console or Console(highlight=False)
    table = compact(
        "model", "search\nP", "samples", "at\nmost", "brute\nforce P", "tried", "search\nper s", "brute\nper s", "search\nover it",
        "noise", title=f"{options.workers} replicas, hybrid",
    )  # fmt: skip
    rows = []
    for model in options.models:
        row, found = measure(options, model)
        rows.append(row)
        numbers = [f"{row[name]}" for name in ("partitions", "samples", "allowed", "best", "tried")]
        speeds = (
            short(row["per_s"]),
            short(row["best_per_s"]),
            f"{row['ratio']:.2f}",
            f"{100 * row['noise']:.0f} %",
        )
        table.add_row(paper.NAMES[model], *numbers, *speeds)
        partition_search([found], options.out / f"{model}.png")
        console.print(f"{paper.NAMES[model]}: {found}")
    console.print(table)
    console.print(
        "The paper's brute force took 128 (LM) and 64 (NMT) partitions at best, and 8 at worst (its table 2)."
    )
    write_json(options.json, "parallax-table5", rows)
    return rows


def measure(
    options: Table5Options, model: Literal["lm", "nmt"]
) -> tuple[dict[str, Any], SearchResult]:
    """A model's row, and the search.

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
    sample = px.SampleTimes(options.iterations, options.iterations // 2)
    config = px.ParallaxConfig(search_partitions=True, sample=sample, check_equivalence="off")
    runner = px.get_runner(
        work.loss,
        work.params,
        work.tx,
        resources,
        config,
    )
    step = 0
    while not runner.searches:
        runner.run(work.batches[step % len(work.batches)])
        step += 1
    found = runner.searches[0]
    split = Split(runner, cycle(work.batches), work.units)
    brute = split.brute_force(2, options.last, options.rounds, options.steps)
    best = min(brute, key=lambda count: brute[count].median)
    # Once more in turn: the minimum of many noisy times is too small.
    both = split.time(
        sorted({found.partitions, best}),
        2 * options.rounds,
        options.steps,
    )
    chosen = both[found.partitions]
    row = {
        "model": model,
        "partitions": found.partitions,
        "samples": len(found.samples),
        "allowed": allowed(found.partitions, options.machines),
        "best": best,
        "tried": len(brute),
        "per_s": chosen.per_s,
        "best_per_s": both[best].per_s,
        "ratio": chosen.per_s / both[best].per_s,
        "noise": max(timing.spread for timing in (*brute.values(), *both.values())),
    }
    return row, found


def allowed(partitions: int, n_machines: int) -> int:
    """Samples that a search may take at most, 3 + |log2(P* / N)|, rounded up.

    >>> allowed(8, 1), allowed(1, 4)
    (6, 5)
    """
    return 3 + math.ceil(abs(math.log2(partitions / n_machines)))
