"""ampjax: asynchronous, model-parallel training of dynamic neural networks in JAX, after AMPNet (Gaunt et al., arXiv 1705.09786)."""

from ampjax.numerics import guard as _guard  # first: it sets a flag that XLA reads when JAX makes its first array

# isort: split
from ampjax import nn
from ampjax.engine.cost import FlopsCost, Stragglers
from ampjax.engine.profile_cost import HostedCost, ProfileCost
from ampjax.engine.trace import Trace
from ampjax.ir.build import (
    bcast,
    collect,
    concat,
    cond,
    distribute,
    flatmap,
    group,
    isu,
    loss,
    npt,
    phi,
    ppt,
    pump,
    reduce,
    repeat,
    replicate,
    route_by,
    sink,
    split,
    topology,
    ungroup,
)
from ampjax.ir.graph import Graph
from ampjax.ir.instances import InstanceList, Instances, Messages, Subset, Topology, messages
from ampjax.ir.state import State
from ampjax.numerics.check import check_numerics
from ampjax.replay import replay
from ampjax.sched.policy import backward_first, balanced, largest, one_forward_one_backward, wavefront
from ampjax.settings import Settings
from ampjax.simulate import profile, simulate
from ampjax.testing.verify import verify
from ampjax.train import Trainer

__all__ = [
    "FlopsCost",
    "Graph",
    "HostedCost",
    "InstanceList",
    "Instances",
    "Messages",
    "ProfileCost",
    "Settings",
    "State",
    "Stragglers",
    "Subset",
    "Topology",
    "Trace",
    "Trainer",
    "backward_first",
    "balanced",
    "bcast",
    "check_numerics",
    "collect",
    "concat",
    "cond",
    "distribute",
    "flatmap",
    "group",
    "isu",
    "largest",
    "loss",
    "messages",
    "nn",
    "npt",
    "one_forward_one_backward",
    "phi",
    "ppt",
    "profile",
    "pump",
    "reduce",
    "repeat",
    "replay",
    "replicate",
    "route_by",
    "simulate",
    "sink",
    "split",
    "topology",
    "ungroup",
    "verify",
    "wavefront",
]


def __dir__() -> list[str]:
    return __all__
