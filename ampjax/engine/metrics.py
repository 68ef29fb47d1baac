"""Metrics: what losses add up on devices, and what it means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class LossSums:
    """The sums of one loss node.

    Args:
      names: The metrics that its body returns.
      line: `[2 + 2 * len(names)]`: loss rows, their summed loss, and for each metric a sum and a count.
    """

    names: Sequence[str]
    line: np.ndarray

    @property
    def rows(self) -> float:
        """Loss rows."""
        return float(self.line[0])

    @property
    def loss(self) -> float:
        """Their summed loss."""
        return float(self.line[1])

    def pair(self, name: str) -> tuple[float, float]:
        """Sum and count of a metric."""
        i = 2 + 2 * list(self.names).index(name)
        return float(self.line[i]), float(self.line[i + 1])


def loss_sum(sums: Iterable[LossSums]) -> float:
    """The summed loss of all rows of all losses: what gradients are gradients of."""
    return sum(s.loss for s in sums)


def metrics_of(sums: Sequence[LossSums]) -> dict[str, float]:
    """`loss`: the mean over rows, summed over loss nodes; and each metric: its sums over its counts, pooled over loss nodes."""
    if not any(s.rows for s in sums):
        return {}
    result = {"loss": sum(s.loss / s.rows for s in sums if s.rows)}
    for name in dict.fromkeys(name for s in sums for name in s.names):
        tops, bottoms = zip(*(s.pair(name) for s in sums if name in s.names), strict=True)
        result[name] = sum(tops) / sum(bottoms) if sum(bottoms) else float("nan")
    return result
