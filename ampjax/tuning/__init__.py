"""Settings that train a graph to a target soonest: simulated on a measured profile, then tried out. `amp.tune` uses it."""

from ampjax.tuning.candidate import Candidate, Figures, Tried
from ampjax.tuning.tuned import Tuned

__all__ = ["Candidate", "Figures", "Tried", "Tuned"]


def __dir__() -> list[str]:
    return __all__
