"""How the time for a tree grows with the trees in flight, and with the depth of trees of one size."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optax
from rich.console import Console

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.ir.instances import Instances
from ampjax.train.settings import Settings
from ampjax.utils.text_tables import compact
from ampjax.viz.line_chart import curves
from experiments.bench.children import in_a_process
from experiments.bench.workload import SPREAD
from experiments.by_hand.tree_lstm_graph import tree_lstm
from experiments.common import cache_compilations
from experiments.data import sst
from experiments.models.tree_lstm import Cells
from experiments.records import append
from experiments.sentiment import adagrad

INTERVAL = 1150
"""Gradient rows to an update, as many as 64 trees of the treebank bring, and more than any dispatch holds: fuller dispatches do not mean fewer updates."""


@dataclass(frozen=True, kw_only=True)
class GrowthBench:
    """Microseconds for a tree of the Tree-LSTM, and of the host's thread for it, as more trees are in flight and as trees are deeper.

    The deep ones are all alike and have as many leaves, so the work in them is the same; only its order differs. Trees enter together, from 128 in flight on
    64 at a time. Against the number of workers: `scaling`.

    Args:
      max_active_keys: Trees in flight.
      depths: Branches on the way from the root to the deepest leaf.
      depth_keys: Trees of these depths in flight.
      leaves: Leaves of the trees of these depths.
      n_train: Trees in a pass: several times as many as are in flight, since a pass begins and ends with fewer.
      passes: Measured passes of each; medians count.
      embedding: Features of a word vector.
      hidden: Features of a node's state.
      synthetic: Generated trees in place of the treebank's.
      data_dir: Folder with data files; else AMPJAX_DATA.
      json: File to which a JSON object is appended for each row.
      out: Folder for the pictures.
    """

    max_active_keys: tuple[int, ...] = (
        1,
        4,
        16,
        64,
        128,
        256,
        512,
    )
    depths: tuple[int, ...] = (6, 8, 16, 32, 63)
    depth_keys: int = 64
    leaves: int = 64
    n_train: int = 4096
    passes: int = 3
    embedding: int = 300
    hidden: int = 150
    synthetic: bool = False
    data_dir: Path | None = None
    json: Path | None = None
    out: Path = Path("runs/growth")


def main(
    options: GrowthBench,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints two tables and draws them; gives the rows.

    Raises:
      SettingsError: If an option is below 1, or there is no binary tree of such a depth with so many leaves.
      RuntimeError: If a measured process fails; its errors are on the terminal.
    """
    sizes = {}
    for name in ("n_train", "passes", "embedding", "hidden"):
        sizes[name] = getattr(options, name)
    counts = *options.max_active_keys, options.depth_keys, options.leaves, *sizes.values()
    if not options.max_active_keys or min(counts) < 1:
        raise SettingsError(
            "bench growth, options", "numbers of at least 1", f"{options}", "Change the option."
        )
    for depth in options.depths:
        comb(depth, options.leaves)
    console = console or Console(highlight=False)
    data = {
        "synthetic": options.synthetic,
        "data_dir": str(options.data_dir) if options.data_dir else None,
    }
    found = {
        "trees in flight": in_a_process(
            in_flight, {"counts": sorted(options.max_active_keys), **sizes, **data}, SPREAD
        )
    }
    if options.depths:
        shape = {
            "depths": sorted(options.depths),
            "leaves": options.leaves,
            "keys": options.depth_keys,
        }
        found["depth"] = in_a_process(by_depth, {**shape, **sizes}, SPREAD)
    settings = {**sizes, "leaves": options.leaves, "depth_keys": options.depth_keys}
    every = []
    for against, rows in found.items():
        for row in rows:
            every.append({"bench": "growth", "against": against, **row, **settings})
    append(options.json, every)
    for against, rows in found.items():
        _show(console, options.out, against, rows)
    console.print(f"pictures are in {options.out}")
    return every


def _show(
    console: Console,
    out: Path,
    against: str,
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Prints and draws."""
    table = compact(
        against, "trees/s", "µs a tree", "host µs\na tree", "dispatches\na tree", "rows a\ndispatch"
    )
    for row in rows:
        times = f"{1e6 / row['us']:,.0f}", f"{row['us']:,.0f}", f"{row['host_us']:,.0f}"
        table.add_row(
            f"{row['at']:,}", *times, f"{row['dispatches']:.2f}", f"{row['mean_dispatch']:.1f}"
        )
    console.print(table)
    parts = ("all in all", "us"), ("the host's thread", "host_us")
    series = {}
    for name, key in parts:
        series[name] = [(row["at"], row[key]) for row in rows]
    for suffix in ("png", "svg"):
        path = out / f"{against.replace(' ', '-')}.{suffix}"
        curves(series, path, x=against, y="time per tree [µs]", log=True)


def in_flight(
    counts: Sequence[int],
    *,
    n_train: int,
    passes: int,
    embedding: int,
    hidden: int,
    synthetic: bool,
    data_dir: str | None,
) -> list[dict[str, Any]]:
    """Trees of the treebank, so many in flight; measured here."""
    cache_compilations()
    trees, _ = sst.synthetic(n_train) if synthetic else sst.load(data_dir)
    data = amp.Subset(
        sst.TreeInstances(trees),
        np.arange(min(n_train, len(trees))),
    )
    cells = Cells("tai", embedding, hidden, 0.5)
    result = []
    for keys in counts:
        result.append({"at": keys, **measured(trees, data, cells, keys, passes)})
    return result


def by_depth(
    depths: Sequence[int],
    *,
    leaves: int,
    keys: int,
    n_train: int,
    passes: int,
    embedding: int,
    hidden: int,
) -> list[dict[str, Any]]:
    """Trees of so many leaves, of these depths; measured here."""
    cache_compilations()
    rows = []
    for depth in depths:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trees.txt"
            file.write_text(n_train * f"{comb(depth, leaves)}\n")
            trees = sst.read_trees(file)
        cells = Cells("tai", embedding, hidden, 0.5)
        rows.append({"at": depth, **measured(trees, sst.TreeInstances(trees), cells, keys, passes)})
    return rows


def measured(
    trees: sst.Trees,
    data: Instances,
    cells: Cells,
    keys: int,
    passes: int,
) -> dict[str, Any]:
    """Trains on the trees; gives medians of microseconds a tree, all in all and of the host's thread, and what dispatches hold."""
    graph = tree_lstm(
        len(trees.vocabulary),
        cells,
        INTERVAL,
        optax.sgd(0.1),
    )
    settings = Settings(
        policy="wavefront",
        max_active_keys=keys,
        min_admission=min(64, keys),
        min_update_interval=INTERVAL,
        max_dispatch_size=512,
    )
    trainer = amp.Trainer(graph, adagrad(0.05), settings=settings)
    trainer.warm_up(data, progress=False)
    trainer.fit(data, epochs=1, progress=False)
    walls = []
    hosts = []
    for _ in range(passes):
        wall = time.perf_counter()
        host = time.thread_time()
        trainer.fit(data, epochs=1, progress=False)
        walls.append(1e6 * (time.perf_counter() - wall) / len(data))
        hosts.append(1e6 * (time.thread_time() - host) / len(data))
    stats = trainer.statistics
    return {
        "us": statistics.median(walls),
        "host_us": statistics.median(hosts),
        "dispatches": stats.dispatches / len(data),
        "mean_dispatch": sum(stage.rows for stage in stats.stages.values()) / stats.dispatches,
    }


def comb(depth: int, leaves: int) -> str:
    """A binary tree as a line of the treebank: leaves split off one by one as long as the rest fits below; from there on it is balanced.

    Raises:
      SettingsError: If there is none.

    >>> comb(2, 3)
    '(2 (2 word) (2 (2 word) (2 word)))'
    """
    if not 0 < depth < leaves <= 2**depth:
        expected = f"a depth from {(leaves - 1).bit_length()} to {leaves - 1}, for {leaves} leaves"
        raise SettingsError(
            "bench growth, --depths", expected, f"{depth}", "Change depths or leaves."
        )
    split = []
    while leaves > 1:
        depth -= 1
        first = max(1, leaves - 2**depth)  # the rest must find room below the second child
        split.append(f"(2 {balanced(first)} ")
        leaves -= first
    return "".join(split) + "(2 word)" + ")" * len(split)


def balanced(leaves: int) -> str:
    """A binary tree of the least depth."""
    half = leaves // 2
    return f"(2 {balanced(half)} {balanced(leaves - half)})" if leaves > 1 else "(2 word)"
