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

from ampjax import graphs, nn
from ampjax.frontend.batched import vmap
from ampjax.frontend.combinators.branches import (
    cond,
    read,
    switch,
    while_loop,
)
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
from ampjax.frontend.compile_model import compile
from ampjax.hosts.hosts import Hosts
from ampjax.ir.graph import PICTURE
from ampjax.ir.instances import Subset
from ampjax.moved_names import finder
from ampjax.numerics.check import check_numerics
from ampjax.simulation.simulate import profile, simulate
from ampjax.testing.verify import verify
from ampjax.trace.trace import Trace
from ampjax.train.checkpoints.snapshot_settings import Snapshots
from ampjax.train.replay import replay
from ampjax.train.settings import Settings
from ampjax.train.trainer import Trainer
from ampjax.tuning.tune import tune

__all__ = [
    "Edges",
    "Hosts",
    "Ragged",
    "Settings",
    "Snapshots",
    "Stacked",
    "Subset",
    "Trace",
    "Trainer",
    "Tree",
    "check_numerics",
    "compile",
    "cond",
    "dropout",
    "fold_tree",
    "fori_loop",
    "graphs",
    "length",
    "logsumexp",
    "look_up",
    "map",
    "max",
    "mean",
    "metric",
    "nn",
    "node",
    "output",
    "profile",
    "propagate",
    "read",
    "recurse",
    "replay",
    "scan",
    "scan_tree",
    "simulate",
    "softmax",
    "stochastic",
    "sum",
    "switch",
    "take",
    "training",
    "tune",
    "verify",
    "vmap",
    "while_loop",
    "window",
]

_MOVED = {
    "Batch": "ampjax.frontend.batches.batch.Batch",
    "Batched": "ampjax.frontend.batched.Batched",
    "ClusterCost": "ampjax.simulation.ClusterCost",
    "Compiled": "ampjax.frontend.compile_model.Compiled",
    "FlopsCost": "ampjax.simulation.FlopsCost",
    "Graph": "ampjax.graphs.Graph",
    "HostedCost": "ampjax.simulation.HostedCost",
    "InstanceList": "ampjax.ir.instances.InstanceList",
    "Instances": "ampjax.ir.instances.Instances",
    "LaneFunction": "ampjax.lanes.lane_function.LaneFunction",
    "LaneReport": "ampjax.lanes.lane_report.LaneReport",
    "LinkTimes": "ampjax.simulation.LinkTimes",
    "Messages": "ampjax.graphs.Messages",
    "ProfileCost": "ampjax.simulation.ProfileCost",
    "RaggedRows": "ampjax.frontend.batches.ragged_results.RaggedRows",
    "Reports": "ampjax.frontend.batches.ragged_results.Reports",
    "State": "ampjax.ir.state.State",
    "Stragglers": "ampjax.simulation.Stragglers",
    "Topology": "ampjax.graphs.Topology",
    "backward_first": "ampjax.sched.decisions.policy.backward_first",
    "balanced": "ampjax.sched.decisions.policy.balanced",
    "bcast": "ampjax.ir.builders.control_builders.bcast",
    "collect": "ampjax.graphs.collect",
    "concat": "ampjax.graphs.concat",
    "discard": "ampjax.graphs.discard",
    "distribute": "ampjax.graphs.distribute",
    "flatmap": "ampjax.graphs.flatmap",
    "group": "ampjax.graphs.group",
    "isu": "ampjax.graphs.isu",
    "largest": "ampjax.sched.decisions.policy.largest",
    "loss": "ampjax.graphs.loss",
    "messages": "ampjax.graphs.messages",
    "npt": "ampjax.graphs.npt",
    "one_forward_one_backward": "ampjax.sched.decisions.policy.one_forward_one_backward",
    "phi": "ampjax.graphs.phi",
    "ppt": "ampjax.graphs.ppt",
    "pump": "ampjax.graphs.pump",
    "read_update_log": "ampjax.trace.update_log.read_update_log",
    "reduce": "ampjax.graphs.reduce",
    "relabel": "ampjax.graphs.relabel",
    "repeat": "ampjax.graphs.repeat",
    "replicate": "ampjax.graphs.replicate",
    "route_by": "ampjax.graphs.route_by",
    "sink": "ampjax.graphs.sink",
    "split": "ampjax.graphs.split",
    "topology": "ampjax.graphs.topology",
    "ungroup": "ampjax.graphs.ungroup",
    "wavefront": "ampjax.sched.decisions.policy.wavefront",
}
"""Names that were public up to version 0.2, and the new names of what they stand for."""


def _picture(graph: graphs.Graph) -> str:
    from ampjax.viz.graphs.graph_picture import (
        to_svg,
    )  # imports matplotlib: only when a graph is shown

    return to_svg(graph)


PICTURE.append(_picture)


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would take it for a promise of any name
    __getattr__ = finder(
        __name__,
        _MOVED,
        in_a_clone={name: f"experiments.{name}" for name in ("data", "models")},
    )
