"""Data parallelism: replicas that are kept together, and the hybrid runner."""

from ampjax.parallel.sync import all_reduce_sum, average
