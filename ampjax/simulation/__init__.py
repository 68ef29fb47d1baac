"""Runs on other machines: cost models, measured profiles, shared cores. Used by `amp.simulate` and `amp.profile`."""

from ampjax.drivers.cost import FlopsCost, Stragglers
from ampjax.simulation.cluster_cost import ClusterCost, LinkTimes
from ampjax.simulation.profile import Profile
from ampjax.simulation.profile_cost import HostedCost, ProfileCost
from ampjax.simulation.simulate import Simulation

__all__ = [
    "ClusterCost",
    "FlopsCost",
    "HostedCost",
    "LinkTimes",
    "Profile",
    "ProfileCost",
    "Simulation",
    "Stragglers",
]


def __dir__() -> list[str]:
    return __all__
