"""The memory that training needs beside its table, each measurement in a process of its own. Linux only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

from ampjax.nn import NgramTable
from experiments.engram.letter_model import LetterModel
from experiments.engram.table_ways import make_way

STATUS = Path("/proc/self/status")
SECONDS_BETWEEN = 0.01


@dataclass
class MemoryPeak:
    """The most memory of the process that is in no file, looked at a hundred times a second, between `with` and its end."""

    n_bytes: int = 0
    _end: Event = field(default_factory=Event)

    def __enter__(self) -> MemoryPeak:
        self._thread = Thread(target=self._look, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._end.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._end.wait(SECONDS_BETWEEN):
            self.n_bytes = max(self.n_bytes, anonymous_bytes())


def anonymous_bytes() -> int:
    """The process's memory in RAM that is in no file."""
    for line in STATUS.read_text().splitlines():
        if line.startswith("RssAnon:"):
            return 1024 * int(line.split()[1])
    return 0


def peaks_of_training(
    kind: str,
    sizes: dict[str, Any],
    memory: dict[str, Any],
    rows: int,
    steps: int,
    folder: str,
) -> dict[str, int]:
    """Trains for some steps here; gives the peaks of memory in bytes: up to the first step, and of the other steps.

    Args:
      kind: As `make_way` takes it.
      sizes: Of `LetterModel`.
      memory: Of `NgramTable`.
      rows: Of a batch.
      steps: How many, two at least.
      folder: For files.
    """

    def make_model(memory: NgramTable | None) -> LetterModel:
        return LetterModel(**sizes, memory=memory)

    rng = np.random.default_rng(0)
    shape = (rows, sizes["context"] + 1)

    def take_step() -> None:
        letters = rng.integers(0, sizes["n_letters"], shape, dtype=np.int32)
        way.run(way.model.batch(letters))

    with MemoryPeak() as begin:
        way = make_way(
            kind,
            make_model,
            NgramTable(**memory),
            (1e-3, 0.1),
            0,
            Path(folder),
        )
        take_step()
    with MemoryPeak() as training:
        for _ in range(steps - 1):
            take_step()
    return {"peak_begin": begin.n_bytes, "peak_training": training.n_bytes}
