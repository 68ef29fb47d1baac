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
    most_messages: int = 0
    longest_queue: int = 0

    def add(self, direction: str, n: int, rows: int, queue: int) -> None:
        """Counts a dispatch of `n` messages with `rows` rows; `queue` is the longest that its queue has been."""
        self.dispatches += 1
        self.rows += rows
        if rows > self.largest_dispatch:
            self.largest_dispatch = rows
        if n > self.most_messages:
            self.most_messages = n
        if queue > self.longest_queue:
            self.longest_queue = queue
        if direction == "forward":
            self.forward += n
        elif direction == "backward":
            self.backward += n
        else:
            self.infer += n

    @property
    def mean_dispatch(self) -> float:
        """Rows per dispatch."""
        return self.rows / self.dispatches if self.dispatches else 0.0


class NodeStats:
    """Updates and staleness of one parameterised node.

    Counting is put off: a dispatch leaves its versions here, and many are counted at once when somebody asks.
    """

    _BINS = 128

    def __init__(self) -> None:
        self.updates = 0
        self._counts = np.zeros(self._BINS, np.int64)
        self._sum = self._max = self._rows = 0
        self._waiting: list[tuple[int, np.ndarray, np.ndarray | None]] = []

    @classmethod
    def counted(cls, updates: int, counts: np.ndarray, total: int, largest: int) -> NodeStats:
        """What has been counted elsewhere: updates, gradient rows of each staleness `[128]`, the summed and the largest staleness."""
        stats = cls()
        stats.updates, stats._counts, stats._rows = updates, counts, int(counts.sum())
        stats._sum, stats._max = total, largest
        return stats

    def add(self, version: int, forward_versions: np.ndarray, sizes: np.ndarray | None) -> None:
        """Counts messages: the node's version now, each one's version at its forward pass, and each one's rows (None: one)."""
        self._waiting.append((version, forward_versions, sizes))
        if len(self._waiting) > 512:
            self._count()

    @property
    def gradients(self) -> int:
        """Gradient rows."""
        self._count()
        return self._rows

    @property
    def staleness_mean(self) -> float:
        """Mean staleness over gradient rows."""
        return self.staleness_sum / self._rows if self.gradients else 0.0

    @property
    def staleness_sum(self) -> int:
        """Sum of the staleness of all gradient rows."""
        self._count()
        return self._sum

    @property
    def staleness_max(self) -> int:
        """Largest staleness."""
        self._count()
        return self._max

    @property
    def histogram(self) -> np.ndarray:
        """`[128]`: gradient rows of each staleness; the last counts all above, too."""
        self._count()
        return self._counts

    def _count(self) -> None:
        if not self._waiting:
            return
        versions, forward, sizes = zip(*self._waiting, strict=True)
        staleness = np.repeat(versions, [len(f) for f in forward]) - np.concatenate(forward)
        rows = np.concatenate(
            [np.ones(len(f), np.int64) if n is None else n for f, n in zip(forward, sizes, strict=True)]
        )
        self._waiting.clear()
        self._rows += int(rows.sum())
        self._sum += int(staleness @ rows)
        self._max = max(self._max, int(staleness.max(initial=0)))
        self._counts += np.bincount(np.minimum(staleness, self._BINS - 1), rows, minlength=self._BINS).astype(np.int64)


@dataclass(slots=True)
class Statistics:
    """Everything counted since the last reset.

    Attributes:
      run: Which run this is about: `epoch 2`, `train`, `validate`, `evaluate` or `predict`; empty before the first one.
    """

    stages: dict[str, StageStats] = field(default_factory=dict)
    nodes: dict[str, NodeStats] = field(default_factory=dict)
    instances: int = 0
    most_in_flight: int = 0
    run: str = ""

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
        """The sums, then a line for each stage that ran and for each parameterised node."""
        name = f"{self.run}: " if self.run else ""
        lines = [
            f"{name}{self.instances} instances, {self.messages} messages, {self.dispatches} dispatches, {self.updates} updates"
        ]
        for name, s in self.stages.items():
            if not s.dispatches:
                continue
            lines.append(
                f"  {name}: {s.forward} forward, {s.backward} backward, {s.infer} inference; {s.mean_dispatch:.1f} rows a dispatch, at most {s.largest_dispatch}"
            )
        for name, n in self.nodes.items():
            lines.append(f"  {name}: {n.updates} updates, staleness mean {n.staleness_mean:.2f}, max {n.staleness_max}")
        return "\n".join(lines)
