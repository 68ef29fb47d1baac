"""Convergence plots: a metric against epochs and against seconds (AMPNet, figure 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ampjax.errors import SettingsError
from ampjax.trace.trace import duration, scale_time
from ampjax.train.history import falls, reaches
from ampjax.utils.drawing.colours import SERIES
from ampjax.utils.drawing.figure import new_figure, save

Histories = Mapping[str, Sequence[Mapping[str, Any]]]
"""A label for each run, and its epochs: `epoch`, `seconds` since the start, and metrics."""

_STYLES = ("-", "--", ":", "-.")
_MARKERS = "osD^vPX"


def convergence(
    histories: Histories,
    path: str | Path | None = None,
    metric: str = "valid_accuracy",
    target: float | None = None,
) -> Figure:
    """Draws a metric of several runs twice: against epochs and against seconds.

    Args:
      histories: The runs by label.
      path: A file to write the picture to: .png, .svg or .pdf.
      metric: Which of the numbers of an epoch.
      target: A value to reach: a line, and in the legend when each run first reached it.

    Returns:
      The figure.

    Raises:
      SettingsError: If there is no run, a run has no epochs or lacks the metric, or the file name ends in anything else.
    """
    _check(histories, metric)
    rows = -(-len(histories) // _columns(histories, target))
    figure = new_figure(9.0, 3.9 + 0.22 * rows, layout="constrained")
    by_epoch, by_time = figure.subplots(1, 2, sharey=True)
    longest = max(float(e["seconds"]) for epochs in histories.values() for e in epochs)
    in_unit, unit = scale_time(1e9 * longest)
    scales = {
        "epoch": 1.0,
        "seconds": in_unit / longest if longest else 1.0,
    }  # virtual time may be short
    runs = zip(
        histories.items(),
        cycle(SERIES),
        cycle(_MARKERS),
        cycle(_line_styles()),
        strict=False,
    )
    for (label, epochs), colour, marker, style in runs:
        values = [float(e[metric]) for e in epochs]
        text = label if target is None else f"{label}: {_describe_reach(epochs, metric, target)}"
        for axes, x in ((by_epoch, "epoch"), (by_time, "seconds")):
            places = [scales[x] * float(e[x]) for e in epochs]
            axes.plot(
                places,
                values,
                style,
                color=colour,
                marker=marker,
                markersize=3.5,
                linewidth=1.4,
                label=text if axes is by_epoch else None,
            )
    for axes in (by_epoch, by_time):
        _dress(axes, metric, target)
    by_epoch.set(xlabel="epoch", ylabel=_words(metric))
    by_time.set(xlabel=f"time [{unit.replace('us', 'µs')}]")
    by_epoch.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(
        loc="outside lower center", ncols=_columns(histories, target), frameon=False, fontsize=9
    )
    save(figure, path)
    return figure


def _check(histories: Histories, metric: str) -> None:
    if not histories:
        raise SettingsError(
            "convergence",
            "at least one run",
            "none",
            "Pass a dictionary from labels to lists of epochs.",
        )
    for label, epochs in histories.items():
        if not len(epochs):
            raise SettingsError(
                f"convergence, run `{label}`",
                "at least one epoch",
                "none",
                "Leave out runs that did not end an epoch.",
            )
        for number, epoch in enumerate(epochs):
            for name in ("epoch", "seconds", metric):
                if name not in epoch:
                    raise SettingsError(
                        f"convergence, run `{label}`, entry {number}",
                        f"the number `{name}`",
                        f"{sorted(epoch)}",
                        "Choose a metric that the run has.",
                    )


def _line_styles() -> list[str]:
    """Gives each run a colour and a line style. Once all colours are used, the next style is taken."""
    result = []
    for style in _STYLES:
        for _ in SERIES:
            result.append(style)
    return result


def _columns(histories: Histories, target: float | None) -> int:
    longest = max(len(label) for label in histories) + (24 if target is not None else 0)
    return max(
        1,
        min(len(histories), 110 // (longest + 8)),
    )


def _describe_reach(
    epochs: Sequence[Mapping[str, Any]],
    metric: str,
    target: float,
) -> str:
    for e in epochs:
        if reaches(e[metric], target, metric):
            return f"epoch {e['epoch']}, {duration(1e9 * float(e['seconds']))}"
    values = []
    for e in epochs:
        if not math.isnan(e[metric]):
            values.append(float(e[metric]))
    if values:
        best = (min if falls(metric) else max)(values)
    else:
        best = math.nan
    return f"not reached (best {_number(metric, best)})"


def _number(metric: str, value: float) -> str:
    return f"{100 * value:.1f} %" if "accuracy" in metric else f"{value:.3g}"


def _words(metric: str) -> str:
    return (
        metric.replace("valid_", "validation ")
        .replace("train_", "training ")
        .replace(
            "_",
            " ",
        )
    )


def _dress(axes: Axes, metric: str, target: float | None) -> None:
    axes.grid(color="#E5E5E5", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if "accuracy" in metric:
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    if target is not None:
        axes.axhline(
            target,
            color="#777777",
            linewidth=1.0,
            linestyle=(0, (6, 3)),
            zorder=1,
        )
        at = {
            "xy": (0.0, target),
            "xycoords": ("axes fraction", "data"),
            "xytext": (4, 3),
            "textcoords": "offset points",
        }
        axes.annotate(
            f"target {_number(metric, target)}",
            **at,
            ha="left",
            va="bottom",
            size=8,
            color="#555555",
        )
