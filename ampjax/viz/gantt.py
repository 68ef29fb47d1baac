"""Gantt charts: which worker did what when, as in AMPNet's figure 1."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.textpath import TextToPath

from ampjax.engine.records import Slice
from ampjax.engine.trace import in_lanes, scaled
from ampjax.errors import SettingsError
from ampjax.viz.colours import SLICES
from ampjax.viz.figure import new_figure, save

_WIDTH, _LEFT, _RIGHT, _BELOW = 12.0, 1.0, 0.2, 0.9
"""Inches: the figure's width and its margins."""

_TEXT_SIZES = (8.0, 6.5)


def gantt(
    events: Iterable[Slice], path: str | Path | None = None, *, title: str | None = None, labels: bool = True
) -> Figure:
    """Draws a row per worker and a box per slice: forward orange, backward blue, update yellow.

    Slices of one worker that overlap in time stand below each other in its row.

    Args:
      events: The slices, for example a `Trace`.
      path: A file to write the picture to: .png, .svg or .pdf.
      title: Above the chart.
      labels: Whether instances are written into the boxes where they fit; `3+12` is instance 3 and 12 others.

    Returns:
      The figure; its x axis starts at the first slice.

    Raises:
      SettingsError: If the file name ends in anything else, or there are no slices.
    """
    slices = list(events)
    if not slices:
        raise SettingsError("gantt", "at least one slice", "none", "Record a run with a trace first.")
    workers = {worker: row for row, worker in enumerate(sorted({s.worker for s in slices}))}
    start = min(s.start_ns for s in slices)
    span = max(max(s.end_ns for s in slices) - start, 1)
    in_unit, unit = scaled(span)
    per_unit = span / in_unit
    top = 0.5 if title else 0.15
    row = max(min(0.5, 10 / len(workers)), 0.1)  # a thousand workers still make a picture
    height = top + row * len(workers) + _BELOW
    figure = new_figure(_WIDTH, height)
    axes = figure.add_axes(
        (_LEFT / _WIDTH, _BELOW / height, 1 - (_LEFT + _RIGHT) / _WIDTH, row * len(workers) / height)
    )
    axes.set(xlim=(0, span / per_unit), ylim=(len(workers), 0), xlabel=f"time [{unit.replace('us', 'µs')}]")
    shown = list(workers)[:: max(1, round(0.17 / row))]
    axes.set_yticks(
        [workers[w] + 0.5 for w in shown], [f"worker {w}" for w in shown], fontsize=min(10.0, max(60 * row, 7.5))
    )
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    for line in range(1, len(workers)):
        axes.axhline(line, color="#DDDDDD", linewidth=0.6, zorder=0)
    boxes = [
        (s, (s.start_ns - start) / per_unit, (s.end_ns - start) / per_unit, *place)
        for s, place in _lanes(slices, workers)
    ]
    _boxes(axes, boxes)
    if labels:
        _labels(axes, boxes, row * 72, named=_n_nodes(slices) > len(workers))
    kinds = [kind for kind in SLICES if any(s.kind == kind for s in slices)]
    handles = [Patch(facecolor=SLICES[kind][0], edgecolor="#333333", linewidth=0.5, label=kind) for kind in kinds]
    figure.legend(handles=handles, loc="lower center", ncols=len(kinds), frameon=False, fontsize=9)
    if title:
        figure.suptitle(title, y=1 - 0.12 / height, va="top", fontsize=11)
    save(figure, path)
    return figure


Box = tuple[Slice, float, float, float, float]
"""A slice and where it is drawn: left and right in the axis' unit, top and bottom in rows."""


def _lanes(slices: list[Slice], workers: dict[int, int]) -> list[tuple[Slice, tuple[float, float]]]:
    """The top and bottom of each slice: slices that overlap get lanes of their own, all of one height in a worker's row."""
    chosen = in_lanes(slices)
    lanes: dict[int, int] = {}
    for s, lane in chosen:
        lanes[s.worker] = max(lanes.get(s.worker, 1), lane + 1)
    placed = []
    for s, lane in chosen:
        height = 0.84 / lanes[s.worker]
        top = workers[s.worker] + 0.08 + lane * height
        placed.append((s, (top, top + height)))
    return placed


def _boxes(axes: Axes, boxes: list[Box]) -> None:
    """A collection per kind: thousands of boxes draw fast. Thin boxes get no outline, which would hide their colour."""
    points = _points_per_unit(axes)
    for kind, (fill, _) in SLICES.items():
        ours = [b for b in boxes if b[0].kind == kind]
        if ours:
            corners = [[(x0, y0), (x1, y0), (x1, y1), (x0, y1)] for _, x0, x1, y0, y1 in ours]
            lines = [min(0.5, 0.08 * (x1 - x0) * points) for _, x0, x1, _, _ in ours]
            axes.add_collection(
                PolyCollection(corners, facecolors=fill, edgecolors="#333333", linewidths=lines, label=kind),
                autolim=False,
            )


def _points_per_unit(axes: Axes) -> float:
    return 72 * (_WIDTH - _LEFT - _RIGHT) / axes.get_xlim()[1]


def _labels(axes: Axes, boxes: list[Box], row: float, named: bool) -> None:
    points = _points_per_unit(axes)
    for s, x0, x1, y0, y1 in boxes:
        width, height = (x1 - x0) * points - 3, (y1 - y0) * row - 3
        fit = _fitting(s, width, height, named) if width > 3 else None
        if fit is not None:
            text, size = fit
            x, y = (x0 + x1) / 2, (y0 + y1) / 2
            axes.text(
                x,
                y,
                text,
                size=size,
                color=SLICES[s.kind][1],
                ha="center",
                va="center",
                clip_on=True,
                linespacing=1.05,
                parse_math=False,
            )


def _fitting(s: Slice, width: float, height: float, named: bool) -> tuple[str, float] | None:
    """The most telling text that fits into a box: all instances, else the first and how many more."""
    ids = [str(i) for i in s.instances[:40]]
    short = f"{ids[0]}+{len(s.instances) - 1}" if len(s.instances) > 1 else "".join(ids)
    choices = [",".join(ids)] if len(s.instances) <= 40 else []
    choices += [short]
    if named:
        choices = [f"{s.node}\n{text}" if text else s.node for text in choices] + choices
    for text in choices:
        for size in _TEXT_SIZES:
            lines = text.split("\n")
            if text and len(lines) * size * 1.15 <= height and max(_measure(line, size) for line in lines) <= width:
                return text, size
    return None


def _n_nodes(slices: list[Slice]) -> int:
    return len({(s.worker, s.node) for s in slices})


@lru_cache(maxsize=8192)
def _measure(text: str, size: float) -> float:
    return TextToPath().get_text_width_height_descent(
        text.replace("$", "S"), FontProperties(family="DejaVu Sans", size=size), False
    )[0]
