"""What the Tree-LSTM needs of memory: on the device, beside its arenas, parameters and optimizer states; and of the process, epoch after epoch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.ir.instances import Instances, Messages
from ampjax.utils.text_tables import compact
from experiments.bench.children import in_a_process
from experiments.bench.ours import set_up
from experiments.common import cache_compilations
from experiments.records import append

PARTS = "arenas", "records", "params", "opt_state"
"""What live bytes are compared with: gradient accumulators and what kernels need meanwhile come on top."""


@dataclass(frozen=True, kw_only=True)
class MemoryBench:
    """Live bytes on the device while trees are in flight, and resident memory after each epoch.

    Args:
      max_active_keys: Trees in flight.
      n_train: Training trees in an epoch; 0 takes all.
      epochs: Epochs.
      embedding: Features of a word vector.
      hidden: Features of a node's state.
      synthetic: Generated trees.
      data_dir: Folder with data files; else AMPJAX_DATA.
      json: File to which a JSON object is appended.
    """

    max_active_keys: int = 128
    n_train: int = 1000
    epochs: int = 20
    embedding: int = 300
    hidden: int = 150
    synthetic: bool = False
    data_dir: Path | None = None
    json: Path | None = None


def main(
    options: MemoryBench,
    console: Console | None = None,
) -> dict[str, Any]:
    """Prints a table; gives what was measured.

    Raises:
      SettingsError: If an option is below 1.
      RuntimeError: If the measured process fails; its errors are on the terminal.
    """
    if (
        min(options.max_active_keys, options.epochs, options.embedding, options.hidden) < 1
        or options.n_train < 0
    ):
        raise SettingsError(
            "bench memory, options", "numbers of at least 1", f"{options}", "Change the option."
        )
    arguments = {}
    for name, value in vars(options).items():
        if name not in ("json", "data_dir"):
            arguments[name] = value
    arguments["data_dir"] = str(options.data_dir) if options.data_dir else None
    row = {"bench": "memory", **in_a_process(measured, arguments, {})}
    table = compact("MB", "", title=f"memory, {options.max_active_keys} trees in flight")
    for name in ("live", *PARTS):
        table.add_row(name, f"{row[name] / 1e6:.1f}")
    resident = [f"{bytes_ / 1e6:.0f}" for bytes_ in row["resident"]]
    table.add_row("resident, by epoch", " ".join(resident))
    console = console or Console(highlight=False)
    console.print(table)
    console.print(
        f"live over arenas, their records, parameters and optimizer states: {row['ratio']:.2f}"
    )
    append(options.json, [row])
    return row


@dataclass(frozen=True)
class Watched:
    """Instances that look at the device's live arrays whenever some of them are asked for, that is, while others are in flight.

    Args:
      data: The instances.
      seen: What was seen: bytes.
    """

    data: Instances
    seen: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.data)

    def gather(self, ids: np.ndarray) -> Mapping[str, Messages]:
        """The messages of some of them, by pump."""
        self.seen.append(sum(array.nbytes for array in jax.live_arrays()))
        return self.data.gather(ids)  # type: ignore[return-value]


def measured(epochs: int, **arguments: Any) -> dict[str, Any]:
    """Trains here; gives bytes: the most that were live, what they consist of, and what was resident after each epoch."""
    cache_compilations()
    settings = {"policy": "wavefront", "min_admission": min(64, arguments["max_active_keys"])}
    _, task = set_up("sentiment", **settings, **arguments)
    train = Watched(task.train)
    trainer = amp.Trainer(task.graph, task.tx, settings=task.settings)
    trainer.warm_up(train, progress=False)
    train.seen.clear()
    resident: list[int] = []
    note = lambda trainer, epoch: resident.append(resident_bytes())
    trainer.fit(train, epochs=epochs, progress=False, callbacks=[note])
    own = trainer.device_bytes
    live = max(train.seen)
    return {
        "live": live,
        **own,
        "ratio": live / sum(own[name] for name in PARTS),
        "resident": resident,
    }


def resident_bytes() -> int:
    """The process's memory that is in RAM; 0 where the system does not tell as Linux does."""
    path = Path("/proc/self/statm")
    if path.exists():
        return int(path.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
