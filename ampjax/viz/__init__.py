"""Pictures of graphs, schedules and convergence."""

from typing import TYPE_CHECKING

from ampjax.moved_names import finder
from ampjax.utils.drawing.figure import new_figure
from ampjax.viz.convergence import convergence
from ampjax.viz.front import front
from ampjax.viz.gantt import gantt
from ampjax.viz.graphs.graph_picture import draw
from ampjax.viz.lane_chart import lanes
from ampjax.viz.lineage import lineage
from ampjax.viz.partitions import partition_search
from ampjax.viz.perfetto import to_perfetto
from ampjax.viz.queue_lengths import queues
from ampjax.viz.staleness_histogram import staleness
from ampjax.viz.traffic import traffic
from ampjax.viz.worker_usage import time_spent
from ampjax.viz.zoom import zoomable

__all__ = [
    "convergence",
    "draw",
    "front",
    "gantt",
    "lanes",
    "lineage",
    "new_figure",
    "partition_search",
    "queues",
    "staleness",
    "time_spent",
    "to_perfetto",
    "traffic",
    "zoomable",
]

_MOVED = {
    "Point": "ampjax.viz.front.Point",
    "curves": "ampjax.viz.line_chart.curves",
    "gantts": "ampjax.viz.gantt",
    "to_svg": "ampjax.viz.graphs.graph_picture.to_svg",
}
"""Names that were public up to version 0.2, and the new names of what they stand for."""


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would take it for a promise of any name
    __getattr__ = finder(__name__, _MOVED)
