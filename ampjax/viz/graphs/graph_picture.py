"""The picture of a graph, with node kinds coloured as in AMPNet's figure 2."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path as FilePath
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch, PathPatch, Polygon, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import TextToPath

from ampjax.ir.graph import Graph
from ampjax.ir.nodes import Node
from ampjax.trace.trace import Trace
from ampjax.utils.drawing.colours import FAMILIES, SLICES, WHITE, family
from ampjax.utils.drawing.figure import new_figure, save, to_svg_text
from ampjax.viz.graphs.graph_layout import (
    BAR_HEIGHT,
    KIND_SIZE,
    LABEL_SIZE,
    NAME_SIZE,
    NOTE_HEIGHT,
    PictureLayout,
    PicturePlace,
    Route,
    kind_text,
    layout,
)
from ampjax.viz.graphs.message_flow import BACKWARD, FORWARD, Notes, notes_of

_EDGE = "#444444"
_DASHES = (0, (4, 2.5))
_LEGEND_ROW = 15.0
_MARGIN = 14.0

Entry = tuple[str | None, str]
"""A legend's line: a fill, or None for the dashed line, and its text."""


def draw(
    graph: Graph,
    path: str | FilePath | None = None,
    *,
    trace: Trace | None = None,
) -> Figure:
    """Draws a graph: boxes for nodes, arrows for wires, with the payload beside each wire; wires that close a loop are dashed.

    Args:
      graph: The graph; need not be closed.
      path: A file to write the picture to: .png, .svg or .pdf.
      trace: A trace of a run of this graph. The picture then shows the time that each node took forward and backward, its updates, and the
        messages on each wire. Nodes that run together have one time, which is shown at the last of them.

    Returns:
      The figure.

    Raises:
      SettingsError: If the file name ends in anything else.
    """
    notes = None if trace is None else notes_of(graph, trace)
    plan = layout(graph, _measure, notes)
    entries = _entries(plan, notes)
    cell = max(_measure(text, KIND_SIZE) for _, text in entries) + 34
    width = max(plan.width, cell + _MARGIN)
    columns = max(1, int((width - _MARGIN) // cell))
    height = plan.height + _LEGEND_ROW * -(-len(entries) // columns) + 6
    shift = (width - plan.width) / 2
    figure = new_figure(width / 72, height / 72)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set(
        xlim=(-shift, width - shift),
        ylim=(height, 0),
    )
    axes.set_axis_off()
    for route in plan.routes:
        axes.add_patch(_arrow(route))
    for place in plan.places:
        if place.node is not None:
            _box(axes, place, place.node)
            if notes is not None and place.node.name in notes.shares:
                _bar(axes, place, notes.shares[place.node.name])
            continue
        for i, line in enumerate(place.text):
            y = place.y + 9.0 * (i - (len(place.text) - 1) / 2)
            axes.text(
                place.x,
                y,
                line,
                size=LABEL_SIZE,
                ha="center",
                va="center",
                color="#333333",
                parse_math=False,
            )
    _legend(axes, entries, cell, columns, plan.height)
    save(figure, path)
    return figure


def to_svg(graph: Graph) -> str:
    """Draws a graph as an `<svg>` element in which text stays text.

    Args:
      graph: The graph; need not be closed.

    Returns:
      XML, as HTML pages and notebooks take it.
    """
    return to_svg_text(draw(graph))


@lru_cache(maxsize=4096)
def _measure(text: str, size: float) -> float:
    font = FontProperties(
        family="DejaVu Sans", size=size, weight="bold" if size == NAME_SIZE else "normal"
    )
    return TextToPath().get_text_width_height_descent(text.replace("$", "S"), font, False)[0]


def _box(axes: Axes, place: PicturePlace, node: Node) -> None:
    colours = family(node.kind, node.is_control)
    style = {
        "facecolor": colours.fill,
        "edgecolor": _EDGE,
        "linewidth": 0.8,
        "zorder": 3,
    }
    left = place.x - place.width / 2
    right = place.x + place.width / 2
    w = place.width
    h = place.height
    if node.kind == "Cond":
        points = [
            (left, place.y),
            (left + 9, place.top),
            (right - 9, place.top),
            (right, place.y),
            (right - 9, place.bottom),
            (left + 9, place.bottom),
        ]
        axes.add_patch(Polygon(points, **style))
    else:
        if node.kind == "Pump":
            radius = 13.0
        elif node.is_control:
            radius = 7.0
        else:
            radius = 1.0
        axes.add_patch(
            FancyBboxPatch(
                (left, place.top), w, h, boxstyle=f"round,pad=0,rounding_size={radius}", **style
            )
        )
    if node.kind == "Loss":
        axes.add_patch(
            FancyBboxPatch(
                (left + 2.5, place.top + 2.5),
                w - 5,
                h - 5,
                boxstyle="square,pad=0",
                fill=False,
                edgecolor=_EDGE,
                linewidth=0.6,
                zorder=3,
            )
        )
    ink = {
        "color": colours.ink,
        "ha": "center",
        "va": "center",
        "zorder": 4,
        "parse_math": False,
    }
    axes.text(
        place.x,
        place.top + 9.5,
        node.name,
        size=NAME_SIZE,
        weight="bold",
        **ink,
    )
    for i, line in enumerate((kind_text(node), *place.text)):
        axes.text(
            place.x,
            place.top + 22.5 + NOTE_HEIGHT * i,
            line,
            size=KIND_SIZE,
            **ink,
        )


def _bar(
    axes: Axes,
    place: PicturePlace,
    shares: tuple[float, float],
) -> None:
    """Draws a bar at the bottom of a box: its stage's part of all busy time, forward and backward; the whole width is all busy time."""
    left = place.x - place.width / 2 + 6
    width = place.width - 12
    top = place.bottom - BAR_HEIGHT
    height = 5.0
    style: Any = {"edgecolor": _EDGE, "linewidth": 0.5, "zorder": 4}
    axes.add_patch(Rectangle((left, top), width, height, facecolor=WHITE, **style))
    for share, kind in zip(shares, ("forward", "backward"), strict=True):
        axes.add_patch(
            Rectangle(
                (left, top),
                width * share,
                height,
                facecolor=SLICES[kind][0],
                **style,
            )
        )
        left += width * share


def _arrow(route: Route) -> Patch:
    """A curve that is vertical at every place; a way back turns below its label and above its phi."""
    places = route.places
    x = route.start_x
    y = places[0].bottom
    points = [(x, y)]
    codes = [Path.MOVETO]
    for i, place in enumerate(places[1:], 1):
        last = i == len(places) - 1
        to_x = route.end_x if last else place.x
        to_y = place.bottom if route.back and not last else place.top
        if i == 1:
            turn = 15.0
        elif last:
            turn = -15.0
        else:
            turn = 0.0
        if route.back and turn:
            points += [
                (x, y + turn),
                (to_x, to_y + turn),
                (to_x, to_y),
            ]
        else:
            points += [
                (x, (y + to_y) / 2),
                (to_x, (y + to_y) / 2),
                (to_x, to_y),
            ]
        codes += [Path.CURVE4] * 3
        x = to_x
        y = to_y
        if not last:
            y = place.top if route.back else place.bottom
            points.append((x, y))
            codes.append(Path.LINETO)
    curve = Path(points, codes)
    if places[-1].node is None:
        return PathPatch(curve, fill=False, edgecolor=_EDGE, linewidth=0.9)
    return FancyArrowPatch(
        path=curve,
        arrowstyle="-|>",
        mutation_scale=7,
        color=_EDGE,
        linewidth=0.9,
        linestyle=_DASHES if route.back else "solid",
        shrinkA=0,
        shrinkB=0,
    )


def _legend(
    axes: Axes,
    entries: list[Entry],
    cell: float,
    columns: int,
    top: float,
) -> None:
    for i, (fill, text) in enumerate(entries):
        x = _MARGIN + cell * (i % columns)
        y = top + _LEGEND_ROW * (i // columns + 0.5)
        if fill is None:
            axes.add_line(
                Line2D(
                    [x, x + 14],
                    [y, y],
                    color=_EDGE,
                    linewidth=0.9,
                    linestyle=_DASHES,
                )
            )
        else:
            axes.add_patch(
                Rectangle(
                    (x, y - 4),
                    14,
                    8,
                    facecolor=fill,
                    edgecolor=_EDGE,
                    linewidth=0.6,
                )
            )
        axes.text(
            x + 19,
            y,
            text,
            size=KIND_SIZE,
            va="center",
            color="#222222",
        )


def _entries(plan: PictureLayout, notes: Notes | None) -> list[Entry]:
    """Lists the colours of the present kinds, and their meaning; and the colours of times, if there are any."""
    nodes = [place.node for place in plan.places if place.node]
    families = {node.kind: family(node.kind, node.is_control) for node in nodes}
    entries: list[Entry] = []
    for f in FAMILIES:
        here = sorted(kind for kind, own in families.items() if own is f)
        text = "PPT · number of parameters" if here == ["PPT"] else ", ".join(here)
        if here:
            entries += [(f.fill, text)]
        else:
            entries += []
    if notes is not None:
        entries += [
            (SLICES["forward"][0], f"{FORWARD} forward: part of all time"),
            (SLICES["backward"][0], f"{BACKWARD} backward: part of all time"),
        ]
    return entries + [(None, "a loop's way back")] * any(route.back for route in plan.routes)
