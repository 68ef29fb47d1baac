"""How long the Tree-LSTM takes to its first step, with an empty and with a filled compilation cache, and what it compiles later."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import ampjax as amp
from ampjax.engine.compile import compilations
from ampjax.errors import SettingsError
from ampjax.tables import compact
from experiments.bench.children import in_a_process
from experiments.bench.ours import set_up
from experiments.common import cache_compilations
from experiments.records import append


@dataclass(frozen=True, kw_only=True)
class StartUpBench:
    """Seconds from the data to the first step of the Tree-LSTM, cold and with the persistent cache, and compilations in each epoch.

    Args:
      max_active_keys: Trees in flight.
      n_train: Training trees; 0 takes all.
      epochs: Epochs whose compilations are counted.
      embedding: Features of a word vector.
      hidden: Features of a node's state.
      synthetic: Generated trees.
      data_dir: Folder with data files; else AMPJAX_DATA.
      json: File to which a JSON object is appended for each start.
    """

    max_active_keys: int = 64
    n_train: int = 1000
    epochs: int = 2
    embedding: int = 300
    hidden: int = 150
    synthetic: bool = False
    data_dir: Path | None = None
    json: Path | None = None


def main(options: StartUpBench, console: Console | None = None) -> list[dict[str, Any]]:
    """Prints a table; gives its rows as dictionaries.

    Raises:
      SettingsError: If an option is below 1.
      RuntimeError: If a measured process fails; its errors are on the terminal.
    """
    if min(options.max_active_keys, options.epochs, options.embedding, options.hidden) < 1 or options.n_train < 0:
        raise SettingsError("bench start-up, options", "numbers of at least 1", f"{options}", "Change the option.")
    arguments = {name: value for name, value in vars(options).items() if name not in ("json", "data_dir")}
    arguments["data_dir"] = str(options.data_dir) if options.data_dir else None
    rows = []
    table = compact(
        "cache", "s to the\nfirst step", "kernels\nbefore it", "compilations in epochs 1, 2, ...", title="start-up"
    )
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("empty", "filled"):
            row = {
                "bench": "start-up",
                "cache": cache,
                **in_a_process(measured, arguments, {"JAX_COMPILATION_CACHE_DIR": folder}),
            }
            rows.append(row)
            later = ", ".join(map(str, row["compilations"]))
            table.add_row(cache, f"{row['seconds']:.1f}", f"{row['kernels']}", later)
    (console or Console(highlight=False)).print(table)
    append(options.json, rows)
    return rows


def measured(epochs: int, **arguments: Any) -> dict[str, Any]:
    """Starts here: seconds until everything is compiled and the first step can be taken, and what epochs compile after that."""
    cache_compilations()
    settings = {"policy": "wavefront", "min_admission": arguments["max_active_keys"]}
    _, task = set_up("sentiment", **settings, **arguments)
    before, begin = compilations(), time.perf_counter()
    trainer = amp.Trainer(task.graph, task.tx, settings=task.settings)
    trainer.warm_up(task.train, task.valid, progress=False)
    seconds, kernels = time.perf_counter() - begin, compilations() - before
    history = trainer.fit(task.train, task.valid, epochs=epochs, progress=False)
    return {"seconds": seconds, "kernels": kernels, "compilations": [epoch.compilations for epoch in history.epochs]}
