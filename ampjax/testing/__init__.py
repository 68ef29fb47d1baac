"""Helpers for tests, users' tests included: the oracle and the measure of differences."""

from typing import TYPE_CHECKING

from ampjax.moved_names import finder
from ampjax.testing.reference import init_params, reference

__all__ = [
    "init_params",
    "reference",
]

_MOVED = {
    "Reference": "ampjax.testing.reference_result.Reference",
    "compare": "ampjax.numerics.differences.compare",
    "difference_table": "ampjax.numerics.differences.difference_table",
}
"""Names that were public up to version 0.2, and the new names of what they stand for."""


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would take it for a promise of any name
    __getattr__ = finder(__name__, _MOVED)
