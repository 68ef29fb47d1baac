"""The workers' use of time: a bar per worker, with its work by kind and its waiting by reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ampjax.errors import SettingsError
from ampjax.trace.trace import Trace, duration
from ampjax.trace.usage import USES, usage
from ampjax.utils.drawing.colours import BLACK, GREY, SLICES, WAITS, WHITE
from ampjax.utils.drawing.figure import new_figure, save

MEANINGS = {
    "forward": "forward",
    "backward": "backward",
    "update": "update",
    "transfer": "transfer",
    "infer": "inference",
    "rows": "waits for another host's rows",
    "join": "waits for a join",
    "throttled": "throttled (max_active_keys)",
    "policy": "held back by the policy",
    "memory": "no memory",
    "starved": "starved: nothing to do",
    "host": "host: scheduling and issuing",
}
"""What the legend says, by what time went to."""

_SMALLEST = 0.035
"""The least part of a bar that has room for its percentage."""


def time_spent(
    trace: Trace,
    path: str | Path | None = None,
    *,
    title: str | None = None,
) -> Figure:
    """Draws how each worker spent its time: filled bars for work, hatched ones for waiting.

    Args:
      trace: A trace with at least one slice or wait.
      path: A file to write the picture to: .png, .svg or .pdf.
      title: Above the picture.

    Returns:
      The figure.

    Raises:
      SettingsError: If nothing was recorded, or the file name ends in anything else.
    """
    times = usage(trace)
    total = max(
        (sum(spent.values()) for spent in times.values()),
        default=0,
    )
    if not total:
        raise SettingsError(
            "time_spent", "a trace of a run that took some time", "none", "Record a run first."
        )
    row = max(min(0.42, 9 / len(times)), 0.08)
    used = []
    for use in USES:
        if any(spent.get(use) for spent in times.values()):
            used.append(use)
    columns = min(len(used), 4)
    figure = new_figure(
        9.0,
        1.25 + row * len(times) + 0.24 * -(-len(used) // columns),
        layout="constrained",
    )
    axes = figure.subplots()
    for y, spent in enumerate(times.values()):
        left = 0.0
        for use in used:
            part = spent.get(use, 0) / total
            axes.barh(
                y,
                100 * part,
                0.78,
                100 * left,
                clip_on=False,
                **_look(use),
            )
            if part >= _SMALLEST and row > 0.2:
                _percentage(axes, 100 * (left + part / 2), y, part, use)
            left += part
    shown = list(times)[:: max(1, round(0.17 / row))]
    axes.set_yticks(
        [list(times).index(worker) for worker in shown],
        [trace.worker_name(worker) for worker in shown],
    )
    axes.set(
        xlim=(0, 100),
        ylim=(len(times) - 0.45, -0.55),
    )
    axes.set_xlabel(f"time [% of {duration(total)}]")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    handles = []
    for use in used:
        handles.append(Patch(label=MEANINGS[use], **_look(use)))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=columns,
        frameon=False,
        fontsize=9,
        handleheight=1.2,
    )
    if title:
        axes.set_title(title, fontsize=11)
    save(figure, path)
    return figure


def _look(use: str) -> dict[str, Any]:
    if use in SLICES:
        return {"facecolor": SLICES[use][0], "edgecolor": "#333333", "linewidth": 0.5}
    colour, hatch = WAITS[use]
    return {
        "facecolor": WHITE,
        "edgecolor": GREY if colour == WHITE else colour,
        "linewidth": 0.5,
        "hatch": hatch,
    }


def _percentage(
    axes: Axes,
    x: float,
    y: float,
    part: float,
    use: str,
) -> None:
    ink = SLICES[use][1] if use in SLICES else BLACK
    if use in SLICES:
        box = None
    else:
        box = {"facecolor": WHITE, "edgecolor": "none", "pad": 1.0}
    axes.text(
        x,
        y,
        f"{100 * part:.0f} %",
        ha="center",
        va="center",
        size=8,
        color=ink,
        bbox=box,
    )
