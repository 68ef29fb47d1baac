"""Loss by time, a line for each way to train; loss by delay, a line for each part that is late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ampjax.utils.drawing.figure import new_figure, save

NAMES = {
    "rows": "all rows",
    "head": "rows of the head",
    "tail": "rows of the tail",
    "all": "rows and dense parameters",
}
STYLES = {
    "rows": "o-",
    "head": "s--",
    "tail": "^:",
    "all": "x-.",
}


def engram_picture(
    records: Sequence[Mapping[str, Any]],
    path: Path | None = None,
) -> Figure:
    """Draws losses by time, and excess losses by delay; means over seeds.

    Args:
      records: Of `time` and `late`.
      path: A file to write it to.
    """
    figure = new_figure(9.0, 3.6, layout="constrained")
    by_time, by_delay = figure.subplots(1, 2)
    own: dict[str, list[Mapping[str, Any]]] = {"time": [], "late": [], "steps": []}
    for record in records:
        own[record["what"]].append(record)
    draw_time(by_time, own["time"])
    draw_late(by_delay, own["late"])
    for axes in (by_time, by_delay):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize=8)
        else:
            axes.set_visible(False)
    save(figure, path)
    return figure


def draw_time(axes: Any, records: Sequence[Mapping[str, Any]]) -> None:
    """Draws losses by seconds.

    Args:
      axes: Where.
      records: Of `time`.
    """
    for way in dict.fromkeys(record["way"] for record in records):
        runs = [record for record in records if record["way"] == way]
        seconds = np.mean([record["seconds"] for record in runs], axis=0)
        losses = np.mean([record["losses"] for record in runs], axis=0)
        style = ":" if "file" in way else "-"
        axes.plot(
            seconds[1:],
            losses[1:],
            style,
            label=way,
        )
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("validation loss, nats a character")


def draw_late(axes: Any, records: Sequence[Mapping[str, Any]]) -> None:
    """Draws excess losses over the runs without a delay, on a logarithmic axis, where a negative excess has no point.

    Args:
      axes: Where.
      records: Of `late`.
    """
    for place, name in NAMES.items():
        delays, excess = excess_by_delay(records, place)
        if delays:
            axes.plot(
                delays,
                excess,
                STYLES[place],
                label=name,
            )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    delays = sorted({record["delay"] for record in records if record["delay"]})
    axes.set_xticks(delays, [str(delay) for delay in delays])
    axes.minorticks_off()
    axes.set_xlabel("steps by which gradients are late")
    axes.set_ylabel("validation loss over that without delay")


def excess_by_delay(
    records: Sequence[Mapping[str, Any]],
    place: str,
) -> tuple[list[int], list[float]]:
    """Delays, and by how much the loss is higher than that of the same seed without one: the mean over seeds.

    Args:
      records: Of `late`.
      place: What is late.
    """
    on_time = {}
    for record in records:
        if record["delay"] == 0:
            on_time[record["seed"]] = record["loss"]
    cells: dict[int, list[float]] = {}
    for record in records:
        is_late = record["delay"] and record["late"] == place
        if is_late and record["seed"] in on_time:
            more = record["loss"] - on_time[record["seed"]]
            cells.setdefault(record["delay"], []).append(more)
    delays = sorted(cells)
    means = []
    for delay in delays:
        means.append(float(np.mean(cells[delay])))
    return delays, means
