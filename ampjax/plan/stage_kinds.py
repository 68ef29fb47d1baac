r"""The kinds of stages, each a set of traits.

To add a kind:

1. The node that it runs, if that is new, too: `PayloadOp` (`ir/ops/op_classes.py`) says how.
2. A value below. A trait that you leave out is safe: most say what a stage is spared, or what sets it apart from all others.
3. What becomes a stage of this kind: the class of its last node's `op`, in `KIND_OF` of `plan/planner.py`; or a branch in `_add_stage` there.
4. Its runner in `engine/kinds`, in `RUNNERS` of `make_runner.py`; `tests/unit/engine/kinds/test_make_runner.py` wants a graph with such a stage.

`grep -rn 'kind\.TRAIT' ampjax` shows who asks for a trait. Other things are called a kind, too: `Node.kind` is the name of what a node does,
`columns.KIND` sorts stages for the scheduler's loops by what follows them.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True)
class StageKind:
    """The traits of the stages of a kind.

    Args:
      name: The kind's name, for messages and traces.
      is_dispatched: Whether it runs on a device. If not, the stage is only control, and its rows are those of its producers.
      runs_row_bodies: Whether all its nodes have a body, the user's function of a single row. They become one function by
        `stage_program.make_program`, and their kernels can be looped over several dispatches.
      writes_gradients: Whether its backward kernel writes an input's gradient where `Stage.sole` says so. If False, `sole` is never set, and it
        adds them, which is always right: adjoint rows then start from zero.
      sums_segments: Whether each of its output rows is the sum of a segment of its input rows, so that fewer rows leave than come in.
      by_topology: Whether a topology says which rows it sends and adds up, so that it may make more or fewer rows than it takes.
      starts_backward: Whether its forward dispatch also computes gradients: a loss.
      is_sink: Whether its messages go to the user.
      is_transfer: Whether it copies rows from one memory space to another.
      reads_table: Whether its parameters are a table in host memory, of which it copies rows to a device.
    """

    name: str
    _: KW_ONLY
    is_dispatched: bool = True
    runs_row_bodies: bool = False
    writes_gradients: bool = False
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
        """Whether the stage sums the rows of each message."""
        return self.sums_segments and not self.by_topology

    @property
    def collects(self) -> bool:
        """Whether the stage only sums the rows that arrive over the edges of a topology."""
        return self.sums_segments and self.by_topology


ROWS = StageKind("rows", runs_row_bodies=True, writes_gradients=True)
"""Row-wise nodes, fused."""

EDGES = StageKind("edges", by_topology=True, writes_gradients=True)
"""A distribute, the nodes on its edges, their collect, and row-wise nodes after it."""

LOSS = StageKind("loss", runs_row_bodies=True, starts_backward=True, writes_gradients=True)
"""A loss with the row-wise nodes before it."""

REDUCE = StageKind("reduce", sums_segments=True)
"""A reduction over the rows of each message."""

COLLECT = StageKind("collect", sums_segments=True, by_topology=True)
"""Sums of the rows that arrive over the edges of a topology."""

SINK = StageKind("sink", is_sink=True)
"""Messages for the user."""

TRANSFER = StageKind("transfer", is_transfer=True, writes_gradients=True)
"""A copy to another memory space."""

TABLE = StageKind("table", reads_table=True)
"""A node whose parameters are a table in host memory."""

GROUP = StageKind("group", is_dispatched=False)
"""Messages that share a key become one ragged message."""
