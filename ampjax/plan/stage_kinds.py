"""The kinds of stages, each a set of traits. To add a kind: a value here, its node in `planner.KIND_OF`, its runner in `engine/kinds`."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True)
class StageKind:
    """The traits of the stages of a kind.

    Args:
      name: The kind's name, for messages and traces.
      is_dispatched: Whether it runs on a device. If not, the stage is only control, and its rows are those of its producers.
      has_bodies: Whether it runs the user's functions, which may have parameters, draw random numbers and need a gradient.
      is_row_wise: Whether its kernels are functions of a single row, so that they can be looped over several dispatches.
      sums_segments: Whether its output rows are sums of segments of its input rows.
      by_topology: Whether a topology says which rows it sends and adds up, so that it may make more or fewer rows than it takes.
      starts_backward: Whether its forward dispatch also computes gradients: a loss.
      is_sink: Whether its messages go to the user.
      is_transfer: Whether it copies rows from one memory space to another.
      reads_table: Whether its parameters are a table in host memory, of which it copies rows to a device.
    """

    name: str
    _: KW_ONLY
    is_dispatched: bool = True
    has_bodies: bool = False
    is_row_wise: bool = False
    sums_segments: bool = False
    by_topology: bool = False
    starts_backward: bool = False
    is_sink: bool = False
    is_transfer: bool = False
    reads_table: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def reduces(self) -> bool:
        """Whether it sums the rows of each message."""
        return self.sums_segments and not self.by_topology

    @property
    def collects(self) -> bool:
        """Whether it sums what arrives over the edges of a topology, and nothing else."""
        return self.sums_segments and self.by_topology

    @property
    def can_write_gradients(self) -> bool:
        """Whether its backward kernel may overwrite an input gradient instead of adding to it."""
        return self.has_bodies or self.is_transfer


ROWS = StageKind("rows", has_bodies=True, is_row_wise=True)
"""Row-wise nodes, fused."""

EDGES = StageKind("edges", has_bodies=True, by_topology=True)
"""A distribute, the nodes on its edges, their collect, and row-wise nodes after it."""

LOSS = StageKind("loss", has_bodies=True, is_row_wise=True, starts_backward=True)
"""A loss with the row-wise nodes before it."""

REDUCE = StageKind("reduce", sums_segments=True)
"""A reduction over the rows of each message."""

COLLECT = StageKind("collect", sums_segments=True, by_topology=True)
"""Sums of the rows that arrive over the edges of a topology."""

SINK = StageKind("sink", is_sink=True)
"""Messages for the user."""

TRANSFER = StageKind("transfer", is_transfer=True)
"""A copy to another memory space."""

TABLE = StageKind("table", reads_table=True)
"""A node whose parameters are a table in host memory."""

GROUP = StageKind("group", is_dispatched=False)
"""Messages that share a key become one ragged message."""
