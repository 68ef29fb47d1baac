"""Unfolding's own speed: what it costs to evaluate instances' control flow ahead of time, and what the programs weigh."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from ampjax.drivers.controller import batches_of
from ampjax.ir.graph import Graph
from ampjax.ir.instances import Instances
from ampjax.plan.affinity import assign
from ampjax.plan.planner import make_plan
from ampjax.sched.dry_run import dry_run
from ampjax.unfold.demand import messages
from ampjax.unfold.programs import Programs
from ampjax.unfold.unfolder import Unfolder
from ampjax.utils.text_tables import compact
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.common import require_positive
from experiments.data import sst
from experiments.machines import model, single_sequences
from experiments.records import append

Kind = Literal["sequences", "list-reduction", "tree-lstm", "tagger", "ggnn", "perceptron"]
KINDS: tuple[Kind, ...] = (
    "sequences",
    "list-reduction",
    "tree-lstm",
    "tagger",
    "ggnn",
    "perceptron",
)


@dataclass(frozen=True, kw_only=True)
class UnfoldOptions:
    """Measures the processor time of unfolding for a message; each invocation counts as one, and in training also its backward pass.

    Beside it a dry run of the scheduler on the same instances, in turn. Data are generated.

    Args:
      models: Which.
      waves: Instances that are unfolded together.
      passes: Measured passes, of which the median counts; one more before them is not counted.
      trees: Folder with the Stanford Sentiment Treebank: all of its training trees are unfolded too, 256 together.
      json: File to which a JSON object is appended for each row.
    """

    models: tuple[Kind, ...] = KINDS
    waves: tuple[int, ...] = (256,)
    passes: int = 7
    trees: Path | None = None
    json: Path | None = None


def main(
    options: UnfoldOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives its rows as dictionaries.

    Raises:
      SettingsError: If an option is below 1.
      DataError: If the treebank's files are missing.
    """
    require_positive(
        "See the defaults.", waves=min(options.waves, default=0), passes=options.passes
    )
    rows = []
    for name in options.models:
        for wave in options.waves:
            rows.append(
                measure(
                    name,
                    *workload(name, wave),
                    options.passes,
                )
            )
    if options.trees is not None:
        rows.append(whole_treebank(options.trees))
    table = compact(
        "model",
        "together",
        "messages",
        "unfold µs\na message",
        "dry run µs\na message",
        "bytes\na message",
    )
    for row in rows:
        times = (
            f"{row['unfold_us']:.2f}",
            f"{row['dry_run_us']:.2f}" if "dry_run_us" in row else "",
        )
        table.add_row(
            row["model"],
            str(row["together"]),
            f"{row['messages']:,}",
            *times,
            f"{row['bytes_a_message']:.0f}",
        )
    (console or Console(highlight=False)).print(table)
    append(options.json, rows)
    return rows


def workload(
    name: Kind,
    n: int,
) -> tuple[Graph, Instances, int]:
    """A model, and `n` instances for it."""
    if name == "sequences":
        return list_reduction_rnn(), single_sequences(n), n
    one = model(name)
    return one.graph(1), one.instances(n), n


def measure(
    name: str,
    graph: Graph,
    data: Instances,
    n: int,
    passes: int,
) -> dict[str, Any]:
    """A row of the table."""
    plan = make_plan(graph, assign(graph, 1))
    unfolder = Unfolder(plan)
    ids = np.arange(n)
    batches = batches_of(data, ids)
    times: dict[str, list[float]] = {
        "unfold": [],
        "dry_run": [],
    }
    programs: Programs | None = None
    for i in range(passes + 1):
        begin = time.thread_time()
        programs = unfolder.end(unfolder.unfold(batches, ids))
        middle = time.thread_time()
        dry_run(plan, batches, range(n))
        if i:
            times["unfold"].append(middle - begin)
            times["dry_run"].append(time.thread_time() - middle)
    assert programs is not None
    count = count_messages(plan, programs)
    us = {}
    for what, own in times.items():
        us[f"{what}_us"] = 1e6 * statistics.median(own) / count
    return {"bench": "unfold", "model": name, "together": n, "messages": count, **us} | weight(
        programs, count
    )


def count_messages(plan: Any, programs: Programs) -> int:
    """Messages of a training pass, both ways; a loss's go forth alone."""
    kinds = {stage.name: stage.kind for stage in plan.stages}
    return sum(
        n * (1 if kinds[name] == "loss" else 2) for name, n in messages(plan, programs).items()
    )


def weight(programs: Programs, count: int) -> dict[str, Any]:
    """What programs take."""
    return {"bytes": programs.nbytes, "bytes_a_message": programs.nbytes / count}


def whole_treebank(folder: Path) -> dict[str, Any]:
    """All training trees of the treebank, 256 together."""
    from experiments.by_hand.tree_lstm_graph import tree_lstm
    from experiments.models.tree_lstm import Cells

    trees, *_ = sst.load(folder)
    graph = tree_lstm(
        len(trees.vocabulary),
        Cells("tai", 300, 150, 1.0),
    )
    data = sst.TreeInstances(trees)
    plan = make_plan(graph, assign(graph, 1))
    unfolder = Unfolder(plan)
    begin = time.thread_time()
    total = 0
    count = 0
    for start in range(0, len(data), 256):
        ids = np.arange(start, min(start + 256, len(data)))
        programs = unfolder.end(unfolder.unfold(batches_of(data, ids), ids))
        total = total + programs.nbytes
        count = count + count_messages(plan, programs)
    us = 1e6 * (time.thread_time() - begin) / count
    row = {
        "bench": "unfold",
        "model": "treebank, whole",
        "together": 256,
        "messages": count,
        "unfold_us": us,
    }
    return {**row, "bytes": total, "bytes_a_message": total / count}
