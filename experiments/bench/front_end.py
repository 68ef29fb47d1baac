"""Models as functions beside the hand-written graphs: training passes in turn, and making the data."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import optax
import tyro
from rich.console import Console

import ampjax as amp
from ampjax.data import list_reduction, permutation, sst, wikiner
from ampjax.errors import SettingsError
from ampjax.frontend.compile_model import Compiled
from ampjax.ir.graph import Graph
from ampjax.ir.instances import InstanceList, Instances
from ampjax.models import act, mixture
from ampjax.models.functions import (
    act_function,
    mixture_function,
    permutation_function,
    rnn_function,
    tagger_function,
    tree_lstm_function,
)
from ampjax.models.tagger import Sizes
from ampjax.models.tree_lstm import Cells
from ampjax.train.settings import Settings
from ampjax.utils.text_tables import compact
from experiments.bench.ours import set_up
from experiments.records import append

KEY = jax.random.key(0)


@dataclass(frozen=True)
class Pair:
    """A model in both forms.

    Args:
      graph: The hand-written graph.
      adapter: Makes its instances: what is measured beside `plain` and `Compiled.data`.
      compiled: The model as a function.
      plain: Makes the plain instances.
      settings: The settings of both.
      tx: Their optimizer, where nodes have none of their own.
    """

    graph: Graph
    adapter: Callable[[], Instances]
    compiled: Compiled
    plain: Callable[[], Sequence[Any]]
    settings: Settings
    tx: optax.GradientTransformation | None


@dataclass(frozen=True, kw_only=True)
class FrontEndBench:
    """Rates of models that are written as functions over those of the hand-written graphs: medians of passes in turn, in one process.

    Args:
      models: Which models; all by default.
      passes: Measured passes of each; one more before them is not counted.
      size: Instances of a pass, as a part of what is measured by default.
      synthetic: Generated data in place of the treebank and WikiNER.
      data_dir: Folder with data files; else AMPJAX_DATA.
      json: File to which a JSON object is appended for each model.
    """

    models: Annotated[tuple[str, ...], tyro.conf.Positional] = ()
    passes: int = 7
    size: float = 1.0
    synthetic: bool = False
    data_dir: Path | None = None
    json: Path | None = None


def main(options: FrontEndBench, console: Console | None = None) -> list[dict[str, Any]]:
    """Prints a table; gives its rows.

    Raises:
      SettingsError: If a model is unknown, or an option is outside what it can be.
    """
    unknown = sorted(set(options.models) - set(PAIRS))
    if unknown or options.passes < 1 or options.size <= 0:
        expected = f"models of {', '.join(PAIRS)}, at least 1 pass, a size above 0"
        raise SettingsError("bench front-end", expected, f"{unknown or options}", "Change the option.")
    table = compact("model", "hand/s", "compiled/s", "ratio", "spread", "CPU ratio", "messages", "stages", "data")
    rows = []
    for name in options.models or PAIRS:
        row = {"bench": "front-end", "model": name, **measure(PAIRS[name](options), options.passes)}
        rows.append(row)
        append(options.json, [row])
        low, high = row["spread"]
        table.add_row(
            name,
            f"{row['hand_per_s']:,.0f}",
            f"{row['compiled_per_s']:,.0f}",
            f"{row['ratio']:.3f}",
            f"{low:.2f} to {high:.2f}",
            f"{row['processor_ratio']:.3f}",
            " / ".join(f"{n:,.1f}" for n in row["messages"]),
            " / ".join(map(str, row["stages"])),
            f"{row['data_ratio']:.2f}",
        )
    (console or Console(highlight=False)).print(table)
    return rows


def measure(pair: Pair, passes: int) -> dict[str, Any]:
    """Rates, their ratios by the clock and by processor time, messages an instance, stages, and the time for the data over the adapter's."""
    alike(pair.graph, pair.compiled.graph)
    data, plain = pair.adapter(), pair.plain()
    n = len(data)
    trainers = [
        (amp.Trainer(pair.graph, pair.tx, settings=pair.settings), data),
        (amp.Trainer(pair.compiled.graph, pair.tx, settings=pair.settings), pair.compiled.data(plain)),
    ]
    for trainer, instances in trainers:
        trainer.warm_up(instances, progress=False)
    times: list[list[tuple[float, float]]] = [[], []]
    for number in range(passes + 1):
        for kept, (trainer, instances) in zip(times, trainers, strict=True):
            seconds = timed(lambda t=trainer, d=instances: t.fit(d, epochs=1, progress=False))
            if number:
                kept.append(seconds)
    hand, compiled = ([wall for wall, _ in kept] for kept in times)
    ratios = [a / b for a, b in zip(hand, compiled, strict=True)]
    every, ids = (lambda make: make().gather(ids)), np.arange(n)
    of_data = [
        min(timed(lambda make=make: every(make))[1] for _ in range(3))
        for make in (pair.adapter, lambda: pair.compiled.data(pair.plain()))
    ]
    return {
        "instances": n,
        "hand_per_s": n / statistics.median(hand),
        "compiled_per_s": n / statistics.median(compiled),
        "ratio": statistics.median(ratios),
        "spread": (min(ratios), max(ratios)),
        "processor_ratio": statistics.median(a / b for (_, a), (_, b) in zip(*times, strict=True)),
        "messages": [trainer.statistics.messages / n for trainer, _ in trainers],
        "stages": [len(trainer.plan.stages) for trainer, _ in trainers],
        "data_seconds": of_data,
        "data_ratio": of_data[1] / of_data[0],
    }


def timed(run: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock, and of the processor, that a call takes."""
    wall, processor = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - wall, time.process_time() - processor


def alike(graph: Graph, compiled: Graph) -> None:
    """Gives nodes of a compiled graph the options that those of the same name have in another: the transform and the interval."""
    for name, node in compiled.parameterised.items():
        options = graph.nodes[name].options
        node.options = replace(node.options, tx=options.tx, min_update_interval=options.min_update_interval)


# -- the models


def _experiment(name: str, n_train: int, options: FrontEndBench, **arguments: Any) -> Any:
    """An experiment's task: its graph, settings and optimizer."""
    has_files = name in ("sentiment", "wikiner")
    own = {"data_dir": options.data_dir, "synthetic": options.synthetic} if has_files else {}
    return set_up(name, max(1, round(n_train * options.size)), **own, **arguments)[1]


def _sequences(options: FrontEndBench, batch: int | None = None) -> Pair:
    """List reduction, single or in buckets."""
    keys = {} if batch else {"single": True}
    task = _experiment(
        "list-reduction", 20_000 if batch else 5000, options, max_active_keys=16 if batch else 64, **keys
    )
    function = rnn_function
    compiled = amp.compile(function.list_reduction, function.init(KEY), function.spec(batch))
    data = task.train.data
    if batch:
        return _pair(task, compiled, lambda: list_reduction.Buckets(data, batch).plain())
    return _pair(task, compiled, lambda: list_reduction.plain(data))


def _trees(options: FrontEndBench, kind: str) -> Pair:
    """A Tree-LSTM; `keep` is 1."""
    best = {"policy": "wavefront", "min_admission": 64, "min_update_interval": 1150, "max_active_keys": 64}
    task = _experiment("sentiment", 2000, options, cell=kind, keep=1.0, **best)
    trees, n = task.train._data.data, len(task.train)
    cells = Cells(kind, 300, 150 if kind == "tai" else 300, 1.0)
    params = tree_lstm_function.init(KEY, len(trees.vocabulary), cells)
    compiled = amp.compile(tree_lstm_function.tree_lstm(cells), params, tree_lstm_function.SPEC)
    return replace(
        _pair(task, compiled, lambda: sst.plain(trees)[:n]),
        adapter=lambda: amp.Subset(sst.TreeInstances(trees), np.arange(n)),
    )


def _sentences(options: FrontEndBench) -> Pair:
    """The tagger, without noise."""
    best = {"min_admission": 64, "max_dispatch_size": 2048, "batch": 32, "max_active_keys": 64, "noise": 0.0}
    task = _experiment("wikiner", 640, options, **best)
    sentences = task.train.data
    counts = len(sentences.vocabulary.words) or 1, len(sentences.vocabulary.characters)
    params = tagger_function.init(KEY, *counts, Sizes(noise=0))
    compiled = amp.compile(tagger_function.tagger(0), params, tagger_function.SPEC)
    return _pair(task, compiled, lambda: wikiner.plain(sentences))


def _shuffles(options: FrontEndBench) -> Pair:
    """Operations in an order of each instance's own."""
    best = {"min_admission": 2048, "max_dispatch_size": 1024, "max_active_keys": 8192}
    task = _experiment("permutation", 8192, options, **best)
    data = task.train.data
    compiled = amp.compile(permutation_function.permutation, permutation_function.init(KEY), permutation_function.SPEC)
    return _pair(task, compiled, lambda: permutation.plain(data))


def _pair(task: Any, compiled: Compiled, plain: Callable[[], Sequence[Any]]) -> Pair:
    return Pair(task.graph, lambda: replace(task.train), compiled, plain, task.settings, task.tx)


def _experts(options: FrontEndBench, top: int) -> Pair:
    """A mixture of experts, 32 rows an instance; random data."""
    rng, sizes, n = np.random.default_rng(0), mixture.Experts(128, 256, 10, top=top, noisy=False), 32
    plain = [
        {"x": rng.normal(size=(n, 128)).astype(np.float32), "label": rng.integers(0, 10, n).astype(np.int32)}
        for _ in range(max(1, round(100 * options.size)))
    ]
    params = mixture_function.init(KEY, sizes)
    params["gate"] = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), params["gate"])
    compiled = amp.compile(mixture_function.mixture_of_experts(sizes), params, mixture_function.spec(sizes))
    fields = {"i": np.arange(n), "n": np.full(n, n)}
    columns = lambda: InstanceList([{k: amp.messages(v, **fields) for k, v in one.items()} for one in plain])
    settings = Settings(max_active_keys=16, min_update_interval=512, max_dispatch_size=512, policy="wavefront")
    return Pair(mixture.mixture_of_experts(sizes), columns, compiled, lambda: plain, settings, optax.adam(1e-3))


def _pondering(options: FrontEndBench) -> Pair:
    """Adaptive computation time; sequences of 1 to 9 random inputs."""
    rng, sizes = np.random.default_rng(0), act.Ponder(32, 128, 2)
    plain = [
        {"x": rng.normal(size=(int(n), 32)).astype(np.float32), "label": np.int32(n % 2)}
        for n in rng.integers(1, 10, max(1, round(500 * options.size)))
    ]
    compiled = amp.compile(act_function.act_rnn(sizes), act_function.init(KEY, sizes), act_function.spec(sizes))

    def columns(one: Mapping[str, Any]) -> Any:
        n, zero = len(one["x"]), np.zeros(1, np.int64)
        start = amp.messages(np.zeros((1, 128), np.float32), t=zero, length=[n], step=zero, more=zero)
        return {"x": amp.messages(one["x"], t=np.arange(n), length=np.full(n, n)), "s0": start, "label": one["label"]}

    settings = Settings(max_active_keys=64, min_update_interval=512, max_dispatch_size=512, policy="wavefront")
    adapter = lambda: InstanceList([columns(one) for one in plain])
    return Pair(act.act_rnn(sizes), adapter, compiled, lambda: plain, settings, optax.adam(1e-3))


PAIRS: Mapping[str, Callable[[FrontEndBench], Pair]] = {
    "list-reduction": partial(_sequences, batch=100),
    "list-reduction-single": _sequences,
    "tree-lstm-tai": partial(_trees, kind="tai"),
    "tree-lstm-fold": partial(_trees, kind="fold"),
    "tagger": _sentences,
    "permutation": _shuffles,
    "mixture-top-1": partial(_experts, top=1),
    "mixture-top-2": partial(_experts, top=2),
    "act": _pondering,
}
"""By name, what makes the pair."""
