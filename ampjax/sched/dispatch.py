"""What the scheduler tells a driver to do: dispatches, and the updates that follow them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ampjax.sched.edges import Edges
from ampjax.sched.stages import Stage


@dataclass(frozen=True, slots=True)
class Update:
    """An optimizer step of a node from `count` accumulated gradient rows; `mean_staleness` is theirs."""

    node: str
    count: int
    mean_staleness: float = 0.0


@dataclass(frozen=True, slots=True)
class Average:
    """Replicas of a group take the mean of their parameters."""

    group: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contribute:
    """A replica hands in its parameters for the next mean (arXiv version, §5)."""

    group: str
    node: str


@dataclass(frozen=True, slots=True)
class Merge:
    """All replicas of a group have handed in: each takes the mean, plus what it has learnt since it handed in."""

    group: str
    nodes: tuple[str, ...]


Change = Update | Average | Contribute | Merge


@dataclass(eq=False, slots=True)
class Dispatch:
    """One action for a worker: run a stage on some messages, then change some parameters.

    Args:
      number: Dispatches are numbered in the order of issue.
      worker: Who runs it.
      stage: What it runs; None for parameter changes only.
      direction: `forward`, `backward`, `infer` or `update`.
      states: `[n, width]`: the messages.
      cells: `[n]`: the invocations (the first output's cells); for a loss or sink none.
      inputs: `[n, ports]`: the input cells.
      in_rows: For each port, the arena slots `[r]` of the input rows.
      out_rows: For each output, the arena slots of the output rows.
      n_rows: Input rows (of port 0).
      capacities: For each output, the rows of its arena (forward).
      sizes: For ragged inputs, the rows of each message `[n]`.
      out_sizes: For ragged outputs, the rows of each invocation `[n]` (forward).
      edges: For a chain, its edges.
      scatter: For a collect, the output row (within the dispatch) of each input row, per port.
      versions: For stashed weights, the versions of the stage's parameters in the forward pass.
      changes: Parameter changes that follow.
      choices: For a stage that routes by payload: what was read, `[n]` or `[n, fields]`, once it is known.
      drop: Stashed parameter versions that no message needs after this: `(stage number, versions)`.
    """

    number: int
    worker: int
    stage: Stage | None
    direction: str
    states: np.ndarray
    cells: np.ndarray
    inputs: np.ndarray
    in_rows: Sequence[np.ndarray] = ()
    out_rows: Sequence[np.ndarray] = ()
    n_rows: int = 0
    capacities: tuple[int, ...] = ()
    sizes: np.ndarray | None = None
    out_sizes: np.ndarray | None = None
    edges: Edges | None = None
    scatter: Sequence[np.ndarray] = ()
    versions: tuple[int, ...] | None = None
    changes: Sequence[Change] = ()
    drop: Sequence[tuple[int, tuple[int, ...]]] = ()
    choices: np.ndarray | None = None

    @property
    def reads(self) -> bool:
        """Whether payloads must be read back to the host before its messages travel on."""
        return self.stage is not None and self.stage.route_by is not None and self.direction != "backward"

    def sizes_at(self, node: str) -> np.ndarray | None:
        """The rows `[n]` that a node of its stage works on for each message: edges within a chain; None for one each."""
        if self.edges is None or self.stage is None:
            return self.sizes
        way = self.stage.way_of.get(node)
        return self.edges.n_rows if way is None else self.edges.counts[:, way]

    def rows_at(self, node: str) -> int:
        """The rows that a node of its stage works on."""
        sizes = self.sizes_at(node)
        return self.n_rows if self.edges is None or sizes is None else int(sizes.sum())

    @property
    def brings_gradients(self) -> bool:
        """Whether its kernels compute weight gradients: a way back, or a loss in training."""
        stage = self.stage
        return stage is not None and (
            self.direction == "backward" or (self.direction == "forward" and stage.kind == "loss")
        )

    @property
    def brings_updates(self) -> bool:
        """Whether all its parameter changes are updates of its stage's nodes, of each, from nothing but gradients that it brings itself."""
        if self.stage is None or not self.changes:
            return False
        updates = {change.node: change.count for change in self.changes if isinstance(change, Update)}
        nodes = self.stage.params
        return len(updates) == len(self.changes) and all(updates.get(node) == self.rows_at(node) for node in nodes)

    def after(self, n: int) -> Dispatch:
        """What is left when its kernels and the first `n` of its parameter changes have been carried out: changes alone."""
        return replace(self, stage=None, changes=self.changes[n:])

    @property
    def n_messages(self) -> int:
        """Messages in it."""
        return len(self.states)

    def __repr__(self) -> str:
        what = (
            f"{self.direction} `{self.stage.name}` ({self.n_messages} messages, {self.n_rows} rows)"
            if self.stage
            else "changes only"
        )
        changes = f", then {', '.join(map(str, self.changes))}" if self.changes else ""
        return f"Dispatch {self.number} on worker {self.worker}: {what}{changes}"
