"""Progress on the screen: a bar for each part of a run, in a terminal or a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Reporter:
    """Shows how far a run is; silent if `show` is false.

    Args:
      show: Whether to show anything.
    """

    def __init__(self, show: bool):
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bars = Progress(*columns, transient=True) if show else None

    def __enter__(self) -> Reporter:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._bars is not None:
            self._bars.stop()

    @contextmanager
    def part(self, name: str, total: int) -> Iterator[Any]:
        """A part of the run, none where `total` is 0; gives a function that counts `n` more as done."""
        if self._bars is None or not total:
            yield lambda n=1: None
            return
        task = self._bars.add_task(name, total=total, note="")
        bars = self._bars
        try:
            yield lambda n=1: bars.advance(task, n)
        finally:
            bars.remove_task(task)

    def line(self, text: str) -> None:
        """A line that stays on the screen."""
        if self._bars is not None:
            self._bars.console.print(text, highlight=False, soft_wrap=True)
