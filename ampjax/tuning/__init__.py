"""Finds the settings that train a graph to a target soonest: simulates choices on a measured profile, then tries some. Used by `amp.tune`."""

from typing import TYPE_CHECKING

from ampjax.moved_names import finder

__all__: list[str] = []

_MOVED = {
    "Candidate": "ampjax.tuning.candidate.Candidate",
    "Figures": "ampjax.tuning.candidate.Figures",
    "Tried": "ampjax.tuning.candidate.Tried",
    "Tuned": "ampjax.tuning.tuned.Tuned",
}
"""Names that were public up to version 0.2, and the new names of what they stand for."""


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would take it for a promise of any name
    __getattr__ = finder(__name__, _MOVED)
