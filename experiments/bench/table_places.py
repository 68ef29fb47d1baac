"""Times of a table by its place: in memory, in mapped files, shared in /dev/shm, at a server process; and the hits of a cache of rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import optax
from rich.console import Console

from ampjax.errors import SettingsError
from ampjax.sparse import Table, TableSharing
from ampjax.sparse.servers.processes import ServerProcesses
from ampjax.utils.text_tables import compact
from experiments.common import cache_compilations
from experiments.records import append

BOUNDS = (1, 4, 8, 16, 64)
"""Updates that a row in a cache may miss."""


@dataclass(frozen=True, kw_only=True)
class TablePlacesBench:
    """Milliseconds of a pull and a push of one batch's rows; and the share of rows that workers would find in a cache.

    Args:
      rows: Rows of the table.
      features: Numbers in a row.
      ids: Ids of a batch.
      power: The exponent of the power law of ids; 0 for equal shares.
      steps: Steps that are timed, after ten that are not.
      workers: Workers whose updates take turns, for the cache.
      shared_folder: Where the shared table is.
      folder: Where the mapped files are; None for the system's temporary folder.
      seed: Of the ids.
      json: File to which a JSON object for each place is appended.
    """

    rows: int = 1_000_000
    features: int = 64
    ids: int = 20_480
    power: float = 1.05
    steps: int = 30
    workers: int = 2
    shared_folder: Path = Path("/dev/shm")
    folder: Path | None = None
    seed: int = 0
    json: Path | None = None


class _Zeros:
    """Rows of zeros, of which only a block is in memory at a time."""

    def __init__(self, rows: int, features: int):
        self.shape = (rows, features)
        self.dtype = np.dtype(np.float32)

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.zeros((rows.stop - rows.start, self.shape[1]), self.dtype)


def main(
    options: TablePlacesBench,
    console: Console | None = None,
) -> list[dict[str, Any]]:
    """Prints two tables; gives a row for each place, and one for the cache.

    Raises:
      SettingsError: If a count is below 1.
    """
    counts = [options.rows, options.features, options.ids, options.steps, options.workers]
    if min(counts) < 1:
        raise SettingsError(
            "bench table-places, options",
            "numbers of at least 1",
            f"{options}",
            "Change the option.",
        )
    cache_compilations()
    console = console or Console(highlight=False)
    draw = _ids_of(options)
    found = []
    for place in ("memory", "mapped files", "shared", "server"):
        with _table_at(place, options) as table:
            found.append({"bench": "table-places", "place": place, **_times(table, draw, options)})
    title = (
        f"{options.rows:,} x {options.features} rows, {options.ids:,} ids, power {options.power}"
    )
    text = compact("place", "rows", "pull, ms", "push, ms", title=title)
    for row in found:
        text.add_row(
            row["place"],
            f"{row['rows']:,}",
            f"{row['pull_ms']:.1f}",
            f"{row['push_ms']:.1f}",
        )
    console.print(text)
    hits = _hits(draw, options)
    title = f"share of pulled rows in the cache of one of {options.workers} workers"
    text = compact(*[f"{bound} updates" for bound in hits], title=title)
    text.add_row(*[f"{share:.2f}" for share in hits.values()])
    console.print(text)
    found.append({"bench": "table-places", "place": "cache", "hits": hits})
    append(options.json, found)
    return found


@contextmanager
def _table_at(place: str, options: TablePlacesBench) -> Iterator[Table]:
    """A table, which goes at the end of the `with`."""
    values = _Zeros(options.rows, options.features)
    tx = optax.adagrad(0.1)
    parent = options.shared_folder if place == "shared" else options.folder
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        if place == "memory":
            yield Table(values, tx)
        elif place == "mapped files":
            yield Table(values, tx, folder=folder)
        elif place == "shared":
            yield Table(values, tx, folder=folder, sharing=TableSharing("lock_free"))
        else:
            with ServerProcesses(1) as servers:
                yield Table(values, tx, processes=servers)


def _times(
    table: Table,
    draw: Callable[[], np.ndarray],
    options: TablePlacesBench,
) -> dict[str, float]:
    """The times of a batch's pull and push, medians over steps."""
    pulls = []
    pushes = []
    n_rows = []
    for step in range(10 + options.steps):
        ids = np.unique(draw())
        grads = np.full((len(ids), options.features), 1e-3, np.float32)
        start = perf_counter()
        table.pull(ids)
        middle = perf_counter()
        table.push(ids, grads)
        end = perf_counter()
        if step >= 10:
            pulls.append(1e3 * (middle - start))
            pushes.append(1e3 * (end - middle))
            n_rows.append(len(ids))
    return {
        "rows": round(median(n_rows)),
        "pull_ms": median(pulls),
        "push_ms": median(pushes),
    }


def _hits(draw: Callable[[], np.ndarray], options: TablePlacesBench) -> dict[int, float]:
    """By bound on a row's age in updates, the share of rows that a worker with an endless cache need not pull.

    Workers take turns; each turn is an update of the rows that it reads, so that a row in the cache misses all updates since it was pulled.
    """
    result = {}
    for bound in BOUNDS:
        pulled = np.full((options.workers, options.rows), -bound - 1)
        hits = []
        for update in range(2 * bound + 4 * options.workers):
            seen = pulled[update % options.workers]
            ids = np.unique(draw())
            is_there = update - seen[ids] <= bound
            seen[ids[~is_there]] = update
            if update >= bound + options.workers:
                hits.append(is_there.mean())
        result[bound] = float(np.mean(hits))
    return result


def _ids_of(options: TablePlacesBench) -> Callable[[], np.ndarray]:
    """Draws a batch's ids: a power law over rows in any order."""
    rng = np.random.default_rng(options.seed)
    shares = np.cumsum(np.arange(1, options.rows + 1, dtype=float) ** -options.power)
    order = rng.permutation(options.rows)

    def draw() -> np.ndarray:
        places = np.searchsorted(shares, shares[-1] * rng.random(options.ids))
        return order[np.minimum(places, options.rows - 1)]

    return draw
