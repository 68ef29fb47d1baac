"""The builder functions that a user calls inside `with amp.graphs.Graph():`."""

from ampjax.ir.builders.control_builders import bcast, cond, isu, phi, relabel, route_by
from ampjax.ir.builders.payload_builders import NodeBuilder, concat, loss, npt, ppt, split
from ampjax.ir.builders.pump_builders import discard, pump, sink, topology
from ampjax.ir.builders.ragged_builders import (
    collect,
    distribute,
    flatmap,
    group,
    reduce,
    repeat,
    ungroup,
)
from ampjax.ir.builders.replicate_builder import replicate

__all__ = [
    "NodeBuilder",
    "bcast",
    "collect",
    "concat",
    "cond",
    "discard",
    "distribute",
    "flatmap",
    "group",
    "isu",
    "loss",
    "npt",
    "phi",
    "ppt",
    "pump",
    "reduce",
    "relabel",
    "repeat",
    "replicate",
    "route_by",
    "sink",
    "split",
    "topology",
    "ungroup",
]
