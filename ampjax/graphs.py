"""Graphs by hand: the graph, the functions to add nodes with, and the messages for its pumps."""

from ampjax.ir.builders import (
    bcast,
    collect,
    concat,
    cond,
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
from ampjax.ir.graph import Graph
from ampjax.ir.instances import InstanceList, Instances, Messages, Topology, messages
from ampjax.ir.state import State

__all__ = [
    "Graph",
    "InstanceList",
    "Instances",
    "Messages",
    "State",
    "Topology",
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
    "messages",
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


def __dir__() -> list[str]:
    return __all__
