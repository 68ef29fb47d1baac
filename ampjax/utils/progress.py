"""Progress: a bar for each part of a run in a terminal or a notebook, now and then a line elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import rich
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

FIRST_S, MOST_S = 5.0, 120.0
"""Seconds to the first line of a part where there is no terminal. Each next one takes twice as long, up to `MOST_S`: few lines, however long the part."""

COMPILING = "compiling"
"""A part of a run that is not counted in instances: all kernels are compiled."""

AS_NEEDED = "compiling as needed"
"""Another: kernels are compiled when they are first needed, which some may never be."""


class Reporter:
    """Shows how far a run is; silent if `show` is false.

    Args:
      show: Whether to show anything.
      console: Where to; by default rich's, standard output.
      now: Seconds on a clock that goes forward.
    """

    def __init__(self, show: bool, console: Console | None = None, now: Callable[[], float] = time.monotonic):
        self._now, self._console, self._bars = now, (console or rich.get_console()) if show else None, None
        if self._console is not None and (self._console.is_terminal or self._console.is_jupyter):
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self._bars = Progress(*columns, console=self._console, transient=True)

    def __enter__(self) -> Reporter:
        if self._bars is not None:
            self._bars.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._bars is not None:
            self._bars.stop()

    @contextmanager
    def part(self, name: str, total: int) -> Iterator[Any]:
        """Shows a part of the run.

        Args:
          name: What it is called.
          total: How much there is to do; a part of 0 is not shown.

        Returns:
          A context that gives a function `advance(n)`: `n` more is done.
        """
        if self._console is None or not total:
            yield lambda n=1: None
        elif self._bars is None:
            yield self._lines(name, total)
        else:
            bars, task = self._bars, self._bars.add_task(name, total=total)
            try:
                yield lambda n=1: bars.advance(task, n)
            finally:
                bars.remove_task(task)

    def line(self, text: str) -> None:
        """A line that stays on the screen."""
        if self._console is not None:
            self._console.print(text, highlight=False, soft_wrap=True)

    def _lines(self, name: str, total: int) -> Callable[..., None]:
        """Counts what is done, and tells of it in a line now and then."""
        told_at, told, done, wait = self._now(), 0, 0, FIRST_S
        due = told_at + wait

        def advance(n: int = 1) -> None:
            nonlocal told_at, told, done, wait, due
            done += n
            now = self._now()
            if now < due or not 0 < done < total:
                return
            # By what was done since the last line: what is slow at first, such as a pass whose kernels are compiled, stays so for a while only.
            self.line(_so_far(name, done, total, (now - told_at) / (done - told) * (total - done)))
            wait = min(2 * wait, MOST_S)
            due, told_at, told = now + wait, now, done

        return advance


class OnePart(Reporter):
    """Shows several runs as one part of another reporter.

    Args:
      advance: Shows that more of that part is done.
    """

    def __init__(self, advance: Callable[..., Any]):
        super().__init__(False)
        self._advance = advance

    @contextmanager
    def part(self, name: str, total: int) -> Iterator[Any]:
        """Adds a run to the part.

        Args:
          name: Not shown.
          total: Not shown.

        Returns:
          A context that gives the part's `advance`.
        """
        del name, total
        yield self._advance


SILENT = Reporter(False)
"""Shows nothing."""


def _so_far(name: str, done: int, total: int, left_s: float) -> str:
    if name == COMPILING:
        return f"compiling {done} of {total} kernels, about {left_s:.0f} s left"
    if name == AS_NEEDED:
        return f"compiling {done} of at most {total} kernels, about {left_s:.0f} s left at most"
    return f"{name}: {done} of {total}, about {left_s:.0f} s left"
