"""The runner of each kind of stage. To add one: a `StageRunner` in a file of this package, and a line here (`plan/stage_kinds.py`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ampjax.engine.arenas import Arenas
from ampjax.engine.kinds.edges_runner import EdgesRunner
from ampjax.engine.kinds.loss_runner import LossRunner
from ampjax.engine.kinds.rows_runner import RowsRunner
from ampjax.engine.kinds.segments_runner import SegmentsRunner
from ampjax.engine.kinds.sink_runner import SinkRunner
from ampjax.engine.kinds.stage_runner import StageRunner
from ampjax.engine.kinds.table_runner import TableRunner
from ampjax.engine.kinds.transfer_runner import TransferRunner
from ampjax.engine.loss_metrics import LossMetrics
from ampjax.plan.stage_kinds import COLLECT, EDGES, LOSS, REDUCE, ROWS, SINK, TABLE, TRANSFER, StageKind
from ampjax.plan.stages import Stage

RUNNERS: Mapping[StageKind, Callable[[Stage, Arenas, LossMetrics], StageRunner]] = {
    ROWS: lambda stage, arenas, losses: RowsRunner(stage, arenas),
    EDGES: lambda stage, arenas, losses: EdgesRunner(stage, arenas),
    LOSS: LossRunner,
    REDUCE: lambda stage, arenas, losses: SegmentsRunner(stage, arenas),
    COLLECT: lambda stage, arenas, losses: SegmentsRunner(stage, arenas),
    SINK: lambda stage, arenas, losses: SinkRunner(stage, arenas),
    TABLE: lambda stage, arenas, losses: TableRunner(stage, arenas),
    TRANSFER: lambda stage, arenas, losses: TransferRunner(stage, arenas),
}
"""The runner of each kind that is dispatched."""


def make_runner(stage: Stage, arenas: Arenas, losses: LossMetrics) -> StageRunner:
    """The runner of a stage.

    Args:
      stage: The stage; its kind is dispatched.
      arenas: Where payloads lie.
      losses: Where losses and metrics are summed.
    """
    return RUNNERS[stage.kind](stage, arenas, losses)
