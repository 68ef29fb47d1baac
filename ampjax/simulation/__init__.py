"""Runs on other machines: cost models, measured profiles, shared cores. Used by `amp.simulate` and `amp.profile`."""

from typing import TYPE_CHECKING

from ampjax.drivers.cost import FlopsCost, Stragglers
from ampjax.moved_names import finder
from ampjax.simulation.cluster_cost import ClusterCost, LinkTimes
from ampjax.simulation.profile_cost import HostedCost, ProfileCost

__all__ = [
    "ClusterCost",
    "FlopsCost",
    "HostedCost",
    "LinkTimes",
    "ProfileCost",
    "Stragglers",
]

_MOVED = {
    "Profile": "ampjax.simulation.profile.Profile",
    "Simulation": "ampjax.simulation.simulate.Simulation",
}
"""Names that were public up to version 0.2, and the new names of what they stand for."""


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would take it for a promise of any name
    __getattr__ = finder(__name__, _MOVED)
