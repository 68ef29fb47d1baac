"""Finds the settings that train a graph to a target soonest: simulates choices on a measured profile, then tries some. Used by `amp.tune`."""

from ampjax.tuning.candidate import Candidate, Figures, Tried
from ampjax.tuning.tuned import Tuned

__all__ = ["Candidate", "Figures", "Tried", "Tuned"]


def __dir__() -> list[str]:
    return __all__
