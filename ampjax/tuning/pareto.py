"""Points of which none is beaten in all respects, and a few of them that differ much."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """Tells whether a point is at least as good as another in all objectives, and better in one.

    Args:
      a: The point; more is better, in each objective.
      b: The other one.
    """
    return all(x >= y for x, y in zip(a, b, strict=True)) and any(x > y for x, y in zip(a, b, strict=True))


def non_dominated(points: Sequence[Sequence[float]]) -> list[int]:
    """Finds the points that no other one dominates: the Pareto front.

    Args:
      points: Of each point its objectives; more is better.

    Returns:
      The numbers of the points on the front, in order. Of equal points all are on it, or none.
    """
    if not points:
        return []
    x = np.asarray(points, float)
    is_beaten = [bool(((x >= own).all(1) & (x > own).any(1)).any()) for own in x]
    return [i for i, beaten in enumerate(is_beaten) if not beaten]


def spread(places: Sequence[Sequence[float]], n: int) -> list[int]:
    """Chooses some places that are far from one another: the first, then each time the one that is farthest from those chosen.

    Args:
      places: Coordinates of each.
      n: How many to choose, at most.

    Returns:
      Their numbers, in the order of choice.
    """
    x = np.asarray(places, float)
    chosen = [0] if len(x) and n > 0 else []
    while len(chosen) < min(n, len(x)):
        distance = np.min([((x - x[i]) ** 2).sum(1) for i in chosen], axis=0)
        distance[chosen] = -1.0
        chosen.append(int(distance.argmax()))
    return chosen
