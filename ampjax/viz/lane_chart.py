"""Lanes over time, under the rows that `jax.vmap` computes for the same elements."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from ampjax.errors import SettingsError
from ampjax.lanes.lane_report import LaneReport
from ampjax.utils.drawing.colours import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, WHITE
from ampjax.utils.drawing.figure import new_figure, save

_COLOURS = (BLUE, ORANGE, GREEN, SKY, VERMILION, PURPLE)
_WASTE = "#DDDDDD"
_WIDTH = 9.0
_LEFT = 0.75
_RIGHT = 0.25
_HEAD = 0.34
_BELOW = 0.85
"""Inches: the picture, its margins, and the room for a name above each chart."""


def lanes(
    report: LaneReport,
    path: str | Path | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """Draws the counts of `amp.vmap(function).explain`: a bar for each element, above under `jax.vmap`, below in its lane.

    Both charts have one scale in both directions, so areas are rows computed. The coloured part of an element's bar is the trips of its own loops, drawn at the bar's
    beginning; grey is computed for nothing: under `jax.vmap` until the last element has ended, in lanes until the next look, or because no element is left.

    Args:
      report: The counts.
      path: A file to write the picture to: .png, .svg or .pdf.
      title: Above both charts.

    Returns:
      The figure.

    Raises:
      SettingsError: If no element makes a trip of a loop, or the file name ends in anything else.
    """
    n = len(report.trips)
    if not report.trips.any():
        fix = "Give `explain` elements whose loops run."
        raise SettingsError("lanes", "an element with a trip of a loop", "none", fix)
    of_vmap = report.rows_of_vmap // n
    of_lanes = report.rows_of_lanes // report.lanes
    row = min(0.22, 6 / (n + report.lanes))
    top = 0.45 if title else 0.1
    height = top + row * (n + report.lanes) + 2 * _HEAD + _HEAD + _BELOW
    figure = new_figure(_WIDTH, height)
    numbers = np.arange(n)
    starts = np.zeros(n)
    y = top
    for name, length, n_rows, rows, begin in (
        ("jax.vmap, a row for each element", of_vmap, n, numbers, starts),
        (f"{report.lanes:,} lanes", of_lanes, report.lanes, report.lane, report.start),
    ):
        y += _HEAD
        box = (
            _LEFT / _WIDTH,
            1 - (y + row * n_rows) / height,
            1 - (_LEFT + _RIGHT) / _WIDTH,
            row * n_rows / height,
        )
        axes = figure.add_axes(box)
        axes.set(
            xlim=(0, max(of_vmap, of_lanes)),
            ylim=(n_rows, 0),
        )
        _draw(axes, rows, begin, report.trips, (length, n_rows), row)
        _dress(axes, name, length * n_rows, report)
        _number_rows(axes, n_rows, row)
        y += row * n_rows + _HEAD
    for axes, kind in zip(figure.axes, ("element", "lane"), strict=True):
        axes.set_ylabel(kind)
        axes.yaxis.set_label_coords(-0.05, 0.5)
    figure.axes[1].set_xlabel("trips of loops that each row computes")
    _legend(figure)
    if title:
        figure.suptitle(title, y=1 - 0.1 / height, va="top", fontsize=11)
    save(figure, path)
    return figure


def _draw(
    axes: Axes,
    rows: np.ndarray,
    starts: np.ndarray,
    trips: np.ndarray,
    size: tuple[int, int],
    height: float,
) -> None:
    """A chart's bars on grey ground.

    Args:
      axes: The axes.
      rows: By element its row.
      starts: By element where its bar begins.
      trips: By element how long it is.
      size: How far the ground goes, and over how many rows.
      height: Of a row, in inches.
    """
    length, n_rows = size
    axes.add_collection(
        PolyCollection([_corners(0, length, 0, n_rows)], facecolors=_WASTE, label="waste")
    )
    bars = []
    colours = []
    for element in np.flatnonzero(trips):
        row = rows[element]
        end = starts[element] + trips[element]
        bars.append(_corners(starts[element], end, row, row + 1))
        colours.append(_COLOURS[element % len(_COLOURS)])
    axes.add_collection(
        PolyCollection(
            bars,
            facecolors=colours,
            edgecolors=WHITE,
            linewidths=0.8 if height > 0.06 else 0.0,
            label="elements",
        )
    )


def _corners(
    left: float,
    right: float,
    top: float,
    bottom: float,
) -> list[tuple[float, float]]:
    return [
        (left, top),
        (right, top),
        (right, bottom),
        (left, bottom),
    ]


def _dress(
    axes: Axes,
    name: str,
    n_computed: int,
    report: LaneReport,
) -> None:
    """A chart's name with its figures, and its axes."""
    useful = int(report.trips.sum()) / n_computed
    axes.set_title(
        f"{name}: {n_computed:,} rows computed, {useful:.0%} of them useful",
        loc="left",
        fontsize=10,
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right", "left"]].set_visible(False)


def _number_rows(axes: Axes, n_rows: int, height: float) -> None:
    """Numbers beside as many rows as there is room for."""
    steps = [n * 10**k for k in range(10) for n in (1, 2, 5)]
    step = next(step for step in steps if step * height >= 0.2)
    shown = range(0, n_rows, step)
    axes.set_yticks(
        [row + 0.5 for row in shown],
        [f"{row}" for row in shown],
        fontsize=8,
    )
    axes.tick_params(axis="y", length=0)


def _legend(figure: Figure) -> None:
    handles = [
        Patch(
            facecolor=_COLOURS[0],
            label="trips of an element's own loops, a colour for each element",
        ),
        Patch(facecolor=_WASTE, label="computed for nothing"),
    ]
    figure.legend(handles=handles, loc="lower center", ncols=2, frameon=False, fontsize=9)
