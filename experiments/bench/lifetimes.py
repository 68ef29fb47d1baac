"""What stays of trainers that are gone: memory and compiled kernels of a process that makes one after the other, and of one that trains one again and again."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optax
from rich.console import Console

import ampjax as amp
from ampjax.engine.timing.compilation_count import compilations
from ampjax.errors import SettingsError
from ampjax.train.settings import Settings
from ampjax.utils.text_tables import compact
from experiments.bench.children import in_a_process
from experiments.bench.memory import resident_bytes
from experiments.models.mlp import mlp
from experiments.records import append

LOOKS = 10
"""How often a process is looked at."""

SMALLEST = 8
"""Features of the first graph's images; each one after it has one more, so that it shares no kernel."""

BATCH = 4
"""Images in an instance."""


@dataclass(frozen=True, kw_only=True)
class LifetimesBench:
    """Resident memory and memory maps of a process over many trainers of different graphs, each dropped before the next, and over many fits of one.

    Before each look the garbage is collected, and what the C library has free is given back to the system (`malloc_trim`): what remains is held by somebody.
    Linux allows a process 65,530 maps; beyond that XLA's compiler crashes.

    Args:
      trainers: Trainers, each of a graph of its own.
      fits: Fits of one trainer.
      json: File to which a JSON object is appended for each look.
    """

    trainers: int = 200
    fits: int = 300
    json: Path | None = None


def main(
    options: LifetimesBench,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints a table; gives its rows as dictionaries.

    Raises:
      SettingsError: If an option is below 1.
      RuntimeError: If a measured process fails; its errors are on the terminal.
    """
    if min(options.trainers, options.fits) < 1:
        raise SettingsError(
            "bench lifetimes, options", "numbers of at least 1", f"{options}", "Change the option."
        )
    rows = []
    table = compact(
        "after",
        "",
        "resident MB",
        "maps",
        "compiled",
        "s",
        title="lifetimes",
    )
    for of, run, n in (("trainers", trainers, options.trainers), ("fits", fits, options.fits)):
        for found in in_a_process(run, {"n": n}, {}):
            rows.append({"bench": "lifetimes", "of": of, **found})
            figures = found["resident"] / 1e6, found["maps"], found["compiled"], found["seconds"]
            table.add_row(f"{found['after']:,}", of, *(f"{figure:,.0f}" for figure in figures))
    (console or Console(highlight=False)).print(table)
    append(options.json, rows)
    return rows


def trainers(n: int) -> list[dict[str, Any]]:
    """Makes so many trainers of different graphs here, trains each a little and drops it; gives what was seen on the way."""
    return _watched(
        n,
        lambda number: _fit(_trainer(SMALLEST + number), SMALLEST + number),
    )


def fits(n: int) -> list[dict[str, Any]]:
    """Trains one trainer so many times here; gives what was seen on the way."""
    trainer = _trainer(SMALLEST)
    return _watched(n, lambda _: _fit(trainer, SMALLEST))


def _watched(
    n: int,
    work: Callable[[int], None],
) -> list[dict[str, Any]]:
    """Does some work for each number; looks at the process every now and then."""
    before = compilations()
    begin = time.perf_counter()
    seen = []
    looks = {
        1,
        *(n * look // LOOKS for look in range(1, LOOKS + 1)),
    }
    for number in range(n):
        work(number)
        if number + 1 in looks:
            _let_go()
            found = {
                "after": number + 1,
                "resident": resident_bytes(),
                "maps": memory_maps(),
            }
            seen.append(
                {
                    **found,
                    "compiled": compilations() - before,
                    "seconds": time.perf_counter() - begin,
                }
            )
    return seen


def _trainer(features: int) -> amp.Trainer:
    settings = Settings(
        max_active_keys=4, max_dispatch_size=1, min_update_interval=4, compile_ahead=False
    )
    return amp.Trainer(
        mlp((features, 8, 4), batch=BATCH),
        optax.sgd(0.1),
        settings=settings,
    )


def _fit(trainer: amp.Trainer, features: int) -> None:
    image = np.zeros((BATCH, features), np.float32)
    label = np.zeros(BATCH, np.int32)
    trainer.fit(
        [{"image": image, "label": label}] * 8,
        epochs=1,
        progress=False,
    )


def _let_go() -> None:
    """Collects what nobody holds, and gives memory that is free back to the system, where the C library can."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def memory_maps() -> int:
    """The process's memory maps; 0 where the system does not tell as Linux does."""
    path = Path("/proc/self/maps")
    if path.exists():
        return path.read_bytes().count(b"\n")
    return 0
