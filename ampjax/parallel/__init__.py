"""Data parallelism: replicas that are kept together, and the hybrid runner (Parallax) for single-device programs."""

from typing import TYPE_CHECKING

from ampjax.cluster.hosts.resources import Machine, Resources
from ampjax.devices.loss_collectives import Weighted, all_gather, mean
from ampjax.moved_names import finder
from ampjax.parallel.bag import Bag
from ampjax.parallel.config.config import Checkpoints, ParallaxConfig, SampleTimes
from ampjax.parallel.get_runner import get_runner
from ampjax.parallel.shard import Parts, shard
from ampjax.sparse.vocabulary.growing_vocabulary import Vocabulary

__all__ = [
    "Bag",
    "Checkpoints",
    "Machine",
    "ParallaxConfig",
    "Parts",
    "Resources",
    "SampleTimes",
    "Vocabulary",
    "Weighted",
    "all_gather",
    "get_runner",
    "mean",
    "shard",
]

_MOVED = {
    "Config": "ampjax.parallel.ParallaxConfig",
    "Evaluation": "ampjax.parallel.evaluation.Evaluation",
    "Metrics": "ampjax.parallel.steps.step_outcome.Metrics",
    "Partitioner": "ampjax.parallel.config.partitioner.Partitioner",
    "ProcessState": "ampjax.parallel.workers.process_group.ProcessState",
    "Recovery": "ampjax.parallel.workers.recovery.Recovery",
    "RemoteDevice": "ampjax.cluster.hosts.resources.RemoteDevice",
    "RowGrads": "ampjax.parallel.homes.row_homes.RowGrads",
    "Runner": "ampjax.parallel.runner.Runner",
    "TableSharing": "ampjax.sparse.TableSharing",
    "VocabularyChanges": "ampjax.sparse.vocabulary.growing_vocabulary.VocabularyChanges",
    "VocabularyCounts": "ampjax.sparse.vocabulary.growing_vocabulary.VocabularyCounts",
    "all_reduce_bytes": "ampjax.parallel.planning.transfer_costs.all_reduce_bytes",
    "all_reduce_sum": "ampjax.devices.allreduce.all_reduce_sum",
    "average": "ampjax.devices.allreduce.average",
    "get_partitioner": "ampjax.parallel.config.partitioner.Partitioner",
    "parallel_run": "ampjax.parallel.get_runner",
    "partitioner": "ampjax.parallel.config.partitioner.Partitioner",
    "server_bytes": "ampjax.parallel.planning.transfer_costs.server_bytes",
}
"""Names that were public up to version 0.2, and the new names of what they stand for."""


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would take it for a promise of any name
    __getattr__ = finder(__name__, _MOVED)
