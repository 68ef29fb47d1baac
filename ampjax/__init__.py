"""ampjax: asynchronous, model-parallel training of dynamic neural networks in JAX, after AMPNet (Gaunt et al., arXiv 1705.09786)."""

from ampjax.utils import (
    freed_memory as _freed_memory,
)  # first: it sets glibc's allocator, before JAX starts threads

# isort: split
from ampjax.numerics import (
    guard as _guard,
)  # before JAX makes its first array: it sets a flag that XLA reads then

# isort: split
from typing import TYPE_CHECKING

from ampjax import nn
from ampjax.drivers.cost import FlopsCost, Stragglers
from ampjax.frontend.batched import Batched, vmap
from ampjax.frontend.batches.batch import Batch
from ampjax.frontend.batches.ragged_results import RaggedRows, Reports
from ampjax.frontend.combinators.branches import cond, read, switch, while_loop
from ampjax.frontend.combinators.embeddings import look_up
from ampjax.frontend.combinators.graph_combinators import Edges, propagate
from ampjax.frontend.combinators.randomness import dropout, stochastic, training
from ampjax.frontend.combinators.recursion import recurse
from ampjax.frontend.combinators.reports import metric, node, output
from ampjax.frontend.combinators.sequences import (
    fori_loop,
    length,
    logsumexp,
    map,
    max,
    mean,
    scan,
    softmax,
    sum,
    take,
    window,
)
from ampjax.frontend.combinators.structures import Ragged, Stacked, Tree
from ampjax.frontend.combinators.tree_combinators import fold_tree, scan_tree
from ampjax.frontend.compile_model import Compiled, compile
from ampjax.hosts.hosts import Hosts
from ampjax.ir.builders import (
    bcast,
    collect,
    concat,
    discard,
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
    relabel,
    repeat,
    replicate,
    route_by,
    sink,
    split,
    topology,
    ungroup,
)
from ampjax.ir.graph import PICTURE, Graph
from ampjax.ir.instances import InstanceList, Instances, Messages, Subset, Topology, messages
from ampjax.ir.state import State
from ampjax.lanes.lane_function import LaneFunction
from ampjax.lanes.lane_report import LaneReport
from ampjax.numerics.check import check_numerics
from ampjax.sched.decisions.policy import (
    backward_first,
    balanced,
    largest,
    one_forward_one_backward,
    wavefront,
)
from ampjax.simulation.cluster_cost import ClusterCost, LinkTimes
from ampjax.simulation.profile_cost import HostedCost, ProfileCost
from ampjax.simulation.simulate import profile, simulate
from ampjax.testing.verify import verify
from ampjax.trace.trace import Trace
from ampjax.trace.update_log import read_update_log
from ampjax.train.checkpoints.snapshot_settings import Snapshots
from ampjax.train.replay import replay
from ampjax.train.settings import Settings
from ampjax.train.trainer import Trainer
from ampjax.tuning.tune import tune

__all__ = [
    "Batch",
    "Batched",
    "ClusterCost",
    "Compiled",
    "Edges",
    "FlopsCost",
    "Graph",
    "HostedCost",
    "Hosts",
    "InstanceList",
    "Instances",
    "LaneFunction",
    "LaneReport",
    "LinkTimes",
    "Messages",
    "ProfileCost",
    "Ragged",
    "RaggedRows",
    "Reports",
    "Settings",
    "Snapshots",
    "Stacked",
    "State",
    "Stragglers",
    "Subset",
    "Topology",
    "Trace",
    "Trainer",
    "Tree",
    "backward_first",
    "balanced",
    "bcast",
    "check_numerics",
    "collect",
    "compile",
    "concat",
    "cond",
    "discard",
    "distribute",
    "dropout",
    "flatmap",
    "fold_tree",
    "fori_loop",
    "group",
    "isu",
    "largest",
    "length",
    "logsumexp",
    "look_up",
    "loss",
    "map",
    "max",
    "mean",
    "messages",
    "metric",
    "nn",
    "node",
    "npt",
    "one_forward_one_backward",
    "output",
    "phi",
    "ppt",
    "profile",
    "propagate",
    "pump",
    "read",
    "read_update_log",
    "recurse",
    "reduce",
    "relabel",
    "repeat",
    "replay",
    "replicate",
    "route_by",
    "scan",
    "scan_tree",
    "simulate",
    "sink",
    "softmax",
    "split",
    "stochastic",
    "sum",
    "switch",
    "take",
    "topology",
    "training",
    "tune",
    "ungroup",
    "verify",
    "vmap",
    "wavefront",
    "while_loop",
    "window",
]


def _picture(graph: Graph) -> str:
    from ampjax.viz.graphs.graph_picture import (
        to_svg,
    )  # imports matplotlib: only when a graph is shown

    return to_svg(graph)


PICTURE.append(_picture)


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would take it for a promise of any name

    def __getattr__(name: str) -> None:
        """Says where the packages are that were here up to version 0.2."""
        if name in ("data", "models"):
            raise ImportError(
                f"ampjax: expected a name of the package, got `{name}`, which it has no more. "
                f"Import `experiments.{name}` in a clone of the repository."
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
