"""Helpers for tests, users' tests included: the oracle and the measure of differences."""

from ampjax.numerics.differences import compare, difference_table
from ampjax.testing.reference import Reference, init_params, reference

__all__ = [
    "Reference",
    "compare",
    "difference_table",
    "init_params",
    "reference",
]


def __dir__() -> list[str]:
    return __all__
