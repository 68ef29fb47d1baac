"""An embedding in host memory beside one on the device: the words of sentences, summed and classified, with a table of a million rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import SettingsError
from ampjax.sparse import Table
from ampjax.utils.text_tables import compact
from experiments.common import cache_compilations
from experiments.records import append

N_CLASSES = 5


@dataclass(frozen=True, kw_only=True)
class TableNodesBench:
    """Words per second of `TableEmbed` and `Embed` in one sentence model, and their bytes on the device.

    Args:
      rows: Rows of the table.
      features: Numbers in a row.
      sentences: Sentences in an epoch.
      words: Words of a sentence, at most; their ids follow a power law.
      min_update_interval: Gradient rows between updates of a node.
      max_active_keys: Sentences in flight.
      epochs: Epochs that are timed, after one that is not.
      seed: Of sentences and parameters.
      json: File to which a JSON object for each embedding is appended.
    """

    rows: int = 1_000_000
    features: int = 64
    sentences: int = 1000
    words: int = 30
    min_update_interval: int = 500
    max_active_keys: int = 64
    epochs: int = 5
    seed: int = 0
    json: Path | None = None


def main(
    options: TableNodesBench,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives a row for each embedding. Their epochs take turns, so that what else the machine does slows both.

    Raises:
      SettingsError: If an option is below 1.
    """
    counts = {}
    for name, value in vars(options).items():
        if name not in ("seed", "json"):
            counts[name] = value
    if min(counts.values()) < 1:
        raise SettingsError(
            "bench table-nodes, options",
            "numbers of at least 1",
            f"{options}",
            "Change the option.",
        )
    cache_compilations()
    data = _sentences(options)
    n_words = sum(len(sentence["words"]) for sentence in data)
    rng = np.random.default_rng(options.seed)
    values = rng.normal(scale=0.1, size=(options.rows, options.features)).astype(np.float32)
    tx = optax.adagrad(0.05)
    layers = {
        "TableEmbed": amp.nn.TableEmbed(Table(values, tx)),
        "Embed": amp.nn.Embed(options.rows, options.features),
    }
    trainers = {}
    for name, layer in layers.items():
        params = {"embed": values} if name == "Embed" else {}
        settings: dict[str, Any] = {
            "max_active_keys": options.max_active_keys,
            "min_update_interval": options.min_update_interval,
        }
        trainers[name] = amp.Trainer(
            _graph(layer), tx, params=params, seed=options.seed, **settings
        )
    seconds: dict[str, list[float]] = {name: [] for name in trainers}
    losses: dict[str, float] = {}
    for epoch in range(1 + options.epochs):
        for name, trainer in trainers.items():
            start = perf_counter()
            losses[name] = trainer.fit(data, progress=False).epochs[-1].train["loss"]
            if epoch:
                seconds[name].append(perf_counter() - start)
    facts = {}
    for name, value in vars(options).items():
        if name != "json":
            facts[name] = value
    found = []
    for name, trainer in trainers.items():
        found.append(
            {
                "bench": "table-nodes",
                **facts,
                "embedding": name,
                "words_per_s": n_words / median(seconds[name]),
                "device_bytes": sum(
                    trainer.device_bytes[part] for part in ("params", "opt_state", "accumulators")
                ),
                "loss": losses[name],
            }
        )
    _show(found, options, console or Console(highlight=False))
    append(options.json, found)
    return found


def _show(
    found: list[dict[str, Any]],
    options: TableNodesBench,
    console: Console,
) -> None:
    title = f"{options.rows:,} x {options.features} rows, seed {options.seed}"
    table = compact("embedding", "words/s", "MB on the device", "loss", title=title)
    for row in found:
        rate = f"{row['words_per_s']:,.0f}"
        megabytes = f"{row['device_bytes'] / 1e6:,.1f}"
        table.add_row(row["embedding"], rate, megabytes, f"{row['loss']:.4f}")
    console.print(table)
    ours, dense = found
    console.print(f"TableEmbed over Embed: {ours['words_per_s'] / dense['words_per_s']:.2f}")


def _graph(layer: Any) -> ag.Graph:
    def network(
        params: Mapping[str, jax.Array],
        rows: jax.Array,
    ) -> jax.Array:
        return jnp.tanh(rows) @ params["w"] + params["b"]

    with ag.Graph() as graph:
        words = ag.pump("words", (), "int32", ragged=True)
        label = ag.pump("label", (), "int32")
        rows = ag.ppt("embed", layer)(words)
        sentence = ag.reduce("sum", jax.ops.segment_sum, rows)
        linear = amp.nn.Linear(
            layer.table.shape[1] if hasattr(layer, "table") else layer.features,
            N_CLASSES,
        )
        logits = ag.ppt("classify", network, params=linear.init)(sentence)
        ag.loss("xent", lambda x, y: optax.softmax_cross_entropy_with_integer_labels(x, y))(
            logits, label
        )
    return graph


def _sentences(options: TableNodesBench) -> list[dict[str, Any]]:
    rng = np.random.default_rng(options.seed + 1)
    found = []
    for _ in range(options.sentences):
        ids = np.minimum(rng.zipf(1.3, rng.integers(1, options.words + 1)), options.rows) - 1
        found.append({"words": ids.astype(np.int32), "label": np.int32(ids.sum() % N_CLASSES)})
    return found
