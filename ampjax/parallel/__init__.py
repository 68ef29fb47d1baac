"""Data parallelism: replicas that are kept together, and the hybrid runner (Parallax) for single-device programs."""

from ampjax.parallel.api import get_runner
from ampjax.parallel.config import Checkpoints, ParallaxConfig, SampleTimes
from ampjax.parallel.outcome import Metrics, RowGrads
from ampjax.parallel.partitioner import Partitioner, partitioner
from ampjax.parallel.resources import Machine, Resources
from ampjax.parallel.runner import Runner
from ampjax.parallel.shard import Parts, shard
from ampjax.parallel.sync import all_reduce_sum, average
from ampjax.replicas import Weighted, all_gather, mean

# The names of the original code.
Config = ParallaxConfig
get_partitioner = partitioner
parallel_run = get_runner

__all__ = [
    "Checkpoints",
    "Config",
    "Machine",
    "Metrics",
    "ParallaxConfig",
    "Partitioner",
    "Parts",
    "Resources",
    "RowGrads",
    "Runner",
    "SampleTimes",
    "Weighted",
    "all_gather",
    "all_reduce_sum",
    "average",
    "get_partitioner",
    "get_runner",
    "mean",
    "parallel_run",
    "partitioner",
    "shard",
]


def __dir__() -> list[str]:
    return __all__
