"""Throughput of replicas on machines that one need not own: list reduction in virtual time (AMPNet, figure 4b and Appendix C)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

import ampjax as amp
import ampjax.graphs as ag
from ampjax.drivers.cost import FlopsCost
from ampjax.errors import SettingsError
from ampjax.plan.affinity import list_hosted
from ampjax.simulation.simulate import Simulation, simulate
from ampjax.trace.trace import Trace
from ampjax.utils.text_tables import compact
from ampjax.viz.gantt import gantt
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.common import sample
from experiments.data.list_reduction import Buckets, generate
from experiments.records import append


@dataclass(frozen=True, kw_only=True)
class VirtualOptions:
    """Throughput of `linear1`'s replicas in virtual time, each worker with a device of its own; control flow only.

    Args:
      replicas: Numbers of replicas to compare; the first is what the others are measured against.
      max_active_keys: Numbers of buckets in flight.
      flops: Operations per second of a device; fully connected layers take their flops' time, all else none.
      n: Sequences.
      min_update_interval: Gradient rows that a node accumulates at least.
      max_dispatch_size: The most messages in one dispatch.
      seed: Of the data.
      json: File to which a JSON object is appended for each row.
      out: Folder for a Gantt chart of the first few buckets, for each number of replicas; none by default.
    """

    replicas: tuple[int, ...] = (1, 2, 4, 8)
    max_active_keys: tuple[int, ...] = (4, 8, 16, 32)
    flops: float = 1e12
    n: int = 20_000
    min_update_interval: int = 6
    max_dispatch_size: int = 64
    seed: int = 0
    json: Path | None = None
    out: Path | None = None


def main(
    options: VirtualOptions,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints sequences per second, and the ratio to the first number of replicas; gives the rows as dictionaries.

    Raises:
      SettingsError: If an option is outside what it can be.
    """
    if not options.replicas or not options.max_active_keys or not options.flops > 0:
        raise SettingsError(
            "--replicas, --max-active-keys, --flops",
            "numbers above 0",
            f"{options}",
            "Change the options.",
        )
    data = Buckets(generate(options.n, options.seed), BATCH)
    data = sample(data, len(data), options.seed)
    table = compact("max_active_keys", "replicas", "workers", "sequences/s", "ratio")
    rows = []
    for keys in options.max_active_keys:
        base = None
        for replicas in options.replicas:
            per_s = throughput(options, data, replicas, keys)
            base = base or per_s
            row = {
                "experiment": "virtual-replicas",
                "max_active_keys": keys,
                "replicas": replicas,
                "workers": replicas + N_OTHERS,
                "train_per_s": per_s,
                "ratio": per_s / base,
            }
            rows.append(row)
            table.add_row(
                str(keys),
                str(replicas),
                str(row["workers"]),
                f"{per_s:,.0f}",
                f"{row['ratio']:.2f}",
            )
    (console or Console(highlight=False)).print(table)
    append(options.json, rows)
    if options.out is not None:
        for replicas in options.replicas:
            _picture(options, data, replicas)
        print(f"Gantt charts are in {options.out}")
    return rows


BATCH = 100
OTHERS = {
    "embed": 0,
    "concat1": 0,
    "relu": 0,
    "linear2": 1,
    "xent": 1,
}
"""Workers of the other nodes, counted from behind the replicas'."""
N_OTHERS = 2


def placement(
    graph: ag.Graph,
    workers: int,
) -> dict[str, int]:
    """Each replica of `linear1` on a worker of its own, everything else on the last ones."""
    names = [node.name for node in list_hosted(graph)]
    copies = [name for name in names if name.startswith("linear1")]
    result = {}
    for name in names:
        if name in copies:
            result[name] = copies.index(name)
        else:
            result[name] = len(copies) + OTHERS[name.partition("/")[0]]
    return result


def throughput(
    options: VirtualOptions, data: amp.Subset, replicas: int, max_active_keys: int
) -> float:
    """Sequences per second of virtual training."""
    return options.n / _simulate(options, data, replicas, max_active_keys).seconds


def _simulate(
    options: VirtualOptions,
    data: amp.Subset,
    replicas: int,
    max_active_keys: int,
    trace: Trace | None = None,
) -> Simulation:
    return simulate(
        list_reduction_rnn(batch=BATCH, replicas=replicas),
        data,
        cost=partial(FlopsCost, flops=options.flops),
        workers=replicas + N_OTHERS,
        affinity=placement,
        max_active_keys=max_active_keys,
        min_update_interval=options.min_update_interval,
        max_dispatch_size=options.max_dispatch_size,
        seed=options.seed,
        trace=trace,
    )


def _picture(options: VirtualOptions, data: amp.Subset, replicas: int) -> None:
    assert options.out is not None
    n = min(16, len(data))
    keys = max(options.max_active_keys)
    trace = Trace()
    _simulate(
        replace(options, max_dispatch_size=1),
        amp.Subset(data, np.arange(n)),
        replicas,
        keys,
        trace,
    )
    busy = [s for s in trace if s.end_ns > s.start_ns]
    title = f"{n} buckets, linear1 on {replicas} worker(s) of {options.flops:.3g} operations/s, one message at a time"
    gantt(busy, options.out / f"gantt-{replicas}.png", title=title)
