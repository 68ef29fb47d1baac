"""A picture of a partition search: the timed samples, and the fitted model (Parallax §4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ampjax.errors import SettingsError
from ampjax.utils.drawing.colours import SERIES
from ampjax.utils.drawing.figure import new_figure, save


def partition_search(
    searches: Sequence[Any],
    path: str | Path | None = None,
) -> Figure:
    """Draws iteration time against partitions: samples as points, the model as a line, the choice as a ring.

    Args:
      searches: Results of `ampjax.parallel.planning.partition_search`, one for each partitioner.
      path: A file to write the picture to: .png, .svg or .pdf.

    Returns:
      The figure.

    Raises:
      SettingsError: If there is no result, or the file name ends in anything else.
    """
    if not searches:
        raise SettingsError(
            "partition search",
            "at least one result",
            "none",
            "Search for a number of partitions first.",
        )
    figure = new_figure(6.0, 3.9, layout="constrained")
    axes = figure.subplots()
    for number, result in enumerate(searches):
        _draw(axes, result, SERIES[number % len(SERIES)])
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set(xlabel="partitions", ylabel="iteration time [ms]")
    axes.grid(color="#E5E5E5", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    save(figure, path)
    return figure


def _draw(axes: Any, result: Any, colour: str) -> None:
    counts = sorted(result.samples)
    axes.plot(
        counts,
        [1e3 * result.samples[count] for count in counts],
        "o",
        color=colour,
        markersize=4,
        label=result.label,
    )
    if result.fit is None:
        return
    places = np.geomspace(counts[0], counts[-1], 100)
    axes.plot(
        places,
        [1e3 * result.fit.seconds(place) for place in places],
        "-",
        color=colour,
        linewidth=1.2,
    )
    chosen = 1e3 * result.fit.seconds(result.partitions)
    ring = {"marker": "o", "markersize": 10, "markerfacecolor": "none", "markeredgecolor": colour}
    axes.plot(
        [result.partitions],
        [chosen],
        linestyle="none",
        label=f"{result.partitions} partitions",
        **ring,
    )
