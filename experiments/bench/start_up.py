"""How long the Tree-LSTM takes to its first update, with an empty and with a filled compilation cache, and what it compiles later."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

import ampjax as amp
from ampjax.engine.timing.compilation_count import compilations
from ampjax.errors import SettingsError
from ampjax.utils.text_tables import compact
from experiments.bench.children import in_a_process
from experiments.bench.ours import set_up
from experiments.common import cache_compilations
from experiments.records import append


@dataclass(frozen=True, kw_only=True)
class StartUpBench:
    """Seconds from the data to the first update of the Tree-LSTM, cold and with the persistent cache, and compilations in each epoch.

    Once with all kernels compiled ahead, once with each compiled when it is needed (the setting `compile_ahead`).

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


def main(
    options: StartUpBench,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives its rows as dictionaries.

    Raises:
      SettingsError: If an option is below 1.
      RuntimeError: If a measured process fails; its errors are on the terminal.
    """
    if (
        min(options.max_active_keys, options.epochs, options.embedding, options.hidden) < 1
        or options.n_train < 0
    ):
        raise SettingsError(
            "bench start-up, options", "numbers of at least 1", f"{options}", "Change the option."
        )
    arguments = {}
    for name, value in vars(options).items():
        if name not in ("json", "data_dir"):
            arguments[name] = value
    arguments["data_dir"] = str(options.data_dir) if options.data_dir else None
    rows = []
    table = compact(
        "kernels",
        "cache",
        "s to the\nfirst update",
        "compiled\nin all",
        "in epochs 1, 2, ...",
        title="start-up",
    )
    for ahead in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            for cache in ("empty", "filled"):
                found = in_a_process(
                    measured, {**arguments, "ahead": ahead}, {"JAX_COMPILATION_CACHE_DIR": folder}
                )
                rows.append({"bench": "start-up", "ahead": ahead, "cache": cache, **found})
                later = ", ".join(map(str, found["compilations"]))
                when = "ahead" if ahead else "when needed"
                table.add_row(when, cache, f"{found['seconds']:.1f}", f"{found['kernels']}", later)
    (console or Console(highlight=False)).print(table)
    append(options.json, rows)
    return rows


def measured(
    epochs: int,
    ahead: bool,
    **arguments: Any,
) -> dict[str, Any]:
    """Starts here: seconds until the first parameters have changed, how much is compiled in all, and how much of it in each epoch."""
    cache_compilations()
    settings = {"policy": "wavefront", "min_admission": arguments["max_active_keys"]}
    _, task = set_up("sentiment", **settings, **arguments)
    before = compilations()
    begin_ns = time.perf_counter_ns()
    trace = amp.Trace()
    trainer = amp.Trainer(
        task.graph,
        task.tx,
        settings=replace(task.settings, compile_ahead=ahead),
    )
    history = trainer.fit(
        task.train,
        task.valid,
        epochs=epochs,
        progress=False,
        trace=trace,
    )
    first_ns = min(sample.time_ns for sample in trace.staleness)
    return {
        "seconds": (first_ns - begin_ns) / 1e9,
        "kernels": compilations() - before,
        "compilations": [epoch.compilations for epoch in history.epochs],
    }
