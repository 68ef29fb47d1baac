"""Pumped messages, checked against the graph's pumps and turned into states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.graph import Graph
from ampjax.ir.instances import Messages
from ampjax.ir.state import HANDLE, INSTANCE, Layout
from ampjax.ir.wires import WireType

T = TypeVar("T")


def pumps_of(graph: Graph) -> dict[str, tuple[int, WireType]]:
    """Lists the pumps of a graph.

    Returns:
      By name, the pump's number as a producer, `-1 - p`, and the type of what it pumps.
    """
    result = {}
    for i, (name, node) in enumerate(graph.pumps.items()):
        result[name] = (-1 - i, node.op.type)
    return result


def find_pump(pumps: Mapping[str, T], name: str) -> T:
    """Finds the entry of a pump.

    Returns:
      What is known of it.

    Raises:
      MessageError: If there is none of that name.
    """
    if name not in pumps:
        raise MessageError(
            f"pump `{name}`",
            f"one of the graph's pumps {sorted(pumps)}",
            "an unknown name",
            "Name the pumps of the graph in the instance.",
        )
    return pumps[name]


class PumpedStates:
    """Turns pumped columns into states.

    Args:
      layout: The column of each state field.
      pumps: The graph's pumps (`pumps_of`).
      ids: `[n]`: the numbers of the instances.
    """

    def __init__(
        self,
        layout: Layout,
        pumps: Mapping[str, tuple[int, WireType]],
        ids: np.ndarray,
    ):
        self._layout = layout
        self._pumps = pumps
        self._ids = ids

    def find(self, name: str) -> tuple[int, WireType]:
        """Finds a pump.

        Returns:
          Its number as a producer, and the type of what it pumps.

        Raises:
          MessageError: If there is none of that name.
        """
        return find_pump(self._pumps, name)

    def states(self, name: str, messages: Messages) -> np.ndarray:
        """Makes the states of pumped messages.

        Args:
          name: The pump's name.
          messages: The messages; `instance` counts places among the instances, which are their handles here.

        Returns:
          `[m, width]` int64.

        Raises:
          MessageError: If a state field is missing or not known, or a ragged pump's sizes are missing.
        """
        _, wire = self.find(name)
        require_fields(name, wire, frozenset(wire.fields), messages)
        states = np.zeros(
            (len(messages.instance), self._layout.width),
            np.int64,
        )
        states[:, HANDLE] = messages.instance
        states[:, INSTANCE] = self._ids[messages.instance]
        for field, values in messages.fields.items():
            states[:, self._layout.column(field)] = values
        return states


def require_fields(
    name: str,
    wire: WireType,
    fields: frozenset[str],
    messages: Messages,
) -> None:
    """Checks that messages have their pump's state fields, and sizes if the pump is ragged.

    Raises:
      MessageError: If a state field is missing or not known, or a ragged pump's sizes are missing.
    """
    if messages.fields.keys() != fields:
        raise MessageError(
            f"pump `{name}`",
            f"messages with the state fields {sorted(wire.fields)}",
            f"{sorted(messages.fields)}",
            "Pump each declared field, and no other.",
        )
    if wire.ragged and messages.sizes is None:
        raise MessageError(
            f"pump `{name}`",
            "sizes, the rows of each message of a ragged pump",
            "none",
            "Give `Messages.sizes`.",
        )
