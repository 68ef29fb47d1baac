"""Whether the simulator tells the truth about this machine, and about hosts on it: predicted against measured throughput, calibrated in the same run."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import ampjax as amp
from ampjax.ir.graph import Graph
from ampjax.ir.instances import Instances
from ampjax.simulation import ClusterCost, LinkTimes
from ampjax.simulation.profile_cost import HostedCost
from ampjax.utils.text_tables import compact
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.by_hand.tree_lstm_graph import tree_lstm
from experiments.common import require_positive, sample
from experiments.data import list_reduction, mnist, sst
from experiments.link_times import describe, measure_link_times
from experiments.models.mlp import mlp
from experiments.models.tree_lstm import Cells
from experiments.records import append


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions:
    """Compares predicted with measured throughput of this machine, with one worker and with two.

    A pass measures how long the host and the devices take for each kernel, trains, and predicts the training's throughput from these times with
    the scheduler in virtual time. All three in turn, so that whatever else the machine does hits all of them alike.

    Args:
      models: What is trained.
      workers: Numbers of workers, each with a CPU device.
      hosts: Numbers of hosts, processes with a worker each, to be compared beside these. What it costs that launches and rows travel is measured first, on other models.
      passes: Measured passes; one more before them is not counted. Medians are told.
      n: Instances of a pass.
      cores: Cores of this machine that host and devices share; by default what they are worth when all of them work, measured in each pass
        (two that are halves of one get half as many products again done as one alone).
      json: File to which a JSON object is appended for each model and number of workers.
    """

    models: tuple[Literal["buckets", "sequences", "perceptron", "trees"], ...] = (
        "buckets",
        "perceptron",
        "trees",
    )
    workers: tuple[int, ...] = (1, 2)
    hosts: tuple[int, ...] = ()
    passes: int = 5
    n: int = 200
    cores: float | None = None
    json: Path | None = None

    @property
    def devices(self) -> int:
        """CPU devices to be made."""
        return max((*self.workers, *self.hosts))


@dataclass(frozen=True)
class Row:
    """A model on some workers, in this process or on as many hosts: instances per second, medians, and the median of the ratios of the passes."""

    model: str
    workers: int
    on_hosts: bool
    predicted_per_s: float
    measured_per_s: float
    ratio: float


@dataclass(frozen=True)
class Subject:
    """What is trained: a model, instances, settings."""

    graph: Graph
    data: Instances | Sequence[Any]
    settings: Mapping[str, Any]


def main(
    options: CalibrateOptions,
    console: Console | None = None,
) -> list[Row]:
    """Prints a table; gives its rows.

    Raises:
      SettingsError: If an option is not above 0.
    """
    least = min((*options.workers, *options.hosts), default=0)
    sizes = {"workers": least, "passes": options.passes, "n": options.n}
    require_positive(
        "See the defaults.", **sizes, cores=1 if options.cores is None else options.cores
    )
    console = console or Console(highlight=False)
    rows = []
    link = None
    if options.hosts:
        link = measure_link_times()
        console.print(f"what travelling costs: {describe(link)}")
    table = compact("model", "workers", "predicted/s", "measured/s", "predicted /\nmeasured")
    for name in options.models:
        for workers, of_hosts in [(n, None) for n in options.workers] + [
            (n, link) for n in options.hosts
        ]:
            row = compare(options, name, workers, of_hosts)
            rows.append(row)
            rates = f"{row.predicted_per_s:,.0f}", f"{row.measured_per_s:,.0f}", f"{row.ratio:.2f}"
            table.add_row(
                name,
                f"{workers} on hosts" if row.on_hosts else str(workers),
                *rates,
            )
            append(options.json, [{"experiment": "calibrate", **asdict(row)}])
    console.print(table)
    return rows


def compare(
    options: CalibrateOptions,
    name: str,
    workers: int,
    link: LinkTimes | None = None,
) -> Row:
    """Passes of profile, training and prediction in turn; on hosts where it is said what travelling costs."""
    subject = SUBJECTS[name](options.n)
    tx = optax.sgd(1e-3)
    settings = {**subject.settings, "workers": workers}
    trainer = amp.Trainer(
        subject.graph,
        tx,
        hosts=workers if link else None,
        **settings,
    )
    trainer.warm_up(subject.data, progress=False)
    predicted = []
    measured = []
    for n in range(options.passes + 1):
        times = amp.profile(
            subject.graph,
            subject.data,
            passes=1,
            tx=tx,
            **settings,
        )
        history = trainer.fit(subject.data, epochs=1, progress=False)
        cores = options.cores or cores_at_once(jax.devices()[:workers])
        cost = partial(HostedCost, profile=times, cores=cores)
        if link is not None:
            cost = partial(ClusterCost, profile=times, cores=cores, link=link)
        run = amp.simulate(
            subject.graph,
            subject.data,
            cost=cost,
            tx=tx,
            **settings,
        )
        if n:
            measured.append(history[0].train_per_s)
            predicted.append(run.per_s)
    trainer.close()
    ratios = [p / m for p, m in zip(predicted, measured, strict=True)]
    medians = (statistics.median(values) for values in (predicted, measured, ratios))
    return Row(name, workers, link is not None, *medians)


def cores_at_once(devices: Sequence[Any]) -> float:
    """What cores are worth that a host thread and some devices keep busy together: the sum of their rates, each over its rate alone."""
    x = []
    for device in devices:
        x.append(jax.device_put(jnp.full((64, 256), 0.01), device))
    jax.block_until_ready([_products(own) for own in x])
    together = []
    alone = []
    of_host = []
    for _ in range(5):
        together.append(_busy(x))
        alone.append(statistics.median(_busy([own], host=False)[0] for own in x))
        begin = time.perf_counter()
        n = sum(_control() for _ in range(200))
        of_host.append(n / (time.perf_counter() - begin))
    seconds = statistics.median(seconds for seconds, _ in together)
    host = statistics.median(n / own for own, n in together)
    return len(x) * statistics.median(alone) / seconds + host / statistics.median(of_host)


def _busy(
    x: Sequence[jax.Array],
    host: bool = True,
) -> tuple[float, int]:
    """Seconds until devices have multiplied some matrices, and what the host has got done meanwhile."""
    begin = time.perf_counter()
    n = 0
    issued = list(x)
    for _ in range(
        8
    ):  # each takes what the one before it gave: XLA would run others of one device on several cores
        issued = [_products(own) for own in issued]
    while host and not all(getattr(product, "is_ready", lambda: True)() for product in issued):
        n += _control()
    jax.block_until_ready(issued)
    return time.perf_counter() - begin, n


@jax.jit
def _products(x: jax.Array) -> jax.Array:
    w = jnp.full(
        (x.shape[1], x.shape[1]),
        0.01,
    )
    return jax.lax.fori_loop(
        0,
        20,
        lambda _, y: jnp.tanh(y @ w),
        x,
    )


def _control() -> int:
    """Some of what a scheduler does: short operations on arrays of integers."""
    numbers = np.arange(64)
    for _ in range(20):
        numbers = numbers[numbers.argsort()] + 1
    return 1


def _buckets(n: int) -> Subject:
    data = list_reduction.generate(10 * n, 0)
    buckets = list_reduction.Buckets(data, 10)
    settings = {"max_active_keys": 16, "max_dispatch_size": 16, "min_update_interval": 20}
    return Subject(
        list_reduction_rnn(batch=10),
        sample(buckets, n, 0),
        settings,
    )


def _sequences(n: int) -> Subject:
    data = list_reduction.Sequences(list_reduction.generate(4 * n, 0))
    settings = {"max_active_keys": 64, "max_dispatch_size": 64, "min_update_interval": 100}
    return Subject(list_reduction_rnn(), data, settings)


def _perceptron(n: int) -> Subject:
    images, _ = mnist.synthetic(20 * n, 20, 0)
    settings = {"max_active_keys": 8, "max_dispatch_size": 4, "min_update_interval": 1}
    return Subject(
        mlp((784, 256, 256, 10), 20),
        sample(mnist.Batches(images, 20), n, 0),
        settings,
    )


def _trees(n: int) -> Subject:
    trees, _ = sst.synthetic(n, 1, 0)
    graph = tree_lstm(
        len(trees.vocabulary),
        Cells("tai", 128, 128, 1.0),
    )
    settings = {"max_active_keys": 32, "max_dispatch_size": 128, "min_update_interval": 200}
    return Subject(graph, sst.TreeInstances(trees), settings)


SUBJECTS = {
    "buckets": _buckets,
    "sequences": _sequences,
    "perceptron": _perceptron,
    "trees": _trees,
}
