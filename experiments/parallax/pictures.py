"""The pictures of the figures: lines with markers, and groups of bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from ampjax.errors import SettingsError
from ampjax.utils.drawing.colours import SERIES
from ampjax.utils.drawing.figure import new_figure, save

_MARKERS = "osD^vPX"


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    xlabel: str,
    ylabel: str,
    path: Path | None = None,
    *,
    log: bool = False,
    title: str = "",
) -> Figure:
    """Draws points of several series, joined.

    Args:
      series: By name its points.
      xlabel: Under the picture, with a unit.
      ylabel: Beside it.
      path: A file to write it to.
      log: Whether both axes are logarithmic.
      title: Above the picture.

    Raises:
      SettingsError: If there is no point, or the file name ends in no picture's suffix.
    """
    if not any(series.values()):
        raise SettingsError("picture", "at least one point", "none", "Measure something first.")
    figure = new_figure(6.0, 3.9, layout="constrained")
    axes = figure.subplots()
    for (name, points), colour, marker in zip(
        series.items(), cycle(SERIES), cycle(_MARKERS), strict=False
    ):
        axes.plot(
            *zip(*points, strict=True),
            f"{marker}-",
            color=colour,
            markersize=4,
            linewidth=1.3,
            label=name,
        )
    if log:
        axes.set_xscale("log")
        axes.set_yscale("log")
    else:
        axes.set_ylim(bottom=0)
    places = sorted({x for points in series.values() for x, _ in points})
    if not log and len(places) <= 8:
        axes.set_xticks(places)
    axes.set(xlabel=xlabel, ylabel=ylabel, title=title)
    _finish(axes)
    save(figure, path)
    return figure


def bars(
    groups: Mapping[str, Mapping[str, float]],
    ylabel: str,
    path: Path | None = None,
    title: str = "",
) -> Figure:
    """Draws groups of bars, each with its number on it.

    Args:
      groups: By group the bars' heights by name; all groups have the same names.
      ylabel: Beside the picture.
      path: A file to write it to.
      title: Above the picture.

    Raises:
      SettingsError: If there is no bar, or the file name ends in no picture's suffix.
    """
    if not any(groups.values()):
        raise SettingsError("picture", "at least one bar", "none", "Measure something first.")
    names = list(next(iter(groups.values())))
    figure = new_figure(
        max(5.0, 0.62 * len(names) * len(groups) + 1),
        3.9,
        layout="constrained",
    )
    axes = figure.subplots()
    width = 0.8 / len(names)
    for i, (name, colour) in enumerate(zip(names, cycle(SERIES), strict=False)):
        places = []
        for g in range(len(groups)):
            places.append(g + (i - (len(names) - 1) / 2) * width)
        drawn = axes.bar(
            places,
            [own[name] for own in groups.values()],
            0.92 * width,
            color=colour,
            label=name,
        )
        axes.bar_label(drawn, fmt="%.3g", fontsize=7, padding=1)
    axes.set_xticks(range(len(groups)), list(groups))
    axes.set(ylabel=ylabel, title=title)
    _finish(axes)
    save(figure, path)
    return figure


def _finish(axes: Any) -> None:
    axes.grid(color="#E5E5E5", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
