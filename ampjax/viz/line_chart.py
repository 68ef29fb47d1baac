"""Curves: one quantity against another for several things, on plain or on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatter, NullLocator

from ampjax.errors import SettingsError
from ampjax.utils.drawing.colours import SERIES
from ampjax.utils.drawing.figure import new_figure, save

_MARKERS = "osD^vPX"

Points = Sequence[tuple[float, float]]
"""Places `(x, y)`, from left to right."""


def curves(
    series: Mapping[str, Points],
    path: str | Path | None = None,
    *,
    x: str,
    y: str,
    guides: Mapping[str, Points] | None = None,
    log: bool = False,
) -> Figure:
    """Draws a line with markers for each series, and dashed guides for comparison.

    Args:
      series: The points of each.
      path: A file to write the picture to: .png, .svg or .pdf.
      x: The x axis' label, with its unit.
      y: The y axis' label, with its unit.
      guides: Lines without markers, for example an ideal or a bound.
      log: Whether both axes are logarithmic, x to base 2.

    Returns:
      The figure.

    Raises:
      SettingsError: If there is no point, a value is not finite (on logarithmic axes: not above 0), or the file name ends in anything else.
    """
    guides = guides or {}
    _check(series, guides, log)
    figure = new_figure(6.8, 4.4, layout="constrained")
    axes = figure.subplots()
    for label, line in guides.items():
        dashed = {
            "color": "#333333",
            "linewidth": 1.3,
            "linestyle": (0, (4, 3)),
            "zorder": 3,
        }
        axes.plot(
            *zip(*line, strict=True),
            label=label,
            **dashed,
        )
    for (label, line), colour, marker in zip(
        series.items(), cycle(SERIES), cycle(_MARKERS), strict=False
    ):
        axes.plot(
            *zip(*line, strict=True),
            color=colour,
            marker=marker,
            markersize=5,
            linewidth=1.4,
            label=label,
        )
    if log:
        _logarithmic(
            axes,
            sorted({point[0] for line in series.values() for point in line}),
        )
    else:
        axes.set_ylim(
            0,
            1.08 * max(point[1] for line in (*series.values(), *guides.values()) for point in line),
        )
    axes.set(xlabel=x, ylabel=y)
    axes.grid(color="#E8E8E8", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    save(figure, path)
    return figure


def _check(
    series: Mapping[str, Points],
    guides: Mapping[str, Points],
    log: bool,
) -> None:
    least = 0.0 if log else -math.inf
    values = []
    for line in (*series.values(), *guides.values()):
        for point in line:
            values.extend(point)
    if not values or not all(least < value < math.inf for value in values):
        expected = "finite numbers above 0" if log else "finite numbers"
        raise SettingsError(
            "curves", f"points of {expected}", f"{dict(series)}", "Leave out what can't be drawn."
        )


def _logarithmic(axes: Axes, xs: Sequence[float]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(xs, [f"{x:g}" for x in xs])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(_write_plain))
    axes.yaxis.set_minor_formatter(_Between())


def _write_plain(value: float, at: int | None = None) -> str:
    return f"{value:,.10g}"


class _Between(LogFormatter):
    """Labels between the powers of ten as plain numbers, on an axis so short that it needs some."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        return _write_plain(x) if super().__call__(x, pos) else ""
