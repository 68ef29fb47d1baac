"""A gated graph network on a network of small devices: the arXiv version's Appendix C, in closed form and in virtual time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from ampjax.drivers.cost import FlopsCost
from ampjax.simulation.simulate import Simulation, simulate
from ampjax.utils.text_tables import compact
from experiments.by_hand.ggnn_graph import Network, ggnn_regression
from experiments.common import require_positive
from experiments.data.graphs import GraphInstances, Graphs
from experiments.records import append

BYTES = 4
COPIES = 4
"""A parameter, its gradient and Adam's two moments."""


@dataclass(frozen=True, kw_only=True)
class AppendixCOptions:
    """Throughput of a gated graph network whose matrices have a device each (arXiv version, Appendix C and figure 7).

    The closed form counts the busiest device's flops; the simulation runs the scheduler against devices that need time for their matrices only.

    Args:
      hidden: Features of a node's state, H.
      n_nodes: Nodes of a graph, N.
      n_edges: Edges of a graph, E, of kinds and between nodes chosen at random.
      n_kinds: Kinds of edges, C: a matrix each.
      steps: Propagation steps.
      flops: Operations per second of a device.
      share: Part of them that a device reaches.
      max_active_keys: Graphs in flight.
      n: Graphs simulated.
      seed: Of the graphs.
      json: File to which the rows are appended as JSON objects.
    """

    hidden: int = 200
    n_nodes: int = 30
    n_edges: int = 30
    n_kinds: int = 4
    steps: int = 4
    flops: float = 1e12
    share: float = 0.5
    max_active_keys: int = 32
    n: int = 400
    seed: int = 0
    json: Path | None = None


@dataclass(frozen=True)
class Figures:
    """Rates, memory and devices of one row of the table.

    Args:
      source: Where the row comes from.
      graphs_per_s: Graphs trained per second.
      bits_per_s: Bits that cross the busiest link in a second.
      device_bytes: Memory of the largest matrix with its gradient and Adam's moments.
      devices: Devices for the matrices of the propagation.
    """

    source: str
    graphs_per_s: float
    bits_per_s: float
    device_bytes: float | None
    devices: int


def main(
    options: AppendixCOptions,
    console: Console | None = None,
) -> list[Figures]:
    """Prints the paper's figures, the closed form and the simulation.

    Raises:
      SettingsError: If an option is not above 0.
    """
    sizes = {}
    for name in ("hidden", "n_nodes", "n_edges", "n_kinds", "steps", "n"):
        sizes[name] = getattr(options, name)
    require_positive(
        "The paper's H, N, E and C are 200, 30, 30 and 4.",
        **sizes,
        flops=options.flops,
        share=options.share,
    )
    rows = [
        Figures("paper", 6.5e3, 1.2e9, None, 7),
        closed_form(options),
        simulated(options),
    ]
    table = compact("source", "graphs/s", "Gb/s", "MB a device", "devices")
    for row in rows:
        memory = "" if row.device_bytes is None else f"{row.device_bytes / 1e6:.2f}"
        table.add_row(
            row.source,
            f"{row.graphs_per_s:,.0f}",
            f"{row.bits_per_s / 1e9:.2f}",
            memory,
            str(row.devices),
        )
    (console or Console(highlight=False)).print(table)
    append(
        options.json,
        ({"experiment": "appendix-c", **asdict(row)} for row in rows),
    )
    return rows


def closed_form(options: AppendixCOptions) -> Figures:
    """The paper's formulas: the busiest device multiplies `[N, 2H]` by `[2H, H]`, or the edges of a kind by `[H, H]`.

    `forward = 2 max(2 N H^2, E H^2 / C)` operations a step, three times as many backward; `max(N, E) H` numbers a graph cross a link. (The
    simulation counts what crosses it in every step, forth and back: 2 T times as much. And its matrices take twice as many operations backward as
    forward, so 4/3 of this throughput is what it can reach.)
    """
    h = options.hidden
    n = options.n_nodes
    e = options.n_edges
    forward = 2 * max(2 * n * h**2, e * h**2 / options.n_kinds)
    per_s = options.share * options.flops / (4 * forward * options.steps)
    return Figures(
        "closed form",
        per_s,
        8 * BYTES * per_s * max(n, e) * h,
        memory(options),
        options.n_kinds + 3,
    )


def simulated(options: AppendixCOptions) -> Figures:
    """The scheduler in virtual time, each matrix on a device of its own."""
    run = run_virtual(options)
    stages = run.stats.stages.items()
    crossed = max(
        (stage.rows for name, stage in stages if "→" in name and not name.startswith("feed")),
        default=0,
    )
    bits = 8 * BYTES * options.hidden * crossed / run.seconds
    return Figures(
        "simulated",
        run.per_s,
        bits,
        memory(options),
        options.n_kinds + 3,
    )


def run_virtual(options: AppendixCOptions) -> Simulation:
    """Control flow only: the matrices take their flops' time, all else none."""
    network = Network(
        1,
        options.hidden,
        options.steps,
        options.n_kinds,
        separate_gates=True,
    )
    return simulate(
        ggnn_regression(network),
        random_graphs(options),
        cost=partial(FlopsCost, flops=options.share * options.flops),
        workers=options.n_kinds + 4,  # one for the read-out
        max_active_keys=options.max_active_keys,
        max_dispatch_size=options.n_nodes,
        policy="backward_first",
        seed=options.seed,
    )


def random_graphs(options: AppendixCOptions) -> GraphInstances:
    """Graphs of `n_nodes` nodes and `n_edges` edges each."""
    rng = np.random.default_rng(options.seed)
    n = options.n
    size = options.n_nodes
    count = options.n_edges
    ends = rng.integers(0, size, (n * count, 2))
    edges = np.column_stack(
        [
            np.repeat(np.arange(n), count),
            ends,
            rng.integers(0, options.n_kinds, n * count),
        ]
    )
    graphs = Graphs.from_edges(
        size * np.arange(n + 1),
        edges,
        options.n_kinds,
    )
    x: Any = np.zeros((n * size, 1), np.float32)
    return GraphInstances(
        graphs,
        np.arange(n),
        {"x": x},
        {"target": np.zeros(n, np.float32)},
    )


def memory(options: AppendixCOptions) -> float:
    """Bytes of the largest matrix, `[2H, H]`, four times."""
    return COPIES * BYTES * 2 * options.hidden**2
