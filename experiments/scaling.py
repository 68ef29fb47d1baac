"""Throughput against workers, from one to a thousand, in virtual time; and what it costs the host to simulate them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
from rich.console import Console

from ampjax.drivers.cost import FlopsCost
from ampjax.errors import SettingsError
from ampjax.ir.graph import Graph
from ampjax.ir.ops.body_shapes import init_shapes
from ampjax.plan.planner import Plan
from ampjax.simulation.cluster_cost import LinkTimes
from ampjax.simulation.simulate import simulate
from ampjax.utils.text_tables import compact
from ampjax.viz.line_chart import curves
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.common import require_positive
from experiments.machines import NAMES, Model, Name, model, single_sequences
from experiments.records import append

LINKS = "latency_ns", "bytes_per_s", "workers_per_host", "host_latency_ns", "host_bytes_per_s"
"""The options that `FlopsCost` has by the same names."""


@dataclass(frozen=True, kw_only=True)
class ScalingOptions:
    """Examples per second of machines of 1 to 1024 devices, for each model, control flow only: layers take their flops' time.

    A model has so many replicas that there is a worker for each copy of what is replicated; nodes that are not bound the speed-up. The host's
    processor time for a message is measured on the way, and once more with ever more sequences in flight on one worker.

    Args:
      models: Which.
      workers: Numbers of workers.
      in_flight: Instances in flight for each worker.
      max_dispatch_size: Messages in one dispatch at most: with large ones instances go from worker to worker together, and few work at a time.
      n: Instances that each worker gets.
      least: Instances of a run at least.
      flops: Operations per second of a device.
      latency_ns: Nanoseconds for any transfer between devices.
      bytes_per_s: Bandwidth between devices.
      workers_per_host: Workers that share a host; None for one host.
      host_latency_ns: Nanoseconds for any transfer between devices of different hosts.
      host_bytes_per_s: Bandwidth between devices of different hosts.
      average_every: Instances of a copy between two means of parameters over hosts, where each host has a copy of the whole network.
      launch_ns: Nanoseconds that one driver of all hosts needs to send a launch (`python -m experiments calibrate --hosts 2` measures it).
      max_active_keys: Sequences in flight on one worker, for the host's time.
      seed: Of the data.
      json: File to which a JSON object is appended for each run.
      out: Folder for the pictures.
    """

    models: tuple[Name, ...] = NAMES
    workers: tuple[int, ...] = (
        1,
        2,
        4,
        8,
        16,
        32,
        64,
        128,
        256,
        512,
        1024,
    )
    in_flight: int = 4
    max_dispatch_size: int = 1
    n: int = 4
    least: int = 64
    flops: float = 1e12
    latency_ns: int = 0
    bytes_per_s: float = float("inf")
    workers_per_host: int | None = None
    host_latency_ns: int = 0
    host_bytes_per_s: float = float("inf")
    average_every: int = 100
    launch_ns: float = LinkTimes.launch_driver_ns
    max_active_keys: tuple[int, ...] = (256, 1024, 4096, 16384)
    seed: int = 0
    json: Path | None = None
    out: Path = Path("runs/scaling")

    @property
    def devices(self) -> int:
        """Real devices: none is used."""
        return 1


@dataclass(frozen=True)
class Row:
    """A run.

    Args:
      model: The model.
      workers: Workers, each with a device.
      replicas: Copies of what is replicated.
      max_active_keys: Instances in flight.
      train_per_s: Examples per second of the machine.
      speed_up: Over the first number of workers.
      messages: Messages that were dispatched.
      host_us: Microseconds of this machine's processor for a message.
      hosts: Hosts.
      host_bytes: Bytes for each example that cross between hosts, forth and back.
      copies_per_s: Examples per second where each host has a copy of the whole network and all take a mean of their parameters now and then.
      driven_per_s: Examples per second of which one driver could decide on all dispatches, and send them where there are several hosts.
    """

    model: str
    workers: int
    replicas: int
    max_active_keys: int
    train_per_s: float
    speed_up: float
    messages: int
    host_us: float
    hosts: int
    host_bytes: float
    copies_per_s: float
    driven_per_s: float


def main(
    options: ScalingOptions,
    console: Console | None = None,
) -> list[Row]:
    """Prints and draws; gives the rows, those of the sweep over sequences in flight last.

    Raises:
      SettingsError: If an option is not above 0.
    """
    sizes = {}
    for name in ("in_flight", "n", "least", "flops"):
        sizes[name] = getattr(options, name)
    require_positive(
        "See the defaults.",
        workers=min(options.workers, default=0),
        **sizes,
    )
    for name in ("bytes_per_s", "host_bytes_per_s"):
        if not getattr(options, name) > 0:  # it may be infinite
            where = f"--{name.replace('_', '-')}"
            raise SettingsError(
                where, "more than 0", f"{getattr(options, name)}", "See the defaults."
            )
    console = console or Console(highlight=False)
    runs: dict[str, list[Row]] = {}
    for name in options.models:
        one = model(name, options.seed)
        scaled(options, name, one, options.workers[0], [])  # the first run loads compiled loops
        for workers in options.workers:
            runs.setdefault(name, []).append(
                scaled(options, name, one, workers, runs.get(name, []))
            )
            _write(options, runs[name][-1])
        _print(console, runs[name])
    flights = [flight(options, keys) for keys in options.max_active_keys]
    for row in flights:
        _write(options, row)
    if flights:
        _print(console, flights)
    draw(options, runs, flights)
    console.print(f"pictures are in {options.out}")
    result = []
    for rows in (*runs.values(), flights):
        for row in rows:
            result.append(row)
    return result


def scaled(
    options: ScalingOptions,
    name: str,
    one: Model,
    workers: int,
    before: Sequence[Row],
) -> Row:
    """A model on so many workers."""
    alone, twice = (len(one.graph(n).parameterised) for n in (1, 2))
    replicas = max(1, workers // (twice - alone))
    data = one.instances(max(options.least, options.n * workers))
    settings = {
        "workers": workers,
        "max_active_keys": options.in_flight * workers,
        "max_dispatch_size": options.max_dispatch_size,
        "min_update_interval": 100,
        "policy": "backward_first",
    }
    return _run(
        options,
        name,
        one.graph(replicas),
        data,
        replicas,
        settings=settings,
        per_instance=one.per_instance,
        before=before,
    )


def in_copies(
    options: ScalingOptions,
    graph: Graph,
    hosts: int,
    per_instance: int,
    before: Sequence[Row],
) -> float:
    """Examples per second of copies of a network, one on each host; a ring of all-reduces takes the mean of their parameters while nobody computes.

    Args:
      options: The options.
      graph: The network; copies of its layers on one host are averaged on that host, for nothing.
      hosts: How many.
      per_instance: Examples in an instance.
      before: Runs of smaller machines; the largest on one host says how fast a copy is.
    """
    alone = [row.train_per_s for row in before if row.hosts == 1]
    nodes = {}
    for node in graph.parameterised.values():
        nodes[node.name.split("/")[0]] = node
    shapes = []
    for node in nodes.values():
        for leaf in jax.tree.leaves(init_shapes(node, node.op.body)):
            shapes.append(leaf)
    n_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in shapes)
    steps = 2 * (hosts - 1)
    mean_s = steps * (n_bytes / hosts / options.host_bytes_per_s + 1e-9 * options.host_latency_ns)
    examples = options.average_every * per_instance
    if alone:
        return hosts * examples / (examples / alone[-1] + mean_s)
    return math.nan


def flight(options: ScalingOptions, keys: int) -> Row:
    """List reduction, a sequence an instance, on one worker with so many in flight."""
    data = single_sequences(max(4 * keys, 4096), options.seed)
    settings = {
        "workers": 1,
        "max_active_keys": keys,
        "max_dispatch_size": 256,
        "min_update_interval": 100,
    }
    return _run(
        options,
        "sequences",
        list_reduction_rnn(),
        data,
        1,
        settings=settings,
        per_instance=1,
        before=(),
    )


def _run(
    options: ScalingOptions,
    name: str,
    graph: Any,
    data: Any,
    replicas: int,
    *,
    settings: Mapping[str, Any],
    per_instance: int,
    before: Sequence[Row],
) -> Row:
    costs: list[FlopsCost] = []

    def cost(plan: Plan) -> FlopsCost:
        links = {name: getattr(options, name) for name in LINKS}
        costs.append(FlopsCost(plan, flops=options.flops, **links))
        return costs[-1]

    begin = time.thread_time()
    run = simulate(
        graph,
        data,
        cost=cost,
        seed=options.seed,
        **settings,
    )
    seconds = time.thread_time() - begin
    per_s = run.per_s * per_instance
    speed_up = per_s / before[0].train_per_s if before else 1.0
    host_us = 1e6 * seconds / run.stats.messages
    if options.workers_per_host is None:
        hosts = 1
    else:
        hosts = math.ceil(settings["workers"] / options.workers_per_host)
    crossing: dict[
        str, list[int]
    ] = {}  # transfers of one node from different workers have one name, and get equal shares of its rows
    for stage in costs[0].plan.stages:
        n_bytes = (stage.crossing_bytes or 0) if costs[0].is_between_hosts(stage) else 0
        crossing.setdefault(stage.name, []).append(n_bytes)
    examples = run.instances * per_instance
    if hosts > 1:
        sending_s = 1e-9 * options.launch_ns * run.stats.dispatches
    else:
        sending_s = 0.0
    return Row(
        model=name,
        workers=settings["workers"],
        replicas=replicas,
        max_active_keys=settings["max_active_keys"],
        train_per_s=per_s,
        speed_up=speed_up,
        messages=run.stats.messages,
        host_us=host_us,
        hosts=hosts,
        host_bytes=sum(
            run.stats.stages[name].rows * statistics.mean(n) for name, n in crossing.items()
        )
        / examples,
        copies_per_s=in_copies(options, graph, hosts, per_instance, before) if hosts > 1 else per_s,
        driven_per_s=examples / (seconds + sending_s),
    )


def draw(
    options: ScalingOptions,
    runs: Mapping[str, Sequence[Row]],
    flights: Sequence[Row],
) -> None:
    """Three pictures, each as PNG and SVG: speed-up and the host's time against workers, and the host's time against instances in flight."""
    for suffix in ("png", "svg"):
        if runs:
            speed_up = {}
            for name, rows in runs.items():
                speed_up[name] = [(row.workers, row.speed_up) for row in rows]
            ideal = {"ideal": [(n, n / options.workers[0]) for n in options.workers]}
            x = "workers"
            path = options.out / f"scaling.{suffix}"
            curves(
                speed_up,
                path,
                x=x,
                y="throughput / that of the first",
                guides=ideal,
                log=True,
            )
            host = {}
            for name, rows in runs.items():
                host[name] = [(row.workers, row.host_us) for row in rows]
            curves(
                host,
                options.out / f"host-workers.{suffix}",
                x=x,
                y="host time per message [µs]",
                log=True,
            )
        if flights:
            host = {"sequences": [(row.max_active_keys, row.host_us) for row in flights]}
            path = options.out / f"host-in-flight.{suffix}"
            curves(host, path, x="sequences in flight", y="host time per message [µs]", log=True)


def _print(console: Console, rows: Sequence[Row]) -> None:
    headers = (
        "examples/s",
        "speed-up",
        "messages",
        "host µs\na message",
        "bytes between hosts\nan example",
        "one driver's\nexamples/s",
    )
    table = compact("hosts", "workers", "replicas", "in flight", *headers)
    for row in rows:
        counts = (
            f"{row.hosts:,}",
            f"{row.workers:,}",
            f"{row.replicas:,}",
            f"{row.max_active_keys:,}",
        )
        times = (
            f"{row.train_per_s:,.0f}",
            f"{row.speed_up:.2f}",
            f"{row.messages:,}",
            f"{row.host_us:.2f}",
        )
        table.add_row(
            *counts,
            *times,
            f"{row.host_bytes:,.0f}",
            f"{row.copies_per_s:,.0f}",
            f"{row.driven_per_s:,.0f}",
        )
    table.title = rows[0].model
    console.print(table)


def _write(options: ScalingOptions, row: Row) -> None:
    append(options.json, [{"experiment": "scaling", **asdict(row)}])
