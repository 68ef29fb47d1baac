"""The simulator's own speed: what control costs on this machine where no kernel runs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ampjax.simulation.simulate import Simulation, simulate
from ampjax.utils.text_tables import compact
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.common import require_positive
from experiments.machines import NAMES, Name, model, single_sequences
from experiments.records import append


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """Messages per second of `amp.simulate` without numerics, by processor time of its one thread, planning included.

    Three parts: list reduction a sequence at a time, whose sequences come in step and a dispatch takes all that waits; the other models with full
    dispatches; both on one worker. And list reduction with as many replicas as workers, with small dispatches.

    Args:
      sizes: Messages in a dispatch, with list reduction: somewhat more on average, since sequences have different lengths.
      models: What is run beside it, with the last of the sizes as the most messages in a dispatch.
      in_flight: Instances in flight for each message of a full dispatch.
      n: Instances of a run, for each message of a full dispatch.
      passes: Measured passes; the fastest half counts, by its median.
      replicas: Replicas and workers of the second part; 0 leaves it out.
      max_active_keys: Instances in flight there.
      buckets: Instances of 100 sequences there.
      json: File to which a JSON object is appended for each row.
    """

    sizes: tuple[int, ...] = (32, 256, 1024)
    models: tuple[Name, ...] = NAMES
    in_flight: int = 4
    n: int = 60
    passes: int = 3
    replicas: int = 1024
    max_active_keys: int = 4096
    buckets: int = 10_000
    json: Path | None = None


def main(
    options: SimulateOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives its rows as dictionaries.

    Raises:
      SettingsError: If an option is not above 0.
    """
    sizes = {}
    for name in ("in_flight", "n", "passes", "max_active_keys", "buckets"):
        sizes[name] = getattr(options, name)
    require_positive(
        "See the defaults.",
        sizes=min(options.sizes, default=0),
        **sizes,
    )
    rows = [single(options, size) for size in options.sizes]
    rows += [full(options, name, options.sizes[-1]) for name in options.models]
    if options.replicas:
        rows.append(replicated(options))
    table = compact(
        "model",
        "workers",
        "in flight",
        "rows a\ndispatch",
        "messages",
        "messages/s",
        "µs a\nmessage",
        "s",
    )
    for row in rows:
        counts = (
            f"{row['workers']:,}",
            f"{row['max_active_keys']:,}",
            f"{row['mean_dispatch']:,.1f}",
        )
        rates = (
            f"{row['messages_per_s']:,.0f}",
            f"{1e6 / row['messages_per_s']:.2f}",
            f"{row['seconds']:.2f}",
        )
        table.add_row(row["model"], *counts, f"{row['messages']:,}", *rates)
    (console or Console(highlight=False)).print(table)
    append(options.json, rows)
    return rows


def single(options: SimulateOptions, size: int) -> dict[str, Any]:
    """List reduction, a sequence an instance; all that are in flight have been admitted together."""
    graph = list_reduction_rnn()
    data = single_sequences(options.n * size)
    keys = options.in_flight * size
    settings: dict[str, Any] = {
        "max_dispatch_size": keys,
        "max_active_keys": keys,
        "min_admission": keys,
        "min_update_interval": 100,
    }
    return measure(
        "sequences",
        options.passes,
        lambda: simulate(graph, data, **settings),
        settings,
    )


def full(
    options: SimulateOptions,
    name: Name,
    size: int,
) -> dict[str, Any]:
    """Any of the models, on one worker."""
    one = model(name)
    graph = one.graph(1)
    data = one.instances(max(100, options.n * size // 30))
    settings: dict[str, Any] = {
        "max_dispatch_size": size,
        "max_active_keys": options.in_flight * size,
        "min_update_interval": 100,
    }
    return measure(
        name,
        options.passes,
        lambda: simulate(graph, data, **settings),
        settings,
    )


def replicated(options: SimulateOptions) -> dict[str, Any]:
    """List reduction with a replica for each worker; once, since it takes long."""
    one = model("list-reduction")
    graph = one.graph(options.replicas)
    data = one.instances(options.buckets)
    keys = max(1, min(options.max_active_keys, options.buckets))
    settings: dict[str, Any] = {
        "workers": options.replicas,
        "max_active_keys": keys,
        "min_update_interval": 6,
    }
    return measure(
        "list-reduction, replicas", 1, lambda: simulate(graph, data, **settings), settings
    )


def measure(
    name: str,
    passes: int,
    run: Callable[[], Simulation],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """A row: the time of a run, and what it did."""
    seconds = []
    for _ in range(passes):
        begin = time.thread_time()
        found = run()
        seconds.append(time.thread_time() - begin)
    best = statistics.median(sorted(seconds)[: (passes + 1) // 2])
    stats = found.stats
    rows = sum(stage.rows for stage in stats.stages.values())
    return {
        "bench": "simulate",
        "model": name,
        "workers": settings.get("workers", 1),
        "max_active_keys": settings["max_active_keys"],
        "instances": found.instances,
        "messages": stats.messages,
        "mean_dispatch": rows / stats.dispatches,
        "messages_per_s": stats.messages / best,
        "seconds": best,
    }
