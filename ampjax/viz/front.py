"""Throughput against epochs to a target, with lines of equal time: the cost of asynchrony and its gain (AMPNet, figure 5)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ampjax.errors import SettingsError
from ampjax.trace.trace import scale_time
from ampjax.utils.drawing.colours import SERIES, WHITE
from ampjax.utils.drawing.figure import new_figure, save

_MARKERS = "osD^vPX"
_N_LINES = 6


class Point(NamedTuple):
    """A run as a point of `front`.

    Args:
      label: The text beside the point, for example the value of `max_active_keys`.
      per_s: Training examples per second.
      epochs: Epochs to the target; infinite if it was not reached.
    """

    label: str
    per_s: float
    epochs: float


def front(
    series: Mapping[str, Sequence[Point | tuple[str, float, float]]],
    n_train: int,
    path: str | Path | None = None,
    *,
    joined: bool = True,
) -> Figure:
    """Draws settings as points: points further right train more examples a second, points further down need fewer epochs.

    Points on one dashed line take the same time to the target. A setting that did not reach the target is a hollow point at the upper edge.

    Args:
      series: By name, the points of a series, in the order in which they are joined. A point is `(label, per_s, epochs)`: the text beside it,
        training examples per second, and epochs to the target, infinite if it was not reached.
      n_train: Training examples in an epoch.
      path: A file to write the picture to: .png, .svg or .pdf.
      joined: Whether a line joins the points of a series.

    Returns:
      The figure.

    Raises:
      SettingsError: If there is no point, a rate is not a number above 0, or the file name ends in anything else.
    """
    lines = {}
    points = []
    for name, line in series.items():
        lines[name] = [Point(*point) for point in line]
        points += lines[name]
    if not points or any(not 0 < point.per_s < math.inf for point in points):
        raise SettingsError(
            "front", "points with rates above 0", f"{points}", "Leave out runs without a rate."
        )
    figure = new_figure(6.4, 4.4, layout="constrained")
    axes = figure.subplots()
    top = 1.25 * max(
        [point.epochs for point in points if math.isfinite(point.epochs)],
        default=10.0,
    )
    for (label, line), colour, marker in zip(
        lines.items(), cycle(SERIES), cycle(_MARKERS), strict=False
    ):
        _draw(
            axes,
            label,
            line,
            colour=colour,
            marker=marker,
            top=top,
            joined=joined,
        )
    fastest = max(point.per_s for point in points)
    axes.set_xlim(0, 1.12 * fastest)
    axes.set_ylim(0, 1.08 * top)
    _equal_times(axes, n_train)
    axes.set(xlabel="training examples per second", ylabel="epochs to the target")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    save(figure, path)
    return figure


def _draw(
    axes: Axes,
    label: str,
    line: Sequence[Point],
    *,
    colour: str,
    marker: str,
    top: float,
    joined: bool,
) -> None:
    places = [(point.per_s, min(point.epochs, top)) for point in line]
    if joined:
        axes.plot(
            *zip(*places, strict=True),
            color=colour,
            linewidth=1.0,
            alpha=0.6,
        )
    for reached, fill in ((True, colour), (False, "white")):
        chosen = []
        for place, point in zip(places, line, strict=True):
            if math.isfinite(point.epochs) is reached:
                chosen.append(place)
        if chosen:
            text = label if reached else f"{label}: not reached"
            xs, ys = zip(*chosen, strict=True)
            axes.plot(
                xs,
                ys,
                marker,
                color=colour,
                markerfacecolor=fill,
                markersize=6,
                label=text,
            )
    for place, point in zip(places, line, strict=True):
        axes.annotate(
            point.label,
            place,
            xytext=(5, 5),
            textcoords="offset points",
            size=8,
            color=colour,
        )


def _equal_times(axes: Axes, n_train: int) -> None:
    """Draws lines through the origin: `epochs / rate` is constant on each. Labels stand where a line leaves the picture."""
    width = axes.get_xlim()[1]
    height = axes.get_ylim()[1]
    slopes = np.tan(np.linspace(0, math.pi / 2, _N_LINES + 2)[1:-1]) * height / width
    for slope in slopes:
        seconds = _round(slope * n_train)
        slope = seconds / n_train
        if slope * width <= height:
            end = (width, slope * width)
        else:
            end = (height / slope, height)
        axes.plot(
            [0, end[0]],
            [0, end[1]],
            color="#BBBBBB",
            linewidth=0.8,
            linestyle=(0, (5, 4)),
            zorder=0,
        )
        value, unit = scale_time(1e9 * seconds)
        box = {"facecolor": WHITE, "edgecolor": "none", "pad": 0.6}
        at_edge = {
            "xytext": (-3, -3),
            "textcoords": "offset points",
            "ha": "right",
            "va": "top",
            "bbox": box,
        }
        axes.annotate(
            f"{value:g} {unit.replace('us', 'µs')}",
            end,
            size=7,
            color="#777777",
            zorder=0.5,
            **at_edge,
        )


def _round(seconds: float) -> float:
    return float(f"{seconds:.1g}")
