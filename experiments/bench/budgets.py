"""What a staleness budget costs, and what dropping stale gradients does: epochs of list reduction and of trees, in turn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import optax
from rich.console import Console

import ampjax as amp
import ampjax.graphs as ag
from ampjax.utils.text_tables import compact
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.by_hand.tree_lstm_graph import tree_lstm
from experiments.common import cache_compilations, require_positive
from experiments.data import list_reduction, sst
from experiments.models.tree_lstm import Cells
from experiments.records import append


@dataclass(frozen=True, kw_only=True)
class BudgetsBench:
    """Instances per second, staleness and rows of an update at several values of `max_staleness` and of `drop_staler_than`, and without.

    Args:
      budgets: Values of `max_staleness`; epochs without one are in turn with them.
      limits: Values of `drop_staler_than`, likewise.
      instances: Sequences, and trees, in an epoch.
      hidden: Features of a state.
      max_active_keys: Instances in flight.
      min_update_interval: Gradient rows between updates of a node.
      max_dispatch_size: Rows in one dispatch.
      epochs: Epochs that are timed, after one that is not.
      seed: Of data and parameters.
      json: File to which a JSON object for each budget is appended.
    """

    budgets: tuple[int, ...] = (0, 1, 2, 4, 8)
    limits: tuple[int, ...] = (1, 4)
    instances: int = 2000
    hidden: int = 64
    max_active_keys: int = 32
    min_update_interval: int = 50
    max_dispatch_size: int = 64
    epochs: int = 5
    seed: int = 0
    json: Path | None = None


def main(
    options: BudgetsBench,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table for each model; gives a row for each model and budget or limit.

    Raises:
      SettingsError: If an option is below what it can be.
    """
    own = vars(options)
    names = (
        "instances",
        "hidden",
        "max_active_keys",
        "min_update_interval",
        "max_dispatch_size",
        "epochs",
    )
    require_positive("See the defaults.", **{name: own[name] for name in names})
    cache_compilations()
    facts = {name: own[name] for name in (*names, "seed")}
    found = []
    for model, (graph, data) in _models(options).items():
        rows = []
        for row in _measure(graph, data, options):
            rows.append({"bench": "budgets", "model": model, **facts, **row})
        _show(model, rows, console or Console(highlight=False))
        found += rows
    append(options.json, found)
    return found


def _models(options: BudgetsBench) -> dict[str, tuple[ag.Graph, Any]]:
    n = options.instances
    hidden = options.hidden
    seed = options.seed
    trees, _ = sst.synthetic(n, 1, seed=seed)
    cells = Cells("tai", hidden, hidden, keep=1.0)
    return {
        "list reduction": (
            list_reduction_rnn(hidden),
            list_reduction.Sequences(list_reduction.generate(n, seed=seed), hidden=hidden),
        ),
        "trees": (tree_lstm(len(trees.vocabulary), cells), sst.TreeInstances(trees)),
    }


def _measure(
    graph: ag.Graph,
    data: Any,
    options: BudgetsBench,
) -> list[dict[str, Any]]:
    """Epochs take turns, so that what else the machine does slows all alike."""
    settings: dict[str, Any] = {}
    for name in ("max_active_keys", "min_update_interval", "max_dispatch_size", "seed"):
        settings[name] = getattr(options, name)
    bounds = [
        (None, None),
        *((k, None) for k in options.budgets),
        *((None, k) for k in options.limits),
    ]
    trainers = []
    for budget, limit in bounds:
        trainers.append(
            amp.Trainer(
                graph,
                optax.adam(1e-3),
                max_staleness=budget,
                drop_staler_than=limit,
                compile_ahead=True,
                **settings,
            )
        )
    seconds: list[list[float]] = [[] for _ in trainers]
    losses = [0.0 for _ in trainers]
    for epoch in range(1 + options.epochs):
        for n, trainer in enumerate(trainers):
            start = perf_counter()
            losses[n] = trainer.fit(data, progress=False)[-1].train["loss"]
            if epoch:
                seconds[n].append(perf_counter() - start)
    found = []
    for (budget, limit), own, trainer, loss in zip(bounds, seconds, trainers, losses, strict=True):
        stats = trainer.statistics
        counted = max(
            stats.nodes.values(),
            key=lambda node: node.staleness_sum,
            default=None,
        )
        if counted is not None and counted.staleness_sum:
            stalest = counted
        else:
            stalest = next(iter(stats.nodes.values()))
        found.append(
            {
                "max_staleness": budget,
                "drop_staler_than": limit,
                "per_s": len(data) / median(own),
                "of_none": median(base / each for base, each in zip(seconds[0], own, strict=True)),
                "staleness_mean": stats.staleness_mean,
                "staleness_max": stats.staleness_max,
                "rows_an_update": stalest.gradients / max(stalest.updates, 1),
                "held": stalest.held_updates / max(stalest.updates, 1),
                "dropped": stats.dropped
                / sum(node.gradients + node.dropped for node in stats.nodes.values()),
                "closed": stats.closed_for / stats.dispatches,
                "loss": loss,
            }
        )
    return found


def _show(
    model: str,
    rows: list[dict[str, Any]],
    console: Console,
) -> None:
    columns = (
        "of none",
        "mean",
        "most",
        "rows an\nupdate",
        "updates\nheld",
        "admission\nheld",
        "rows\ndropped",
        "loss",
    )
    table = compact("bound", "instances/s", *columns, title=model)
    for row in rows:
        held = row["max_staleness"]
        dropped = row["drop_staler_than"]
        if held is dropped is None:
            bound = "none"
        elif dropped is None:
            bound = f"hold {held}"
        else:
            bound = f"drop {dropped}"
        numbers = (
            f"{row['per_s']:,.0f}",
            f"{row['of_none']:.2f}",
            f"{row['staleness_mean']:.2f}",
            str(row["staleness_max"]),
        )
        shares = (
            f"{row['held']:.0%}",
            f"{row['closed']:.0%}",
            f"{row['dropped']:.1%}",
            f"{row['loss']:.3f}",
        )
        table.add_row(bound, *numbers, f"{row['rows_an_update']:.0f}", *shares)
    console.print(table)
