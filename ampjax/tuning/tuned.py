"""The result of tuning: settings for a trainer, and all choices as a table, a picture and data."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from ampjax.ir.graph import Graph
from ampjax.tuning.candidate import Candidate, plain_values, show_value
from ampjax.utils.text_tables import fill_table, html_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = 8
"""Choices of the front that a table shows without a trial, at most."""


@dataclass(frozen=True)
class Tuned:
    """The result of `amp.tune`.

    Args:
      candidates: All choices: first those that were tried, the best one first, then those on the front, then the others.
      graph: The graph of the best choice.
      metric: The validation metric.
      target: Its target, or None.
      spent_s: Seconds that tuning took.
      budget_s: Seconds that it was allowed to take.
      seed: The seed.
      per_instance: Training examples in an instance.
      n_train: Training instances.
    """

    candidates: Sequence[Candidate]
    graph: Graph
    metric: str
    target: float | None
    spent_s: float
    budget_s: float
    seed: int
    per_instance: float
    n_train: int

    @property
    def best(self) -> Candidate:
        """The best choice."""
        return self.candidates[0]

    @property
    def settings(self) -> dict[str, Any]:
        """Its settings: `amp.Trainer(tuned.graph, tx, **tuned.settings)`."""
        return dict(self.best.settings)

    @property
    def knobs(self) -> dict[str, Any]:
        """The arguments with which its graph was built; empty if a graph was given."""
        return dict(self.best.knobs)

    @property
    def is_reached(self) -> bool:
        """Tells whether the target was reached."""
        return self.best.tried is not None and self.best.tried.seconds_to_target is not None

    @property
    def front(self) -> list[Candidate]:
        """The choices that no other one beats in rate, freshness and updates, as simulated: the fastest first."""
        return sorted(
            (c for c in self.candidates if c.is_on_front and c.simulated),
            key=lambda c: -_rate(c),
        )

    @property
    def varied(self) -> tuple[str, ...]:
        """The settings and knobs that are not the same in all choices."""
        every = []
        for c in self.candidates:
            every.append({**plain_values(c.settings), **plain_values(c.knobs)})
        result = []
        for name in every[0]:
            if len({repr(values[name]) for values in every}) > 1:
                result.append(name)
        return tuple(result)

    def table(self) -> Table:
        """Makes a table of the tried choices, the best one first, and some others of the front; of choices with equal figures, one.

        Returns:
          A `rich` table.
        """
        return fill_table(*self._cells())

    def picture(self, path: str | Path | None = None) -> Figure:
        """Draws simulated staleness over throughput: all choices, the front, the choices that were tried, and the best one.

        Args:
          path: A file to write the picture to: .png, .svg or .pdf.

        Returns:
          The figure.

        Raises:
          SettingsError: If the file name ends in anything else.
        """
        from ampjax.tuning.front_picture import (
            draw_front,
        )  # imports matplotlib: only when a picture is wanted

        return draw_front(self.candidates, self.best, path)

    def epochs_picture(self, path: str | Path | None = None) -> Figure:
        """Draws measured epochs to the target over throughput, for all choices that were tried.

        Args:
          path: A file to write the picture to: .png, .svg or .pdf.

        Returns:
          The figure.

        Raises:
          SettingsError: If the file name ends in anything else, or nothing was measured.
        """
        from ampjax.tuning.front_picture import draw_epochs

        n_train = round(self.n_train * self.per_instance)
        return draw_epochs(self.candidates, self.best, n_train, path)

    def records(self) -> list[dict[str, Any]]:
        """Gives one dictionary for each choice, in order.

        Returns:
          The dictionaries.
        """
        label = {
            "metric": self.metric,
            "target": self.target,
            "seed": self.seed,
        }
        result = []
        for i, c in enumerate(self.candidates):
            result.append({**c.record(), **label, "is_best": i == 0})
        return result

    def save(self, path: str | Path) -> None:
        """Writes a JSON object for each choice to a file, a line each; folders are made.

        Args:
          path: The file; one that is there is replaced.

        Raises:
          OSError: If it can't be written.
        """
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(
            "".join(json.dumps(record) + "\n" for record in self.records()),
            encoding="utf-8",
        )

    def summary(self) -> str:
        """Describes the outcome in a sentence or two.

        Returns:
          The text.
        """
        n_tried = sum(c.tried is not None for c in self.candidates)
        n_simulated = sum(c.simulated is not None for c in self.candidates)
        counts = f"{len(self.candidates)} choices, {n_simulated} simulated, {len(self.front)} on the front, {n_tried} tried in {self.spent_s:.1f} s of {self.budget_s:g} s; seed {self.seed}."
        tried = self.best.tried
        if tried is None or self.target is None:
            return counts
        if tried.seconds_to_target is None:
            return f"{counts} The target {self.metric} {self.target:g} was not reached: the best was {tried.best:.4g} after {tried.seconds:.1f} s of training."
        return f"{counts} {self.metric} {self.target:g} after {tried.seconds_to_target:.2f} s of training."

    def __repr__(self) -> str:
        with io.StringIO() as text:
            console = Console(file=text, width=200, highlight=False)
            console.print(self.table())
            console.print(self.summary(), soft_wrap=True)
            return "\n".join(line.rstrip() for line in text.getvalue().splitlines())

    def _repr_html_(self) -> str:
        headers, rows = self._cells()
        return html_table(headers, rows, notes=[self.summary()])

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """The table's headers and rows."""
        names = self.varied
        tried = [c for c in self.candidates if c.tried is not None]
        seen = {c.simulated for c in tried}
        others: dict[Any, Candidate] = {}
        for c in self.front:
            if c.simulated not in seen:
                others.setdefault(c.simulated, c)
        untried = list(others.values())[:SHOWN]
        headers = [
            "",
            *(name.replace("_", "\n") for name in names),
            "simulated\n/s",
            "stale-\nness",
            "measured\n/s",
            "stale-\nness",
            f"best\n{self.metric}",
            "seconds\nto target",
        ]
        rows = []
        for c in [*tried, *untried]:
            values: Mapping[str, Any] = {**c.settings, **c.knobs}
            if c is self.best:
                mark = "chosen"
            elif c.tried:
                mark = "tried"
            else:
                mark = "front"
            rows.append(
                [
                    mark,
                    *(show_value(values[name]) for name in names),
                    *_simulated_cells(c),
                    *_tried_cells(c),
                ]
            )
        return headers, rows


def _rate(choice: Candidate) -> float:
    return choice.simulated.per_s if choice.simulated is not None else 0.0


def _simulated_cells(choice: Candidate) -> list[str]:
    figures = choice.simulated
    return ["", ""] if figures is None else [f"{figures.per_s:,.0f}", f"{figures.staleness:.1f}"]


def _tried_cells(choice: Candidate) -> list[str]:
    tried = choice.tried
    if tried is None:
        return [""] * 4
    seconds = "not reached" if tried.seconds_to_target is None else f"{tried.seconds_to_target:.3g}"
    return [f"{tried.per_s:,.0f}", f"{tried.staleness:.1f}", f"{tried.best:.4g}", seconds]
