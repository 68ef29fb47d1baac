"""Statistics of a run, by stage and by node."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class StageStats:
    """Counts for one stage."""

    dispatches: int = 0
    forward: int = 0
    backward: int = 0
    infer: int = 0
    rows: int = 0
    largest_dispatch: int = 0
    longest_queue: int = 0

    @property
    def mean_dispatch(self) -> float:
        """Rows per dispatch."""
        return self.rows / self.dispatches if self.dispatches else 0.0


@dataclass(slots=True)
class NodeStats:
    """Updates and staleness of one parameterised node; `histogram[s]` counts gradient rows of staleness `s` (the last: and above)."""

    updates: int = 0
    gradients: int = 0
    staleness_sum: int = 0
    staleness_max: int = 0
    histogram: np.ndarray = field(default_factory=lambda: np.zeros(128, np.int64))

    @property
    def staleness_mean(self) -> float:
        """Mean staleness over gradient rows."""
        return self.staleness_sum / self.gradients if self.gradients else 0.0

    def add(self, staleness: np.ndarray, weights: np.ndarray | None) -> None:
        """Counts gradient rows; `weights` gives the rows of each message where they are not one each."""
        rows = len(staleness) if weights is None else int(weights.sum())
        self.gradients += rows
        if len(staleness) == 0 or not staleness.any():
            self.histogram[0] += rows
            return
        self.staleness_sum += int(staleness.sum() if weights is None else (staleness * weights).sum())
        self.staleness_max = max(self.staleness_max, int(staleness.max()))
        self.histogram += np.bincount(np.minimum(staleness, 127), weights, minlength=128).astype(np.int64)


@dataclass(slots=True)
class Statistics:
    """Everything counted since the last reset."""

    stages: dict[str, StageStats] = field(default_factory=dict)
    nodes: dict[str, NodeStats] = field(default_factory=dict)
    instances: int = 0
    most_in_flight: int = 0

    @property
    def messages(self) -> int:
        """Forward, backward and inference messages that were dispatched."""
        return sum(s.forward + s.backward + s.infer for s in self.stages.values())

    @property
    def dispatches(self) -> int:
        """Dispatches."""
        return sum(s.dispatches for s in self.stages.values())

    @property
    def updates(self) -> int:
        """Updates of all nodes."""
        return sum(n.updates for n in self.nodes.values())

    @property
    def staleness_mean(self) -> float:
        """Mean staleness over all gradient rows of all nodes."""
        gradients = sum(n.gradients for n in self.nodes.values())
        return sum(n.staleness_sum for n in self.nodes.values()) / gradients if gradients else 0.0

    @property
    def staleness_max(self) -> int:
        """Largest staleness."""
        return max((n.staleness_max for n in self.nodes.values()), default=0)

    def __repr__(self) -> str:
        lines = [
            f"{self.instances} instances, {self.messages} messages, {self.dispatches} dispatches, {self.updates} updates"
        ]
        for name, s in self.stages.items():
            lines.append(
                f"  {name}: {s.forward} forward, {s.backward} backward, {s.infer} inference; {s.mean_dispatch:.1f} rows a dispatch, at most {s.largest_dispatch}"
            )
        for name, n in self.nodes.items():
            lines.append(f"  {name}: {n.updates} updates, staleness mean {n.staleness_mean:.2f}, max {n.staleness_max}")
        return "\n".join(lines)
