"""Places on layers: their order, so that few arrows cross, and how far to the right each stands.

Knows nothing of graphs but which places are neighbours. All lengths in points.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, insort
from dataclasses import dataclass, field

import numpy as np

from ampjax.ir.nodes import Node

SPACE = 14.0
"""Between two neighbours on a layer."""

_POLISHED = 250
"""Graphs of up to so many places are tried in more orders, which takes a time that grows with the square."""


@dataclass(eq=False)
class PicturePlace:
    """A box, a label, or an empty place that an arrow passes through; `x`, `y` is its centre, y grows downwards.

    Args:
      layer: Its layer; even ones hold nodes, odd ones wire labels.
      width: In points.
      height: In points.
      node: The node whose box it is.
      text: The lines of a label, or further lines in a node's box.
    """

    layer: int
    width: float = 8.0
    height: float = 0.0
    node: Node | None = None
    text: tuple[str, ...] = ()
    x: float = 0.0
    y: float = 0.0
    near: list[tuple[PicturePlace, float]] = field(default_factory=list)

    @property
    def top(self) -> float:
        """The upper edge."""
        return self.y - self.height / 2

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.y + self.height / 2


Arrow = tuple[list[PicturePlace], bool]
"""The places that an arrow passes, and whether it is a loop's way back."""


def sort(
    layers: list[list[PicturePlace]],
    arrows: list[Arrow],
    sweeps: int = 16,
) -> None:
    """Puts each layer into the order of its neighbours' mean place (barycentre heuristic), and keeps the order with the fewest crossings.

    Args:
      layers: The places of each layer; sorted in place.
      arrows: The arrows.
      sweeps: How often to go through the layers.
    """
    best = _crossings(layers, arrows)
    kept = [list(row) for row in layers]
    for sweep in range(sweeps):
        step = 1 if sweep % 2 == 0 else -1
        for row in layers[::step]:
            _number(
                layers[row[0].layer - step]
                if row and 0 <= row[0].layer - step < len(layers)
                else []
            )
            centre = {}
            for p in row:
                centre[id(p)] = [q.x for q, _ in p.near if q.layer == p.layer - step]
            at = {id(p): i for i, p in enumerate(row)}
            row.sort(key=lambda p: float(np.mean(centre[id(p)])) if centre[id(p)] else at[id(p)])
        count = _crossings(layers, arrows)
        if count < best:
            best = count
            kept = [list(row) for row in layers]
    layers[:] = kept
    if sum(map(len, layers)) <= _POLISHED:
        _polish(layers, arrows, best)


def _polish(
    layers: list[list[PicturePlace]],
    arrows: list[Arrow],
    best: int,
) -> None:
    """Tries whole long arrows at either margin, then swapped neighbours; keeps the variant with fewer crossings."""
    while best:
        before = best
        for places, _ in arrows:
            for side in (0, len(layers[0]) + sum(map(len, layers))):
                old = [list(row) for row in layers]
                for place in places[1:-1]:
                    layers[place.layer].remove(place)
                    layers[place.layer].insert(side, place)
                best = _keep_better(layers, old, arrows, best)
        for row in layers:
            for i in range(len(row) - 1):
                old = [list(r) for r in layers]
                row[i], row[i + 1] = row[i + 1], row[i]
                best = _keep_better(layers, old, arrows, best)
        if best == before:
            return


def _keep_better(
    layers: list[list[PicturePlace]],
    old: list[list[PicturePlace]],
    arrows: list[Arrow],
    best: int,
) -> int:
    count = _crossings(layers, arrows)
    if count < best:
        return count
    for row, back in zip(layers, old, strict=True):
        row[:] = back
    return best


def _number(row: list[PicturePlace]) -> None:
    for i, place in enumerate(row):
        place.x = float(i)


def _crossings(
    layers: list[list[PicturePlace]],
    arrows: list[Arrow],
) -> int:
    """Counts crossings of arrows: between layers, and where a way back turns above its phi or below its label."""
    count = 0
    for row in layers:
        _number(row)
    for row in layers:
        seen: list[float] = []
        for place in row:
            below = sorted(q.x for q, _ in place.near if q.layer == place.layer + 1)
            count += sum(len(seen) - bisect_left(seen, x + 0.5) for x in below)
            for x in below:
                insort(seen, x)
    for places, back in arrows:
        if back:
            for end, empty, step in ((places[0], places[1], 1), (places[-1], places[-2], -1)):
                left, right = sorted((int(end.x), int(empty.x)))
                between = layers[end.layer][left + 1 : right]
                count += sum(q.layer == p.layer + step for p in between for q, _ in p.near)
    return count


def spread(
    layers: list[list[PicturePlace]],
    rounds: int = 300,
    step: float = 1.9,
) -> None:
    """Moves places towards their neighbours, in order and without overlap.

    Args:
      layers: The places of each layer, whose `x` is set.
      rounds: How often to go through the layers.
      step: More than 1 over-relaxes, so that long chains get straight in few rounds.
    """
    for row in layers:
        _project(
            row,
            np.zeros(len(row)),
            np.ones(len(row)),
        )
    for turn in range(rounds):
        for row in layers if turn % 2 == 0 else layers[::-1]:
            if row:
                weights = np.array([sum(w for _, w in p.near) or 0.1 for p in row])
                middle = []
                for i, p in enumerate(row):
                    middle.append(sum(w * q.x for q, w in p.near) / weights[i] if p.near else p.x)
                now = np.array([p.x for p in row])
                _project(
                    row,
                    now + (step if turn < rounds - 10 else 1.0) * (np.array(middle) - now),
                    weights,
                )


def _project(
    row: list[PicturePlace],
    wanted: np.ndarray,
    weights: np.ndarray,
) -> None:
    """Finds the places nearest to the wanted ones that keep order and distance (least squares, by pooling adjacent violators)."""
    steps = []
    for a, b in itertools.pairwise(row):
        steps.append((a.width + b.width) / 2 + SPACE)
    offset = np.concatenate([[0.0], np.cumsum(steps)])
    pools: list[list[float]] = []  # mean, weight, members
    for value, weight in zip(wanted - offset[: len(row)], weights, strict=True):
        pools.append([value, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            mean, weight, n = pools.pop()
            before = pools[-1]
            pools[-1] = [
                (before[0] * before[1] + mean * weight) / (before[1] + weight),
                before[1] + weight,
                before[2] + n,
            ]
    means = np.repeat(
        [p[0] for p in pools],
        [int(p[2]) for p in pools],
    )
    for place, x in zip(row, means + offset[: len(row)], strict=True):
        place.x = float(x)
