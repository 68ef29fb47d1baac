"""Points of which none is beaten in all respects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """Tells whether a point is at least as good as another in all objectives, and better in one.

    Args:
      a: The point; more is better, in each objective.
      b: The other one.
    """
    return all(x >= y for x, y in zip(a, b, strict=True)) and any(
        x > y for x, y in zip(a, b, strict=True)
    )


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
    is_beaten = []
    for point in x:
        is_beaten.append(bool(((x >= point).all(1) & (x > point).any(1)).any()))
    return [i for i, beaten in enumerate(is_beaten) if not beaten]
