"""Helpers for tests, users' tests included: the oracle, the measure of differences, and random graphs."""

from ampjax.numerics.differences import compare, difference_table
from ampjax.testing.random_graphs.random_case import Case, random_case
from ampjax.testing.reference import Reference, init_params, reference

__all__ = [
    "Case",
    "Reference",
    "compare",
    "difference_table",
    "init_params",
    "random_case",
    "reference",
]


def __dir__() -> list[str]:
    return __all__
