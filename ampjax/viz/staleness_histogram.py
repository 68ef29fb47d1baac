"""The staleness of gradients: a histogram per node."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ampjax.errors import SettingsError
from ampjax.trace.trace import Trace
from ampjax.utils.drawing.colours import BLUE, VERMILION
from ampjax.utils.drawing.figure import new_figure, save


def staleness(
    trace: Trace,
    path: str | Path | None = None,
    *,
    title: str | None = None,
    most: int = 12,
) -> Figure:
    """Draws a histogram per parameterised node: the part of its gradient rows that has each staleness.

    Staleness is the number of updates that the node made between a message's forward pass and its gradient.

    Args:
      trace: A trace of training.
      path: A file to write the picture to: .png, .svg or .pdf.
      title: Above the picture.
      most: Nodes that are drawn at most: those with the largest mean staleness, in the graph's order.

    Returns:
      The figure.

    Raises:
      SettingsError: If no gradient was recorded, `most` is less than 1, or the file name ends in anything else.
    """
    counts = {}
    for node, rows in trace.histograms.items():
        if rows.sum():
            counts[node] = rows
    if not counts or most < 1:
        raise SettingsError(
            "staleness",
            "at least one node with gradients",
            f"{len(counts)}, at most {most}",
            "Trace a training run.",
        )
    stalest = sorted(counts, key=lambda node: -mean(counts[node]))[:most]
    shown = {node: rows for node, rows in counts.items() if node in stalest}
    columns = min(len(shown), 4)
    lines = -(-len(shown) // columns)
    figure = new_figure(2.6 * columns + 0.6, 2.1 * lines + 0.75, layout="constrained")
    grid = figure.subplots(
        lines,
        columns,
        squeeze=False,
        sharex=True,
        sharey=True,
    )
    end = max(int(np.flatnonzero(rows)[-1]) for rows in shown.values())
    for axes, (node, rows) in zip(grid.flat, shown.items(), strict=False):
        _histogram(axes, node, rows, end)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    figure.supxlabel("staleness [updates of the node]", fontsize=10)
    figure.supylabel("gradient rows [%]", fontsize=10)
    left_out = (
        f" ({len(counts) - len(shown)} less stale nodes are not shown)"
        if len(counts) > len(shown)
        else ""
    )
    if title or left_out:
        figure.suptitle((title or "") + left_out, fontsize=11)
    save(figure, path)
    return figure


def mean(rows: np.ndarray) -> float:
    """Computes the mean of a histogram `[128]` of staleness; the last bin counts as exactly its lower end."""
    return float(rows @ np.arange(len(rows)) / rows.sum())


def _histogram(
    axes: Axes,
    node: str,
    rows: np.ndarray,
    end: int,
) -> None:
    n = int(rows.sum())
    centre = mean(rows)
    axes.bar(
        np.arange(end + 1),
        100 * rows[: end + 1] / n,
        width=0.9,
        color=BLUE,
    )
    axes.axvline(centre, color=VERMILION, linewidth=1.2, linestyle="--")
    largest = int(np.flatnonzero(rows)[-1])
    bound = "≥ " if largest == len(rows) - 1 else ""
    axes.set_title(
        node,
        fontsize=9.5,
        fontweight="bold",
        parse_math=False,
        pad=16,
    )
    summary = f"mean {centre:.1f}, max {bound}{largest}, {n:,} rows"
    axes.text(
        0.5,
        1.02,
        summary,
        transform=axes.transAxes,
        ha="center",
        va="bottom",
        size=8,
    )
    axes.set(
        xlim=(-0.6, max(end, 3) + 0.6),
        ylim=(0, 105),
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.yaxis.set_major_formatter(PercentFormatter(decimals=0, symbol=""))
    axes.spines[["top", "right"]].set_visible(False)
