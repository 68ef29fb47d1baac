"""The pictures of the README and of the documentation: `python -m experiments.pictures` makes them anew in `docs/pictures`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import tyro
from jax import lax

import ampjax as amp
from ampjax.simulation import FlopsCost
from ampjax.trace.update_log import read_update_log
from ampjax.viz.gantt import gantt
from ampjax.viz.graphs.graph_picture import draw
from ampjax.viz.lane_chart import lanes
from ampjax.viz.lineage import lineage
from ampjax.viz.staleness_histogram import staleness
from ampjax.viz.traffic import traffic
from ampjax.viz.worker_usage import time_spent
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.by_hand.tree_lstm_graph import tree_lstm
from experiments.common import start_up
from experiments.data import list_reduction, sst
from experiments.data.mnist import N_PIXELS, Batches, Digits
from experiments.example_shapes import example_shapes
from experiments.gallery_pictures import gallery_pictures
from experiments.models.mlp import mlp
from experiments.models.tree_lstm import Cells

BATCH = 100
N_BATCHES = 12
IN_FLIGHT = 6
WAYS: Mapping[str, Mapping[str, Any]] = {
    "Synchronous, one batch, then an update": {"mode": "sync"},
    f"Pipeline, {IN_FLIGHT} batches, then an update": {
        "mode": "pipeline",
        "max_active_keys": IN_FLIGHT,
    },
    f"Asynchronous, {IN_FLIGHT} batches in flight": {"mode": "async", "max_active_keys": IN_FLIGHT},
}
"""AMPNet's figure 1."""


def main(folder: Path = Path("docs/pictures")) -> None:
    """Makes the pictures.

    Args:
      folder: Where they go.
    """
    start_up()
    schedules(folder / "schedules.png")
    graph_after_a_run(folder / "graph.svg")
    looks(folder / "time_spent.png", folder / "staleness.png")
    updates_of_a_run(folder / "lineage.png")
    on_hosts(folder / "hosts.png", folder / "traffic.png")
    in_lanes(folder / "lanes.png")
    example_shapes(folder)
    gallery_pictures(folder)


def schedules(path: Path) -> None:
    """The three ways to train, as Gantt charts on one time axis: a perceptron of four equal layers on four devices of 10^12 operations a second.

    Args:
      path: The file.
    """
    graph = mlp((N_PIXELS,) * 5, BATCH)
    blank = Digits(
        np.zeros((N_BATCHES * BATCH, N_PIXELS), np.float32),
        np.zeros(N_BATCHES * BATCH, np.int32),
    )
    traces = {name: amp.Trace() for name in WAYS}
    for name, way in WAYS.items():
        paper: Mapping[str, Any] = {
            "workers": 4,
            "policy": "backward_first",
            "max_dispatch_size": 1,
        }
        amp.simulate(
            graph,
            Batches(blank, BATCH),
            trace=traces[name],
            **paper,
            **way,
        )
    gantt(traces, path, width=11.0)


def graph_after_a_run(
    path: Path,
    n: int = 1_000,
    max_dispatch_size: int = 64,
) -> None:
    """A Tree-LSTM with the time that its nodes took on this machine in an epoch of training.

    Args:
      path: The file.
      n: Trees of the epoch.
      max_dispatch_size: Rows in one dispatch at most.
    """
    trees, _ = sst.synthetic(n, 1)
    graph = tree_lstm(
        len(trees.vocabulary),
        Cells("tai", 128, 128, keep=1.0),
    )
    trace = amp.Trace()
    settings: Mapping[str, Any] = {
        "policy": "wavefront",
        "min_admission": 8,
        "max_active_keys": 32,
        "gradient": "sum",
    }
    trainer = amp.Trainer(
        graph,
        optax.adagrad(0.05),
        min_update_interval=200,
        max_dispatch_size=max_dispatch_size,
        **settings,
    )
    data = sst.TreeInstances(trees)
    trainer.fit(data, progress=False)
    trainer.fit(data, progress=False, trace=trace)
    draw(graph, path, trace=trace)


def looks(usage: Path, stale: Path, n: int = 400) -> None:
    """Where the time of two workers goes, and how stale gradients are: list reduction in virtual time.

    Args:
      usage: The file of the first picture.
      stale: The file of the second one.
      n: Sequences.
    """
    data = list_reduction.Sequences(
        list_reduction.generate(n, seed=0),
        hidden=32,
    )
    trace = amp.Trace()
    amp.simulate(
        list_reduction_rnn(hidden=32),
        data,
        workers=2,
        max_active_keys=16,
        min_update_interval=16,
        max_dispatch_size=4,
        trace=trace,
    )
    time_spent(trace, usage)
    staleness(trace, stale)


def updates_of_a_run(path: Path, n: int = 400) -> None:
    """Which sequences the last updates of a layer are made of, and which versions they saw: list reduction in virtual time.

    Args:
      path: The file.
      n: Sequences.
    """
    data = list_reduction.Sequences(
        list_reduction.generate(n, seed=0),
        hidden=32,
    )
    settings: Mapping[str, Any] = {
        "max_active_keys": 16,
        "min_update_interval": 16,
        "max_dispatch_size": 4,
    }
    trainer = amp.Trainer(
        list_reduction_rnn(hidden=32),
        optax.adam(3e-3),
        cost=FlopsCost,
        **settings,
    )
    with TemporaryDirectory() as folder:
        trainer.fit(data, progress=False, update_log=Path(folder) / "updates")
        lineage(
            read_update_log(Path(folder) / "updates"),
            "linear1",
            path,
            most=20,
        )


def on_hosts(
    schedule: Path,
    between: Path,
    width: int = N_PIXELS,
    kind: str = "processes",
) -> None:
    """What two hosts with two workers each do, and what they send to each other: a perceptron of four equal layers, in batches.

    Args:
      schedule: The file of the first picture.
      between: The file of the second one.
      width: Of the layers behind the first.
      kind: Of the hosts.
    """
    graph = mlp((N_PIXELS, *[width] * 4), BATCH)
    blank = Digits(
        np.zeros((N_BATCHES * BATCH, N_PIXELS), np.float32),
        np.zeros(N_BATCHES * BATCH, np.int32),
    )
    data = Batches(blank, BATCH)
    paper = {"workers": 4, "policy": "backward_first", "max_dispatch_size": 1}
    settings: Mapping[str, Any] = {**paper, "max_active_keys": IN_FLIGHT}
    trainer = amp.Trainer(
        graph,
        optax.sgd(0.01),
        hosts=amp.Hosts(2, kind),
        **settings,
    )
    trainer.fit(data, progress=False)
    trace = amp.Trace(every=1)
    trainer.fit(data, progress=False, trace=trace)
    gantt(trace, schedule)
    traffic(trace, between)
    trainer.close()


def in_lanes(path: Path) -> None:
    """The steps of Collatz sequences, by `jax.vmap` and in eight lanes.

    Args:
      path: The file.
    """

    def steps_to_one(n: Any) -> Any:
        def step(carry: Any) -> Any:
            n, count = carry
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), count + 1

        return lax.while_loop(lambda carry: carry[0] > 1, step, (n, 0))[1]

    batched = amp.vmap(steps_to_one, lanes=8, trips=4)
    lanes(batched.explain(jnp.arange(1, 30)), path)


if __name__ == "__main__":
    tyro.cli(main)
