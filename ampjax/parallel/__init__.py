"""Data parallelism: replicas that are kept together, and the hybrid runner (Parallax) for single-device programs."""

from ampjax.cluster.hosts.resources import Machine, RemoteDevice, Resources
from ampjax.devices.allreduce import all_reduce_sum, average
from ampjax.devices.loss_collectives import Weighted, all_gather, mean
from ampjax.parallel.bag import Bag
from ampjax.parallel.config.config import Checkpoints, ParallaxConfig, SampleTimes
from ampjax.parallel.config.partitioner import Partitioner, partitioner
from ampjax.parallel.evaluation import Evaluation
from ampjax.parallel.get_runner import get_runner
from ampjax.parallel.homes.row_homes import RowGrads
from ampjax.parallel.planning.transfer_costs import all_reduce_bytes, server_bytes
from ampjax.parallel.runner import Runner
from ampjax.parallel.shard import Parts, shard
from ampjax.parallel.steps.step_outcome import Metrics
from ampjax.parallel.workers.process_group import ProcessState
from ampjax.parallel.workers.recovery import Recovery
from ampjax.sparse.table.table_sharing import TableSharing
from ampjax.sparse.vocabulary.growing_vocabulary import (
    Vocabulary,
    VocabularyChanges,
    VocabularyCounts,
)

# The names of the original code.
Config = ParallaxConfig
get_partitioner = partitioner
parallel_run = get_runner

__all__ = [
    "Bag",
    "Checkpoints",
    "Config",
    "Evaluation",
    "Machine",
    "Metrics",
    "ParallaxConfig",
    "Partitioner",
    "Parts",
    "ProcessState",
    "Recovery",
    "RemoteDevice",
    "Resources",
    "RowGrads",
    "Runner",
    "SampleTimes",
    "TableSharing",
    "Vocabulary",
    "VocabularyChanges",
    "VocabularyCounts",
    "Weighted",
    "all_gather",
    "all_reduce_bytes",
    "all_reduce_sum",
    "average",
    "get_partitioner",
    "get_runner",
    "mean",
    "parallel_run",
    "partitioner",
    "server_bytes",
    "shard",
]


def __dir__() -> list[str]:
    return __all__
