"""Logs of updates: the instances whose gradients each update of each node contains, and the parameter version that each instance saw.

A file is JSON Lines: a first line that says what it is, then a line for each update, in the order in which they were issued.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ampjax.errors import DataError
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.decisions.parameter_changes import Update, updates_in
from ampjax.trace.instruments import Instrument
from ampjax.utils.bounded_reading import parse_json

HEADER = {"ampjax": "update log", "format": 1}
LONGEST_LINE = 1 << 28
"""Bytes of a line at most. An update of many gradients has a long one."""
_NUMBERS = ("version", "rows")
_COLUMNS = ("epoch", "instance", "seen", "staleness", "gradient_rows")

Gradients = Callable[[Dispatch], Sequence[tuple[str, np.ndarray, np.ndarray]]]
"""Gives for each node what a dispatch brings: the versions `[n]` that its messages saw, and their gradient rows `[n]`."""


@dataclass(frozen=True, eq=False)
class LoggedUpdate:
    """An update of a node, and the gradients in the update: one entry for each instance, epoch and version seen.

    Args:
      node: The node.
      version: The version of its parameters that the update makes; the first update makes version 1. Averaging replicas also makes a
        version, but is not logged as an update.
      rows: Gradient rows in all. These may be more than those of the entries, if some were accumulated before the log began, or before the
        snapshot from which the fit was resumed.
      epoch: `[n]` int64: the epoch of each entry, from 1.
      instance: `[n]` int64: the instance of each entry, by its position in the data set; if this is reshuffled, by its position in the epoch.
      seen: `[n]` int64: the version that the forward pass of each entry saw.
      gradient_rows: `[n]` int64: the number of gradient rows of each entry.
      dropped: Gradient rows that came since the update before, and were dropped as too stale (`drop_staler_than`).
    """

    node: str
    version: int
    rows: int
    epoch: np.ndarray
    instance: np.ndarray
    seen: np.ndarray
    gradient_rows: np.ndarray
    dropped: int = 0

    @property
    def staleness(self) -> np.ndarray:
        """`[n]` int64: how many versions were made between each entry's forward pass and this update.

        Statistics and budgets count until the gradient arrives. The numbers are the same, unless replicas were averaged while the gradient
        waited for this update.
        """
        return self.version - 1 - self.seen

    def __repr__(self) -> str:
        stalest = f", staleness at most {self.staleness.max()}" if len(self.seen) else ""
        dropped = f", {self.dropped} dropped before" if self.dropped else ""
        return f"LoggedUpdate({self.node!r}, version {self.version}, {self.rows} rows of {len(np.unique(self.instance))} instances{stalest}{dropped})"


class UpdateLog(Instrument):
    """Writes a log while a run goes on.

    Args:
      path: The file; one that is there is replaced.
      gradients: Tells what a dispatch brings, when it is decided: the scheduler's `contents.gradients`.
      epoch: Tells the epoch.
      versions: Of a run that goes on from a snapshot, the versions of nodes there: the file goes on behind their updates. None begins anew.

    Raises:
      DataError: If the file to go on with is no log.
      OSError: If it can't be written.
    """

    def __init__(
        self,
        path: str | Path,
        gradients: Gradients,
        epoch: Callable[[], int],
        versions: Mapping[str, int] | None = None,
    ):
        self._gradients = gradients
        self._epoch = epoch
        self._decided: dict[int, list[tuple[str, list[tuple[int, int, int]], list[int]]]] = {}
        self._held: dict[
            str, dict[tuple[int, int, int], int]
        ] = {}  # by node: (epoch, instance, version seen) to rows
        self._dropped: dict[str, int] = {}  # rows by node
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        if versions is None or not path.exists():
            lines = []
        else:
            lines = [*_lines_up_to(path, versions)]
        new = path.with_name(f"{path.name}.new")
        # Line by line, so that a run that is killed goes on behind the lines of its snapshot.
        self._file = new.open("w", buffering=1, encoding="utf-8")
        try:
            self._file.writelines(f"{json.dumps(line)}\n" for line in (HEADER, *lines))
            os.replace(new, path)
        except OSError:
            self._file.close()
            new.unlink()
            raise

    def __enter__(self) -> UpdateLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()

    def decided(self, dispatch: Dispatch) -> None:
        """Notes the gradients and updates of a dispatch."""
        brings = []
        for node, seen, rows in self._gradients(dispatch):
            epochs = [self._epoch()] * len(rows)
            keys = list(zip(epochs, dispatch.ids.tolist(), seen.tolist(), strict=True))
            brings.append((node, keys, rows.tolist()))
        if brings:
            self._decided[dispatch.number] = brings

    def after_kernels(self, dispatches: Sequence[Dispatch]) -> None:
        """Gradients of some dispatches are in their nodes' accumulators."""
        for dispatch in dispatches:
            for node, keys, rows in self._decided.pop(dispatch.number, ()):
                if node in dispatch.dropped:
                    self._dropped[node] = self._dropped.get(node, 0) + sum(rows)
                    continue
                held = self._held.setdefault(node, {})
                for key, n in zip(keys, rows, strict=True):
                    held[key] = held.get(key, 0) + n

    def after_changes(self, dispatches: Sequence[Dispatch]) -> None:
        """Some nodes have been updated."""
        for dispatch in dispatches:
            for change in dispatch.changes:
                for update in updates_in(change):
                    self._write(update)

    def abandoned(self, dispatches: Sequence[Dispatch]) -> None:
        """Notes the held-back updates that were made when the run was interrupted."""
        self.after_changes(dispatches)

    def _write(self, update: Update) -> None:
        held = {}
        for key, rows in self._held.pop(update.node, {}).items():
            if rows:
                held[key] = rows
        if held:
            epoch, instance, seen = (list(column) for column in zip(*held, strict=True))
        else:
            epoch = []
            instance = []
            seen = []
        staleness = [update.version - 1 - version for version in seen]
        columns = dict(
            zip(
                _COLUMNS,
                (epoch, instance, seen, staleness, list(held.values())),
                strict=True,
            )
        )
        dropped = self._dropped.pop(update.node, 0)
        line = {
            "node": update.node,
            "version": update.version,
            "rows": update.count,
            "dropped": dropped,
            **columns,
        }
        self._file.write(f"{json.dumps(line)}\n")


def read_update_log(path: str | Path) -> list[LoggedUpdate]:
    """Reads a log of updates that `Trainer.fit(..., update_log=path)` has written. An incomplete last line of a killed run is left out.

    Args:
      path: The file.

    Returns:
      The updates, in the order in which they were issued.

    Raises:
      DataError: If the file is no such log, or is damaged.
      OSError: If it can't be read.
    """
    return [
        LoggedUpdate(
            line["node"],
            *(line[name] for name in _NUMBERS),
            *(np.array(line[name], np.int64) for name in _COLUMNS if name != "staleness"),
            dropped=line.get("dropped", 0),
        )
        for line in _lines(Path(path))
    ]


def _lines_up_to(
    path: Path,
    versions: Mapping[str, int],
) -> Iterator[dict[str, Any]]:
    """The lines of updates that had been made when nodes had some versions."""
    return (line for line in _lines(path) if line["version"] <= versions.get(line["node"], -1))


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log after the first.

    Raises:
      DataError: If one of them is damaged.
    """
    with path.open("rb") as file:
        for number in range(1 << 62):
            text = file.readline(LONGEST_LINE)
            if number and not text.endswith(b"\n"):
                return
            line: Any = text[:40]
            try:
                line = parse_json(text)
                fits = line == HEADER if number == 0 else _fits(line)
            except ValueError:
                fits = False
            if not fits:
                what = (
                    f"an update: node, {', '.join(_NUMBERS + _COLUMNS)}" if number else f"{HEADER}"
                )
                fix = "Pass a file that `fit(..., update_log=...)` has written."
                raise DataError(
                    f"update log `{path}`, line {number + 1}", what, f"{line!r:.60}", fix
                )
            if number:
                yield line


def _fits(line: Any) -> bool:
    """Whether a line is an update."""
    if not isinstance(line, dict) or not isinstance(line.get("node"), str):
        return False
    columns = [line.get(name) for name in _COLUMNS]
    numbers = [
        *(line.get(name) for name in _NUMBERS),
        line.get("dropped", 0),
    ]
    if not all(
        isinstance(column, list) and len(column) == len(columns[0] or ()) for column in columns
    ):
        return False
    numbers += [number for column in columns for number in column or ()]
    return all(type(number) is int and abs(number) < 1 << 62 for number in numbers)
