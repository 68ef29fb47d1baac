"""Progress: a bar for each part of a run in a terminal or a notebook, a line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import rich
from rich.console import Console
from rich.errors import LiveError
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

FIRST_S = 5.0
MOST_S = 120.0
"""Seconds to the first line of a part where there is no terminal. Each next one takes twice as long, up to `MOST_S`: few lines, however long the part."""

_RATE_S = 10.0
"""Seconds over which a bar measures how fast it moves."""

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

    def __init__(
        self,
        show: bool,
        console: Console | None = None,
        now: Callable[[], float] = time.monotonic,
    ):
        self._now = now
        self._console = (console or rich.get_console()) if show else None
        self._bars = None
        if self._console is not None and (self._console.is_terminal or self._console.is_jupyter):
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("left"),
                _TimeLeft(),
            )
            self._bars = Progress(
                *columns, console=self._console, transient=True, speed_estimate_period=_RATE_S
            )

    def __enter__(self) -> Reporter:
        if self._bars is not None:
            try:
                self._bars.start()
            except LiveError:  # in a callback of a fit that shows its own bars: before rich 14.1 there is room for one display
                self._bars = self._console = None
        return self

    def __exit__(self, *error: Any) -> None:
        if self._bars is not None:
            self._bars.stop()

    @contextmanager
    def part(
        self,
        name: str,
        total: int,
        compiled: Callable[[], int] = lambda: 0,
    ) -> Iterator[Any]:
        """Shows a part of the run.

        Args:
          name: What it is called.
          total: How much there is to do; a part of 0 is not shown.
          compiled: Counts compilations. Where there were some, the rate says nothing of the time that is left, and none is shown.

        Returns:
          A context that gives a function `advance(n)`: `n` more is done.
        """
        if self._console is None or not total:
            yield lambda n=1: None
        elif self._bars is None:
            yield self._lines(name, total, compiled)
        else:
            task = self._bars.add_task(name, total=total)
            try:
                yield self._bar(self._bars, task, compiled)
            finally:
                self._bars.remove_task(task)

    def line(self, text: str) -> None:
        """A line that stays on the screen."""
        if self._console is not None:
            self._console.print(text, highlight=False, soft_wrap=True)

    def _bar(
        self, bars: Progress, task: TaskID, compiled: Callable[[], int]
    ) -> Callable[..., None]:
        """Moves a bar, which shows the time left only when nothing has been compiled for the span over which the rate is measured."""
        known = compiled()
        steady_at = self._now()

        def advance(n: int = 1) -> None:
            nonlocal known, steady_at
            if compiled() != known:
                known = compiled()
                steady_at = self._now() + _RATE_S
            bars.update(task, advance=n, is_steady=self._now() >= steady_at)

        return advance

    def _lines(
        self,
        name: str,
        total: int,
        compiled: Callable[[], int],
    ) -> Callable[..., None]:
        """Counts steps, and prints a line every few seconds."""
        told_at = self._now()
        n_told = 0
        done = 0
        wait = FIRST_S
        known = compiled()
        due = told_at + wait

        def advance(n: int = 1) -> None:
            nonlocal told_at, n_told, done, wait, due, known
            done += n
            now = self._now()
            if now < due or not 0 < done < total:
                return
            # By what was done since the last line: what is slow at first stays so for a while only.
            if compiled() == known:
                left_s = (now - told_at) / (done - n_told) * (total - done)
            else:
                left_s = None
            self.line(_so_far(name, done, total, left_s))
            wait = min(2 * wait, MOST_S)
            due = now + wait
            told_at = now
            n_told = done
            known = compiled()

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
    def part(
        self,
        name: str,
        total: int,
        compiled: Callable[[], int] = lambda: 0,
    ) -> Iterator[Any]:
        """Adds a run to the part.

        Args:
          name: Not shown.
          total: Not shown.
          compiled: Not needed.

        Returns:
          A context that gives the part's `advance`.
        """
        del name, total, compiled
        yield self._advance


SILENT = Reporter(False)
"""Shows nothing."""


class _TimeLeft(TimeRemainingColumn):
    """The time that is left; none while kernels are compiled."""

    def render(self, task: Task) -> Text:
        """Shows the rate, if the rate is steady."""
        if task.fields.get("is_steady", True):
            return super().render(task)
        return Text("-:--:--", "progress.remaining")


def _so_far(
    name: str,
    done: int,
    total: int,
    left_s: float | None,
) -> str:
    if left_s is None:
        return f"{name}: {done} of {total}, compiling"
    if name == COMPILING:
        return f"compiling {done} of {total} kernels, about {left_s:.0f} s left"
    if name == AS_NEEDED:
        return f"compiling {done} of up to {total} kernels, at most {left_s:.0f} s left"
    return f"{name}: {done} of {total}, about {left_s:.0f} s left"
