"""AMPNet's figure 5a in virtual time: throughput of synchronous, pipeline and asynchronous training against instances in flight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console

from ampjax.drivers.cost import FlopsCost
from ampjax.simulation.simulate import simulate
from ampjax.utils.text_tables import compact
from ampjax.viz.line_chart import curves
from experiments.common import require_positive
from experiments.models.mlp import mlp
from experiments.records import append

BATCH = 100


@dataclass(frozen=True, kw_only=True)
class Figure5aOptions:
    """Batches per second of a perceptron of equal layers, each on a device of its own; control flow only, layers take their flops' time.

    A pipeline lets m batches in, waits until all have come back, and updates: with L layers it does at most `L m / (m + L - 1)` times the
    work of one batch at a time, for three layers `3 m / (m + 2)`.

    Args:
      layers: Layers and workers, L.
      hidden: Features of every layer.
      max_active_keys: Batches in flight, m.
      n: Batches in a run, rounded up to whole rounds of the pipeline.
      flops: Operations per second of a device.
      json: File to which a JSON object is appended for each point.
      out: Folder for the picture.
    """

    layers: int = 3
    hidden: int = 784
    max_active_keys: tuple[int, ...] = (
        1,
        2,
        3,
        4,
        5,
        6,
        7,
        8,
    )
    n: int = 840
    flops: float = 1e12
    json: Path | None = None
    out: Path = Path("runs/figure5a")


@dataclass(frozen=True)
class Row:
    """Batches in flight, and batches per second of each way to train; `bound` is the pipeline's, from the synchronous run."""

    max_active_keys: int
    sync: float
    pipeline: float
    asynchronous: float
    bound: float


def main(
    options: Figure5aOptions,
    console: Console | None = None,
) -> list[Row]:
    """Prints and draws; gives the rows.

    Raises:
      SettingsError: If an option is not above 0.
    """
    sizes = {}
    for name in ("layers", "hidden", "n", "flops"):
        sizes[name] = getattr(options, name)
    require_positive("The defaults are 3, 784, 840 and 1e12.", **sizes)
    require_positive(
        "The paper has 1 to 8.", max_active_keys=min(options.max_active_keys, default=0)
    )
    rows = [measure(options, m) for m in options.max_active_keys]
    table = compact(
        "in flight",
        "sync/s",
        "pipeline/s",
        "bound/s",
        "pipeline /\nbound",
        "async/s",
        "async /\nsync",
    )
    for row in rows:
        rates = (
            f"{row.sync:,.0f}",
            f"{row.pipeline:,.0f}",
            f"{row.bound:,.0f}",
            f"{row.pipeline / row.bound:.4f}",
        )
        table.add_row(
            str(row.max_active_keys),
            *rates,
            f"{row.asynchronous:,.0f}",
            f"{row.asynchronous / row.sync:.2f}",
        )
    (console or Console(highlight=False)).print(table)
    append(
        options.json,
        ({"experiment": "figure5a", **asdict(row)} for row in rows),
    )
    for suffix in ("png", "svg"):
        draw(options, rows, options.out / f"figure5a.{suffix}")
    print(f"pictures are in {options.out}")
    return rows


def measure(options: Figure5aOptions, m: int) -> Row:
    """The three ways to train with `m` batches in flight."""
    sync, pipeline, asynchronous = (
        per_s(options, mode, m) for mode in ("sync", "pipeline", "async")
    )
    layers = options.layers
    return Row(
        m,
        sync,
        pipeline,
        asynchronous,
        sync * layers * m / (m + layers - 1),
    )


def per_s(options: Figure5aOptions, mode: str, m: int) -> float:
    """Batches per second."""
    graph = mlp(
        (options.hidden,) * (options.layers + 1),
        BATCH,
    )
    batch = {
        "image": np.zeros((BATCH, options.hidden), np.float32),
        "label": np.zeros(BATCH, np.int32),
    }
    return simulate(
        graph,
        [batch] * (-(-options.n // m) * m),
        cost=partial(FlopsCost, flops=options.flops),
        mode=mode,
        workers=options.layers,
        max_active_keys=m,
        max_dispatch_size=1,
        policy="backward_first",
    ).per_s


def draw(
    options: Figure5aOptions,
    rows: Sequence[Row],
    path: Path,
) -> None:
    """The picture: throughput as multiples of the synchronous one."""
    ways = {"synchronous": "sync", "pipeline": "pipeline", "asynchronous": "asynchronous"}
    series = {}
    for label, name in ways.items():
        series[label] = [(row.max_active_keys, getattr(row, name) / row.sync) for row in rows]
    layers = options.layers
    bound = {
        f"{layers}m / (m + {layers - 1})": [
            (row.max_active_keys, row.bound / row.sync) for row in rows
        ]
    }
    x = "max_active_keys, m"
    y = "throughput / synchronous throughput"
    curves(series, path, x=x, y=y, guides=bound)
