"""The number of waiting messages over time: a panel per worker, a line per queue."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ampjax.errors import SettingsError
from ampjax.trace.trace import Trace, scale_time
from ampjax.trace.trace_records import QueueSample
from ampjax.utils.drawing.colours import GREY, SERIES
from ampjax.utils.drawing.figure import new_figure, save

BINS = 200
"""Where a worker chose more often, means over so many equal parts of the time are drawn."""

_STYLES = {"forward": "-", "backward": "--", "infer": ":"}

Lines = dict[tuple[str, str], np.ndarray]
"""Messages that wait, by stage and direction."""


def queues(
    trace: Trace,
    path: str | Path | None = None,
    *,
    title: str | None = None,
    most: int = 8,
) -> Figure:
    """Draws how many messages wait at each stage when a worker chooses: forward solid, backward dashed, inference dotted.

    Args:
      trace: A trace.
      path: A file to write the picture to: .png, .svg or .pdf.
      title: Above the picture.
      most: Workers that are drawn at most: those with the most messages waiting.

    Returns:
      The figure.

    Raises:
      SettingsError: If no queue was recorded, `most` is less than 1, or the file name ends in anything else.
    """
    samples: dict[int, list[QueueSample]] = defaultdict(list)
    for sample in trace.queues:
        samples[sample.worker].append(sample)
    if not samples or most < 1:
        raise SettingsError(
            "queues", "at least one queue", f"{len(samples)}, at most {most}", "Trace a run first."
        )
    last = max(of_worker[-1].time_ns for of_worker in samples.values())
    start = trace.start_ns
    end = max([last, *(run[1] for run in trace.runs)])
    every = {}
    for worker, of_worker in samples.items():
        every[worker] = line_up(of_worker, start, end)
    fullest = sorted(
        every,
        key=lambda worker: -sum(line.mean() for line in every[worker][1].values()),
    )[:most]
    value, unit = scale_time(max(end - start, 1))
    per_unit = max(end - start, 1) / value
    unit = unit.replace("us", "µs")
    figure = new_figure(9.0, 0.8 + 2.0 * len(fullest), layout="constrained")
    panels = figure.subplots(len(fullest), 1, squeeze=False, sharex=True)[:, 0]
    for axes, worker in zip(panels, sorted(fullest), strict=True):
        edges, lines = every[worker]
        _panel(
            axes,
            (edges - start) / per_unit,
            lines,
            list(trace.stages),
        )
        axes.set_title(f"worker {worker}", loc="left", fontsize=10)
        axes.set_xlim(0, value)
    panels[-1].set_xlabel(f"time [{unit}]")
    binned = any(len(edges) == BINS + 1 for edges, _ in every.values())
    figure.supylabel(
        "messages waiting" + (f"\n(means over {value / BINS:.2g} {unit})" if binned else ""),
        fontsize=10,
    )
    left_out = (
        f" ({len(every) - len(fullest)} more workers are not shown)"
        if len(every) > len(fullest)
        else ""
    )
    if title or left_out:
        figure.suptitle((title or "") + left_out, fontsize=11)
    save(figure, path)
    return figure


def line_up(
    samples: list[QueueSample],
    start_ns: int,
    end_ns: int,
) -> tuple[np.ndarray, Lines]:
    """Turns a worker's samples into lines over time; the number of messages at a sample counts until the next one.

    Args:
      samples: Of one worker, in order of time.
      start_ns: Where the time begins.
      end_ns: Where it ends.

    Returns:
      The edges of times `[m + 1]`, in nanoseconds, and for each queue its messages in each `[m]`: exact, or a mean over the time where
      there are more than `BINS` samples.
    """
    steps: Lines = {}
    for i, sample in enumerate(samples):
        for stage, direction, n in sample.queues:
            steps.setdefault((stage, direction), np.zeros(len(samples)))[i] = n
    times = np.array(
        [*(sample.time_ns for sample in samples), end_ns],
        float,
    )
    if len(samples) <= BINS:
        return times, steps
    edges = np.linspace(start_ns, end_ns, BINS + 1)
    areas = {}
    for queue, line in steps.items():
        areas[queue] = np.cumsum(np.concatenate([[0.0], line * np.diff(times)]))
    return edges, {
        queue: np.diff(np.interp(edges, times, area)) / np.diff(edges)
        for queue, area in areas.items()
    }


def _panel(
    axes: Axes,
    edges: np.ndarray,
    lines: Lines,
    order: list[str],
) -> None:
    """The stages with the most messages waiting have colours, in the plan's order; the others are grey."""
    total: dict[str, float] = defaultdict(float)
    for (stage, _), line in lines.items():
        total[stage] += float(line @ np.diff(edges))
    fullest = sorted(total, key=lambda stage: -total[stage])[: len(SERIES)]
    named = []
    for stage in [*order, *sorted({*total} - {*order})]:
        if stage in fullest:
            named.append(stage)
    directions = list(_STYLES)
    rank = {stage: i for i, stage in enumerate(named)}
    for stage, direction in sorted(
        lines, key=lambda queue: (rank.get(queue[0], -1), directions.index(queue[1]))
    ):
        colour = SERIES[rank[stage]] if stage in rank else GREY
        label = f"{stage}, {direction}" if stage in rank else "_others"
        values = np.append(
            lines[stage, direction],
            lines[stage, direction][-1:],
        )
        style: Any = {"color": colour, "linestyle": _STYLES[direction], "linewidth": 1.2}
        axes.step(edges, values, where="post", label=label, **style)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.spines[["top", "right"]].set_visible(False)
    if named:
        more = f"grey: {len(total) - len(named)} other stages" if len(total) > len(named) else None
        axes.legend(
            loc="upper left",
            bbox_to_anchor=(1.0, 1.08),
            frameon=False,
            fontsize=8,
            handlelength=2.6,
            title=more,
            title_fontsize=8,
        )
