"""The runner of each kind of stage. To add one: a `StageRunner` in a file of this package, and a line here (`plan/stage_kinds.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ampjax.engine.kinds.edges_runner import EdgesRunner
from ampjax.engine.kinds.loss_runner import LossRunner
from ampjax.engine.kinds.rows_runner import RowsRunner
from ampjax.engine.kinds.segments_runner import SegmentsRunner
from ampjax.engine.kinds.sink_runner import SinkRunner
from ampjax.engine.kinds.stage_runner import StageRunner
from ampjax.engine.kinds.table_runner import TableRunner
from ampjax.engine.kinds.transfer_runner import TransferRunner
from ampjax.engine.memory.arenas import Arenas
from ampjax.engine.memory.loss_metrics import LossMetrics
from ampjax.ir.host_tables import HostTable
from ampjax.plan.stage_kinds import (
    COLLECT,
    EDGES,
    LOSS,
    REDUCE,
    ROWS,
    SINK,
    TABLE,
    TRANSFER,
    StageKind,
)
from ampjax.plan.stages import Stage

Tables = Mapping[str, HostTable]

RUNNERS: Mapping[StageKind, Callable[[Stage, Arenas, LossMetrics, Tables], StageRunner]] = {
    ROWS: lambda stage, arenas, losses, tables: RowsRunner(stage, arenas),
    EDGES: lambda stage, arenas, losses, tables: EdgesRunner(stage, arenas),
    LOSS: lambda stage, arenas, losses, tables: LossRunner(stage, arenas, losses),
    REDUCE: lambda stage, arenas, losses, tables: SegmentsRunner(stage, arenas),
    COLLECT: lambda stage, arenas, losses, tables: SegmentsRunner(stage, arenas),
    SINK: lambda stage, arenas, losses, tables: SinkRunner(stage, arenas),
    TABLE: lambda stage, arenas, losses, tables: TableRunner(stage, arenas, tables),
    TRANSFER: lambda stage, arenas, losses, tables: TransferRunner(stage, arenas),
}
"""The runner of each kind that is dispatched."""


def make_runner(
    stage: Stage,
    arenas: Arenas,
    losses: LossMetrics,
    tables: Tables,
) -> StageRunner:
    """The runner of a stage.

    Args:
      stage: The stage; its kind is dispatched.
      arenas: Where payloads lie.
      losses: Where losses and metrics are summed.
      tables: For nodes whose parameters are tables, those that they read, in place of the graph's.
    """
    return RUNNERS[stage.kind](stage, arenas, losses, tables)
