"""Graphs by hand: the graph, the functions to add nodes with, and the messages for its pumps."""

from typing import TYPE_CHECKING

from ampjax.ir.builders import (
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
from ampjax.ir.instances import Messages, Topology, messages
from ampjax.moved_names import finder

__all__ = [
    "Graph",
    "Messages",
    "Topology",
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

_MOVED = {
    "InstanceList": "ampjax.ir.instances.InstanceList",
    "Instances": "ampjax.ir.instances.Instances",
    "State": "ampjax.ir.state.State",
    "bcast": "ampjax.ir.builders.control_builders.bcast",
}
"""Names that were public up to version 0.2, and the new names of what they stand for."""


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would take it for a promise of any name
    __getattr__ = finder(__name__, _MOVED)
