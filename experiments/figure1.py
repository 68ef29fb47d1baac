"""AMPNet's figure 1: the same network trained synchronously, in a pipeline and asynchronously, as Gantt charts below each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ampjax.drivers.cost import FlopsCost
from ampjax.ir.graph import Graph
from ampjax.ir.instances import Instances, Subset
from ampjax.plan.affinity import list_hosted
from ampjax.simulation.simulate import Simulation, simulate
from ampjax.trace.trace import Trace
from ampjax.trace.trace_records import Slice
from ampjax.viz.gantt import gantt
from experiments.by_hand.tree_lstm_graph import tree_lstm
from experiments.common import require_positive
from experiments.data import sst
from experiments.models.mlp import mlp
from experiments.models.tree_lstm import Cells

MODES = {
    "sync": "(a) synchronous: one instance, then every node updates",
    "pipeline": "(b) pipeline: {keys} instances, then every node updates",
    "async": "(c) asynchronous: {keys} instances in flight, each node updates by itself",
}
"""Titles of the charts; the letters are the paper's."""


@dataclass(frozen=True, kw_only=True)
class Figure1Options:
    """Three Gantt charts in one picture: synchronous, pipeline and asynchronous, in virtual time (AMPNet, figure 1).

    Args:
      models: What is trained: a perceptron of three layers, as in the paper, and a Tree-LSTM.
      max_active_keys: Instances in flight, but for the synchronous run; by default the model's own number, 4 or 6.
      n: Instances.
      flops: Operations per second of each worker's device.
      out: Folder for the pictures: a PNG and an SVG for each model.
    """

    models: tuple[Literal["perceptron", "tree-lstm"], ...] = ("perceptron", "tree-lstm")
    max_active_keys: int | None = None
    n: int = 24
    flops: float = 1e9
    out: Path = Path("runs/figure1")


@dataclass(frozen=True)
class Subject:
    """What is drawn.

    Args:
      graph: The model.
      data: Its instances.
      settings: Of the runs, beside mode and instances in flight.
      in_flight: Instances in flight, but for the synchronous run.
      other_ns: What a dispatch takes beside its layers.
      sync_shown: Instances of the synchronous run that the charts are long enough for.
    """

    graph: Graph
    data: Instances | Sequence[Any]
    settings: Mapping[str, Any]
    in_flight: int
    other_ns: int
    sync_shown: int


def main(options: Figure1Options) -> dict[str, dict[str, Simulation]]:
    """Draws; gives the runs by model and mode.

    Raises:
      SettingsError: If an option is not above 0.
    """
    keys = 1 if options.max_active_keys is None else options.max_active_keys
    require_positive(
        "The defaults are 4 or 6, 24 and 1e9.",
        max_active_keys=keys,
        n=options.n,
        flops=options.flops,
    )
    found = {}
    for name in options.models:
        subject = perceptron(options) if name == "perceptron" else trees(options)
        keys = subject.in_flight if options.max_active_keys is None else options.max_active_keys
        runs = found[name] = {mode: run(options, subject, mode, keys) for mode in MODES}
        span = round(1e9 * runs["sync"].seconds * subject.sync_shown / len(subject.data))
        charts = {}
        for mode, one in runs.items():
            slices = at_work(one)
            title = MODES[mode].format(keys=keys)
            charts[f"{title} — {summary(slices, span)}"] = beginning(slices, span)
        for suffix in ("png", "svg"):
            path = options.out / f"{name}.{suffix}"
            gantt(charts, path)
            print(f"{path}")
    return found


def run(
    options: Figure1Options,
    subject: Subject,
    mode: str,
    max_active_keys: int,
) -> Simulation:
    """One run with a trace: control flow only, one worker's device like the other."""
    return simulate(
        subject.graph,
        subject.data,
        cost=partial(FlopsCost, flops=options.flops, other_ns=subject.other_ns),
        mode=mode,
        max_active_keys=max_active_keys,
        policy="backward_first",
        trace=Trace(),
        **subject.settings,
    )


def at_work(run: Simulation) -> list[Slice]:
    """What took any time: nodes without layers take none."""
    return [s for s in run.trace or () if s.duration_ns]


def beginning(slices: Sequence[Slice], span_ns: int) -> list[Slice]:
    """What happened within so many nanoseconds; what was under way then is cut off there."""
    end = min(s.start_ns for s in slices) + span_ns
    result = []
    for s in slices:
        if s.start_ns < end:
            result.append(replace(s, end_ns=min(s.end_ns, end)))
    return result


def summary(slices: Sequence[Slice], span_ns: int) -> str:
    """Instances that have ended within so many nanoseconds, and the part of the time in which workers were busy."""
    start = min(s.start_ns for s in slices)
    last: dict[int, int] = {}
    for s in slices:
        for instance in s.instances:
            last[instance] = max(last.get(instance, 0), s.end_ns)
    ended = sum(end <= start + span_ns for end in last.values())
    busy = sum(s.duration_ns for s in beginning(slices, span_ns))
    n = len({s.worker for s in slices})
    return f"{ended} instances, workers {busy / (n * span_ns):.0%} busy"


def perceptron(options: Figure1Options) -> Subject:
    """Three equal layers on three workers, one image at a time: then an update takes half as long as a forward pass, and is seen."""
    graph = mlp((64, 64, 64, 64), batch=1)
    image = np.zeros((1, 64), np.float32)
    label = np.zeros(1, np.int32)
    return Subject(
        graph,
        [{"image": image, "label": label}] * options.n,
        {"workers": 3, "max_dispatch_size": 1, "fuse": False},
        4,
        0,
        4,
    )


def trees(options: Figure1Options) -> Subject:
    """A Tree-LSTM on four workers: words and leaves, two copies of the branch cell, and the classifier with its loss."""
    trees, _ = sst.synthetic(400, 1, 0)
    sizes = np.diff(trees.ptr)
    chosen = np.flatnonzero((sizes >= 9) & (sizes <= 11))[: options.n]
    graph = tree_lstm(
        len(trees.vocabulary),
        Cells("tai", 32, 32, 1.0),
        replicas=2,
    )
    homes = {
        "embed": 0,
        "leaf/0": 0,
        "leaf/1": 0,
        "branch/0": 1,
        "branch/1": 2,
    }
    settings = {
        "workers": 4,
        "affinity": {node.name: homes.get(node.name, 3) for node in list_hosted(graph)},
        "max_dispatch_size": 4,
        "min_update_interval": 8,
    }
    return Subject(
        graph,
        Subset(sst.TreeInstances(trees), chosen),
        settings,
        6,
        2_000,
        9,
    )
