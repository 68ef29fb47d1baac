"""Heat maps: a number in each cell, coloured by its logarithm; the lowest of a column is bold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ampjax.utils.drawing.figure import new_figure, save


def heat_map(
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    path: Path | None = None,
    *,
    delay: str = "delay",
) -> Figure:
    """Draws a table as colours, light is low; what is not finite is grey. The lowest value of each column is bold.

    Args:
      values: `[rows, columns]`.
      rows: Their names.
      columns: Delays.
      title: Above the picture.
      path: A file to write it to.
      delay: What the columns are.
    """
    figure = new_figure(
        1.6 + 0.65 * len(columns) + 0.07 * max(map(len, rows)),
        1.1 + 0.25 * len(rows),
        layout="constrained",
    )
    axes = figure.subplots()
    shown = np.log10(np.where(np.isfinite(values) & (values > 0), values, np.nan))
    low = 0
    high = 1
    if np.isfinite(shown).any():
        low, high = np.nanquantile(shown, [0, 0.95])  # what has diverged would take all colours
    axes.set_facecolor("0.8")
    axes.imshow(
        shown,
        cmap="YlOrRd",
        vmin=low,
        vmax=max(high, low + 0.1),
        aspect="auto",
    )
    for (i, j), value in np.ndenumerate(values):
        dark = np.isfinite(shown[i, j]) and shown[i, j] > low + 0.65 * max(high - low, 0.1)
        if value < 1e3:
            text = f"{value:#.3g}".rstrip(".")
        elif np.isfinite(value):
            text = f"{value:.0e}"
        else:
            text = "∞"
        if len(rows) > 1 and value == values[:, j].min():
            weight = "bold"
        else:
            weight = "normal"
        axes.text(
            j,
            i,
            text,
            ha="center",
            va="center",
            fontsize=8,
            color="white" if dark else "black",
            weight=weight,
        )
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlabel=f"{delay}, in updates", title=title)
    axes.tick_params(length=0)
    for edges, line in (
        (range(1, len(columns)), axes.axvline),
        (range(1, len(rows)), axes.axhline),
    ):
        for edge in edges:
            line(edge - 0.5, color="white", linewidth=1.5)
    axes.spines[:].set_visible(False)
    save(figure, path)
    return figure
