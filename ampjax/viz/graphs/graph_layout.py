"""The layout of a graph's boxes, wire labels and arrows: layers from top to bottom. Knows no drawing library; all lengths in points.

Layers alternate between nodes and the labels of the wires that leave them. A connection over several layers passes through empty
places that are kept free for it, so no arrow ever crosses a box or a label; loops' ways back run through such places too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from ampjax.ir.graph import Graph
from ampjax.ir.nodes import Node
from ampjax.ir.printing import count_params, wire_text
from ampjax.ir.reading_order import Edge, edges, order
from ampjax.ir.wires import Wire
from ampjax.viz.graphs.graph_layers import SPACE, Arrow, PicturePlace, sort, spread
from ampjax.viz.graphs.message_flow import Notes

Measure = Callable[[str, float], float]
"""`measure(text, size)`: a text's width in points."""

NAME_SIZE = 9.5
KIND_SIZE = 7.5
LABEL_SIZE = 6.5
NOTE_HEIGHT = 11.0
BAR_HEIGHT = 8.0
"""What a further line in a node's box takes, and the bar that shows its part of the time."""


@dataclass(frozen=True)
class Route:
    """An arrow's way: from the first place through empty ones to the last.

    Args:
      places: From a node to its wire's label, or from a label to a node.
      back: True for a loop's way back, which runs upwards.
      start_x: Where it leaves the first place.
      end_x: Where it enters the last.
    """

    places: tuple[PicturePlace, ...]
    back: bool = False
    start_x: float = 0.0
    end_x: float = 0.0


@dataclass(frozen=True)
class PictureLayout:
    """A finished layout, `width` by `height` points."""

    places: list[PicturePlace]
    routes: list[Route]
    width: float
    height: float


def layout(
    graph: Graph,
    measure: Measure,
    notes: Notes | None = None,
) -> PictureLayout:
    """Arranges a graph.

    Args:
      graph: The graph; need not be closed.
      measure: Gives a text's width.
      notes: What is written to nodes and wires beside what they are.

    Returns:
      Places that do not overlap, and the arrows between them.
    """
    nodes = order(graph.nodes)
    notes = notes or Notes()
    every = edges(nodes)
    rank = _ranks(nodes, every)
    boxes = {}
    for node in nodes:
        boxes[node.name] = _box(
            node,
            2 * rank[node.name],
            measure,
            notes,
        )
    labels: dict[tuple[str, int], PicturePlace] = {}
    layers: list[list[PicturePlace]] = []
    for _ in range(2 * max(rank.values(), default=0) + 2):
        layers.append([])
    for box in boxes.values():
        layers[box.layer].append(box)
    arrows: list[Arrow] = []
    for edge in every:
        key = (edge.source.name, edge.wire.port)
        if key not in labels:
            label = _label(
                edge.wire,
                2 * rank[edge.source.name] + 1,
                measure,
                notes.wires.get(key),
            )
            labels[key] = label
            layers[label.layer].append(label)
            arrows.append(([boxes[edge.source.name], label], False))
        way = _way(labels[key], boxes[edge.target.name], edge.back)
        for place in way[1:-1]:
            layers[place.layer].append(place)
        arrows.append((way, edge.back))
    for way, _ in arrows:
        _attract(way)
    sort(layers, arrows)
    spread(layers)
    _stack(layers, arrows)
    return _finish(layers, arrows)


def _finish(
    layers: list[list[PicturePlace]],
    arrows: list[Arrow],
) -> PictureLayout:
    """Moves all places to the left margin, and measures the picture."""
    places = [p for row in layers for p in row]
    left = min((p.x - p.width / 2 for p in places), default=0.0)
    for place in places:
        place.x += SPACE - left
    right = max((p.x + p.width / 2 for p in places), default=0.0)
    bottom = max((p.bottom for p in places), default=0.0)
    deepest = max((way[0].bottom for way, back in arrows if back), default=0.0) + SPACE
    return PictureLayout(
        places,
        _ends(arrows),
        right + SPACE,
        max(bottom, deepest) + SPACE,
    )


def _way(
    start: PicturePlace,
    end: PicturePlace,
    back: bool,
) -> list[PicturePlace]:
    """An arrow's places: from a label to a node, through an empty place in each layer between, and on a way back also in the layer of the node."""
    if back:
        between = range(start.layer, end.layer - 1, -1)
    else:
        between = range(start.layer + 1, end.layer)
    return [start, *map(PicturePlace, between), end]


def kind_text(node: Node) -> str:
    """Writes the second line in a node's box: its kind, and the number of its parameters or their owner."""
    if node.options.params_of is not None:
        return f"{node.kind} · params of {node.params_name}"
    return f"{node.kind} · {count_params(node):,}" if node.has_params else node.kind


def _ranks(
    nodes: list[Node],
    every: list[Edge],
) -> dict[str, int]:
    """Ranks nodes by the longest path from a source; sources themselves stand right above the first node they feed."""
    rank = {node.name: 0 for node in nodes}
    ahead = [edge for edge in every if not edge.back]  # sorted by target, in order
    for edge in ahead:
        rank[edge.target.name] = max(
            rank[edge.target.name],
            rank[edge.source.name] + 1,
        )
    fed = {edge.target.name for edge in ahead}
    for node in nodes:
        targets = [rank[edge.target.name] for edge in ahead if edge.source is node]
        if node.name not in fed and targets:
            rank[node.name] = min(targets) - 1
    return rank


def _box(
    node: Node,
    layer: int,
    measure: Measure,
    notes: Notes,
) -> PicturePlace:
    lines = notes.nodes.get(node.name, ())
    texts = [
        (node.name, NAME_SIZE),
        (kind_text(node), KIND_SIZE),
        *((line, KIND_SIZE) for line in lines),
    ]
    width = max(measure(*text) for text in texts) + (34 if node.kind == "Cond" else 20)
    height = 30.0 + NOTE_HEIGHT * len(lines) + BAR_HEIGHT * (node.name in notes.shares)
    return PicturePlace(
        layer,
        max(width, 54.0),
        height,
        node=node,
        text=lines,
    )


def _label(
    wire: Wire,
    layer: int,
    measure: Measure,
    messages: int | None,
) -> PicturePlace:
    payload, _, fields = wire_text(wire).partition(" {")
    text = (payload, "{" + fields) if fields else (payload,)
    if messages is not None:
        text = (*text, f"{messages:,} message{'s' * (messages != 1)}")
    return PicturePlace(
        layer,
        max(measure(line, LABEL_SIZE) for line in text) + 4,
        9.0 * len(text),
        text=text,
    )


def _attract(places: list[PicturePlace]) -> None:
    """Neighbours on adjacent layers pull at each other; empty places pull hardest, which keeps long arrows straight."""
    for a, b in itertools.pairwise(places):
        if a.layer == b.layer:  # a way back leaves its label sideways, and enters its phi so
            continue
        empty = sum(p.node is None and not p.text for p in (a, b))
        if not (a.node and b.text):
            weight = (1.0, 1.0, 40.0)[empty]
        else:
            weight = 3.0
        a.near.append((b, weight))
        b.near.append((a, weight))


def _stack(
    layers: list[list[PicturePlace]],
    arrows: list[Arrow],
) -> None:
    """Heights: where arrows go far sideways, the gap between two layers is higher."""
    gaps = [8.0] * (len(layers) + 1)
    for places, _ in arrows:
        for a, b in itertools.pairwise(places):
            gap = max(a.layer, b.layer)
            gaps[gap] = max(
                gaps[gap],
                8.0 + min(0.06 * abs(a.x - b.x), 24.0),
            )
            if a.layer == b.layer:  # a turn takes place above a phi, or below a label
                turn = a.layer if b.node else a.layer + 1
                gaps[turn] = max(gaps[turn], 16.0)
    y = 0.0
    for i, row in enumerate(layers):
        height = max((p.height for p in row), default=0.0)
        y += gaps[i]
        for place in row:
            place.y = y + height / 2
            if not (place.node or place.text):
                place.height = height
        y += height


def _ends(arrows: list[Arrow]) -> list[Route]:
    """Spreads arrows at a box evenly over its edge, in the order in which the arrows come."""
    starts: dict[int, list[tuple[float, int]]] = {}
    ends: dict[int, list[tuple[float, int]]] = {}
    for i, (places, _) in enumerate(arrows):
        starts.setdefault(
            id(places[0]),
            [],
        ).append((places[1].x, i))
        ends.setdefault(
            id(places[-1]),
            [],
        ).append((places[-2].x, i))
    routes = []
    for i, (places, back) in enumerate(arrows):
        first = _share(
            places[0],
            starts[id(places[0])],
            (places[1].x, i),
        )
        last = _share(
            places[-1],
            ends[id(places[-1])],
            (places[-2].x, i),
        )
        routes.append(Route(tuple(places), back, first, last))
    return routes


def _share(
    place: PicturePlace,
    arrows: list[tuple[float, int]],
    this: tuple[float, int],
) -> float:
    number = sorted(arrows).index(this)
    n = len(arrows)
    return place.x + place.width * 0.7 * ((number + 0.5) / n - 0.5)
