"""Gantt charts: each worker's activity over time, as in AMPNet's figure 1."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import cast

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.textpath import TextToPath

from ampjax.errors import SettingsError
from ampjax.trace.trace import Trace, duration, in_lanes, scale_time
from ampjax.trace.trace_records import Slice
from ampjax.utils.drawing.colours import SLICES
from ampjax.utils.drawing.figure import new_figure, save

_LEFT = 1.0
_RIGHT = 0.2
_BELOW = 0.9
_HEAD = 0.34
"""Inches: a chart's margins, and the room for a run's name above it."""

_MOST_CHARACTERS = 24
"""Of a host's name."""

_HOST_SIZE = 9.0

_TEXT_SIZES = (8.0, 6.5)


def gantt(
    events: Iterable[Slice] | Mapping[str, Iterable[Slice]],
    path: str | Path | None = None,
    *,
    title: str | None = None,
    labels: bool = True,
    width: float = 12.0,
) -> Figure:
    """Draws a row per worker and a box per slice: forward orange, backward blue, update yellow.

    Slices of one worker that overlap in time are drawn below each other in its row. The workers of a host stand together, beside its name.
    Several runs are drawn below each other on one time axis, each from its own start: the shortest chart is the fastest run.

    Args:
      events: The slices, for example a `Trace`, which also knows the hosts; for several runs a dictionary, by name the slices of a run.
      path: A file to write the picture to: .png, .svg or .pdf.
      title: Above the chart, or above all charts.
      labels: Whether instances are written into the boxes where they fit; `3+12` is instance 3 and 12 others.
      width: Of the picture, in inches; a wider one has room for more labels.

    Returns:
      The figure, with axes for each run; its x axis starts at the first slice.

    Raises:
      SettingsError: If the file name ends in anything else, there are no slices, or the width is below 3.
    """
    if isinstance(events, Mapping):
        runs = cast("Mapping[str, Iterable[Slice]]", events)
    else:
        runs = {"": events}
    figure = _chart(runs, title, labels, width)
    save(figure, path)
    return figure


@dataclass(frozen=True)
class _DrawnRun:
    """A run, the row of each worker, and the rows of each host, if there are hosts."""

    name: str
    slices: list[Slice]
    start_ns: int
    span_ns: int
    rows: Mapping[int, int]
    hosts: Mapping[str, list[int]]

    @classmethod
    def of(
        cls,
        name: str,
        events: Iterable[Slice],
        slices: list[Slice],
    ) -> _DrawnRun:
        start = min(s.start_ns for s in slices)
        workers = sorted({s.worker for s in slices})
        if isinstance(events, Trace):
            of_hosts = {h.name: h.workers for h in events.hosts.values()}
        else:
            of_hosts = {}
        number = {}
        for i, slices_of_host in enumerate(of_hosts.values()):
            for worker in slices_of_host:
                number[worker] = i
        rows = {
            worker: i
            for i, worker in enumerate(
                sorted(
                    workers,
                    key=lambda w: (number.get(w, len(number)), w),
                )
            )
        }
        hosts = {}
        for host, slices_of_host in of_hosts.items():
            hosts[host] = [rows[worker] for worker in slices_of_host if worker in rows]
        span = max(max(s.end_ns for s in slices) - start, 1)
        return cls(
            name,
            slices,
            start,
            span,
            rows,
            {host: own for host, own in hosts.items() if own},
        )


def _chart(
    events: Mapping[str, Iterable[Slice]],
    title: str | None,
    labels: bool,
    width: float,
) -> Figure:
    slices = {name: list(slices_of_worker) for name, slices_of_worker in events.items()}
    _check(slices, width)
    runs = []
    for name, events_of_run in events.items():
        runs.append(_DrawnRun.of(name, events_of_run, slices[name]))
    n_rows = sum(len(run.rows) for run in runs)
    row = max(min(0.5, 10 / n_rows), 0.1)  # a thousand workers still make a picture
    top = 0.5 if title else 0.15
    height = top + row * n_rows + _HEAD * sum(bool(run.name) for run in runs) + _BELOW
    figure = new_figure(width, height)
    longest = max(run.span_ns for run in runs)
    in_unit, unit = scale_time(longest)
    margin = _LEFT + _host_room(runs)
    left = margin / width
    right = _RIGHT / width
    y = height - top
    for run in runs:
        y -= row * len(run.rows) + (_HEAD if run.name else 0)
        axes = figure.add_axes((left, y / height, 1 - left - right, row * len(run.rows) / height))
        axes.set(
            xlim=(0, in_unit),
            ylim=(len(run.rows), 0),
        )
        axes.tick_params(axis="x", labelbottom=run is runs[-1])
        _dress(axes, list(run.rows), row)
        _name_hosts(axes, run.hosts, row, margin / (width - margin - _RIGHT))
        points = 72 * (width - margin - _RIGHT) / in_unit
        _draw(axes, run, longest / in_unit, points, row * 72 if labels else None)
    figure.axes[-1].set_xlabel(f"time [{unit.replace('us', 'µs')}]")
    _legend(figure, [s for run in runs for s in run.slices])
    if title:
        figure.suptitle(
            title,
            y=1 - 0.12 / height,
            va="top",
            fontsize=11,
        )
    return figure


def _host_room(runs: Sequence[_DrawnRun]) -> float:
    """The width of the widest name of a host, in inches; 0 without hosts."""
    widths = []
    for run in runs:
        for host in run.hosts:
            widths.append(_measure(_short(host), _HOST_SIZE))
    return max(widths) / 60 + 0.1 if widths else 0.0  # bold: 60, not 72


def _draw(
    axes: Axes,
    run: _DrawnRun,
    per_unit: float,
    points: float,
    row: float | None,
) -> None:
    """A run's boxes, name and, where the height of a row is given, labels; lengths in points."""
    boxes = _place_slices(run, per_unit)
    _boxes(axes, boxes, points)
    if row is not None:
        _labels(
            axes,
            boxes,
            points,
            row,
            named=_n_nodes(run.slices) > len(run.rows),
        )
    if run.name:
        axes.set_title(f"{run.name}: {duration(run.span_ns)}", loc="left", fontsize=10, pad=4)


def _legend(figure: Figure, slices: list[Slice]) -> None:
    """Lists the visible kinds: slices without duration have no width."""
    seen = {s.kind for s in slices if s.duration_ns} or {s.kind for s in slices}
    kinds = [kind for kind in SLICES if kind in seen]
    handles = []
    for kind in kinds:
        handles.append(
            Patch(
                facecolor=SLICES[kind][0],
                edgecolor="#333333",
                linewidth=0.5,
                label=kind,
            )
        )
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=len(kinds),
        frameon=False,
        fontsize=9,
    )


def _check(
    runs: Mapping[str, list[Slice]],
    width: float,
) -> None:
    if not runs or not all(runs.values()):
        raise SettingsError(
            "gantt", "at least one slice", "none", "Record a run with a trace first."
        )
    if not width >= 3:
        raise SettingsError(
            "gantt, `width`", "at least 3 inches", f"{width}", "The margins alone take more than 1."
        )


def _dress(
    axes: Axes,
    workers: list[int],
    row: float,
) -> None:
    shown = range(
        0,
        len(workers),
        max(1, round(0.17 / row)),
    )
    size = min(10.0, max(60 * row, 7.5))
    axes.set_yticks(
        [i + 0.5 for i in shown],
        [f"worker {workers[i]}" for i in shown],
        fontsize=size,
    )
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    for line in range(1, len(workers)):
        axes.axhline(line, color="#DDDDDD", linewidth=0.6, zorder=0)


def _name_hosts(
    axes: Axes,
    hosts: Mapping[str, list[int]],
    row: float,
    margin: float,
) -> None:
    """Writes each host's name beside its workers, and draws a line between two hosts; `margin` as a part of the axes' width."""
    for number, (name, rows) in enumerate(hosts.items()):
        if len(rows) * row >= 0.12:
            axes.text(
                -0.95 * margin,
                sum(rows) / len(rows) + 0.5,
                _short(name),
                transform=axes.get_yaxis_transform(),
                va="center",
                size=min(_HOST_SIZE, max(60 * row * len(rows), 6.5)),
                weight="bold",
                parse_math=False,
            )
        if number:
            axes.plot([-0.95 * margin, 1], [rows[0]] * 2, color="#333333", lw=0.8, zorder=0.5, clip_on=False, transform=axes.get_yaxis_transform())  # fmt: skip


def _short(name: str) -> str:
    """Shortens a long host name."""
    return name if len(name) <= _MOST_CHARACTERS else f"{name[: _MOST_CHARACTERS - 1]}…"


Box = tuple[Slice, float, float, float, float]
"""A slice and where it is drawn: left and right in the axis' unit, top and bottom in rows."""


def _place_slices(run: _DrawnRun, per_unit: float) -> list[Box]:
    """Slices that overlap get lanes of their own, all of one height in a worker's row."""
    chosen = in_lanes(run.slices)
    lanes: dict[int, int] = {}
    for s, lane in chosen:
        lanes[s.worker] = max(
            lanes.get(s.worker, 1),
            lane + 1,
        )
    placed = []
    for s, lane in chosen:
        height = 0.84 / lanes[s.worker]
        top = run.rows[s.worker] + 0.08 + lane * height
        left = (s.start_ns - run.start_ns) / per_unit
        right = (s.end_ns - run.start_ns) / per_unit
        placed.append((s, left, right, top, top + height))
    return placed


def _boxes(
    axes: Axes,
    boxes: list[Box],
    points: float,
) -> None:
    """A collection per kind: thousands of boxes draw fast. Thin boxes get no outline, which would hide their colour."""
    for kind, (fill, _) in SLICES.items():
        ours = [b for b in boxes if b[0].kind == kind]
        if ours:
            corners = [[(x0, y0), (x1, y0), (x1, y1), (x0, y1)] for _, x0, x1, y0, y1 in ours]
            lines = [min(0.5, 0.08 * (x1 - x0) * points) for _, x0, x1, _, _ in ours]
            axes.add_collection(
                PolyCollection(
                    corners, facecolors=fill, edgecolors="#333333", linewidths=lines, label=kind
                ),
                autolim=False,
            )


def _labels(
    axes: Axes,
    boxes: list[Box],
    points: float,
    row: float,
    named: bool,
) -> None:
    """Writes labels into boxes where they fit; `points` is the width of a unit of time, `row` the height of a row, in points."""
    for s, x0, x1, y0, y1 in boxes:
        width = (x1 - x0) * points - 3
        height = (y1 - y0) * row - 3
        if width > 3:
            fit = _fit_label(s, width, height, named)
        else:
            fit = None
        if fit is not None:
            text, size = fit
            x = (x0 + x1) / 2
            y = (y0 + y1) / 2
            axes.text(
                x,
                y,
                text,
                size=size,
                color=SLICES[s.kind][1],
                ha="center",
                va="center",
                clip_on=True,
                linespacing=1.05,
                parse_math=False,
            )


def _fit_label(
    s: Slice,
    width: float,
    height: float,
    named: bool,
) -> tuple[str, float] | None:
    """The longest text that fits into a box: all instances, or else the first one and how many more there are."""
    ids = [str(i) for i in s.instances[:40]]
    short = f"{ids[0]}+{len(s.instances) - 1}" if len(s.instances) > 1 else "".join(ids)
    choices = [",".join(ids)] if len(s.instances) <= 40 else []
    choices += [short]
    if named:
        choices = [f"{s.node}\n{text}" if text else s.node for text in choices] + choices
    for text in choices:
        for size in _TEXT_SIZES:
            lines = text.split("\n")
            if (
                text
                and len(lines) * size * 1.15 <= height
                and max(_measure(line, size) for line in lines) <= width
            ):
                return text, size
    return None


def _n_nodes(slices: list[Slice]) -> int:
    return len({(s.worker, s.node) for s in slices})


@lru_cache(maxsize=8192)
def _measure(text: str, size: float) -> float:
    return TextToPath().get_text_width_height_descent(
        text.replace("$", "S"),
        FontProperties(family="DejaVu Sans", size=size),
        False,
    )[0]
