"""A launch: a dispatch in the form for executors, in plain data (integers, names and arrays), so that another process may get the launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ampjax.sched.decisions.packs import ids_of, rows_of
from ampjax.sched.decisions.parameter_changes import Change
from ampjax.unfold.rules.edges import DispatchEdges

CHANGES_ONLY = -1
"""The stage of a launch that runs none."""

EMPTY_PACK = np.zeros(0, np.int32)
"""The pack of a launch that runs no stage."""


class Launch(NamedTuple):
    """The kernels of a stage over some rows, then parameter changes.

    It has more than twelve fields, because it must hold all that a device in another process needs.

    Args:
      number: Launches are numbered in the order of issue.
      worker: Who runs it.
      stage: The number of the stage that it runs, or `CHANGES_ONLY`.
      direction: `forward`, `backward`, `infer` or `update`.
      n_messages: Messages, if the pack says which.
      n_rows: Input rows (of port 0).
      n_ports: Ports of the stage.
      n_outputs: Its outputs.
      pack: The slots of the rows of each port and output, in the layout that kernels take (`sched.decisions.packs`).
      size: The size that it is padded to; 0 if it is not.
      place: Where the pack begins in the array that it shares with those of other launches.
      capacities: For each output, how many rows its arena must have; empty for direction `backward`.
      changes: Parameter changes that follow.
      brings_updates: Whether these are one update of each of the stage's nodes, from nothing but gradients that it brings itself.
      sizes: For ragged inputs, the rows of each message `[n]`.
      edges: For a chain, its edges.
      scatter: For a collect, the output row (within the launch) of each input row, per port.
      seeds: For random bodies, uint32: a number for each row; for a chain, then one for each edge, type by type.
      versions: For stashed weights, the versions of the stage's parameters in the forward pass.
      drop: Whether no message needs these after this.
      instances: For a stage that reads a table, the instance of each row.
      staleness: For estimated weights, how many versions ago the forward passes were, in the mean, for each of the stage's parameters; None if
        all is fresh.
      dropped: Those of the stage's parameters whose gradients are dropped.
    """

    number: int
    worker: int
    stage: int
    direction: str
    n_messages: int = 0
    n_rows: int = 0
    n_ports: int = 0
    n_outputs: int = 0
    pack: np.ndarray = EMPTY_PACK
    size: int = 0
    place: int = 0
    capacities: Sequence[int] = ()
    changes: Sequence[Change] = ()
    brings_updates: bool = False
    sizes: np.ndarray | None = None
    edges: DispatchEdges | None = None
    scatter: Sequence[np.ndarray] = ()
    seeds: Sequence[np.ndarray] = ()
    versions: tuple[int, ...] | None = None
    drop: bool = False
    instances: np.ndarray | None = None
    staleness: tuple[float, ...] | None = None
    dropped: tuple[str, ...] = ()

    @property
    def ids(self) -> np.ndarray:
        """`[n_messages]`: the numbers of the messages' instances."""
        return ids_of(self.pack, self.n_messages, self.size)

    @property
    def rows(self) -> list[np.ndarray]:
        """The arena slots of the rows of each port, then of each output."""
        return rows_of(
            self.pack,
            self.n_messages,
            self.n_ports + self.n_outputs,
            self.size,
        )

    @property
    def in_rows(self) -> list[np.ndarray]:
        """The arena slots of the rows of each port."""
        return self.rows[: self.n_ports]

    @property
    def out_rows(self) -> list[np.ndarray]:
        """The arena slots of the rows of each output."""
        return self.rows[self.n_ports :]
