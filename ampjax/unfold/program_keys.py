"""Numbers that tell programs apart: two instances with the same numbers have the same program."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ampjax.ir.graph import Graph
from ampjax.ir.instances import Messages, Topology
from ampjax.ir.wires import WireType
from ampjax.unfold.rules.pumped import find_pump, pumps_of, require_fields

POSITION, PUMP, PUMPED_ROWS, FIELDS = range(4)
"""Columns of what is pumped.

POSITION: The instance's position in the batch.
PUMP: The pump, as a number of a stage.
PUMPED_ROWS: The rows that are pumped.
FIELDS: From here on the pump's own fields, or the identity of a topology.
"""


class PumpedNumbers:
    """Turns pumped messages into numbers, without looking at payloads.

    Topologies are told apart as objects; who remembers an instance by its numbers keeps `topologies_of` too, so that no other object takes their place.

    Args:
      graph: The graph.
    """

    def __init__(self, graph: Graph):
        pumps = pumps_of(graph)
        width = FIELDS + max((len(wire.fields) for _, wire in pumps.values()), default=0)
        self._pumps: dict[str, tuple[WireType, frozenset[str], np.ndarray]] = {}
        for name, (number, wire) in pumps.items():
            line = np.zeros(max(width, FIELDS + 1), np.int64)
            line[PUMP] = number
            line[PUMPED_ROWS] = not wire.topology
            self._pumps[name] = wire, frozenset(wire.fields), line
        self._table = np.zeros(
            (64, max(width, FIELDS + 1)),
            np.int64,
        )

    def of(
        self,
        batch: Mapping[str, Messages],
    ) -> tuple[np.ndarray, int]:
        """Gives the numbers of a batch.

        Returns:
          `[m, columns]` int64: a line for each message, pump by pump, which hold until this is called again; and how many rows are pumped.

        Raises:
          MessageError: If a pump is unknown, or a state field is missing or not known.
        """
        m = sum([len(messages.instance) for messages in batch.values()])
        # One buffer for all batches, with room to spare.
        if m > len(self._table):
            self._table = np.zeros(
                (2 * m, self._table.shape[1]),
                np.int64,
            )
        at = n_rows = 0
        for name, messages in batch.items():
            wire, fields, line = find_pump(self._pumps, name)
            n = len(messages.instance)
            # A pump's lines begin as its pattern; then the columns that differ are filled in.
            lines = self._table[at : at + n]
            lines[:] = line
            lines[:, POSITION] = messages.instance
            at += n
            # A topology counts as an object, and has no rows.
            if wire.topology:
                lines[:, FIELDS] = [id(topology) for topology in messages.payload]
                continue
            require_fields(name, wire, fields, messages)
            if wire.ragged:
                lines[:, PUMPED_ROWS] = sizes = np.asarray(messages.sizes)
                n = int(sizes.sum())
            n_rows += n
            for column, field in enumerate(wire.fields, FIELDS):
                lines[:, column] = messages.fields[field]
        return self._table[:m], n_rows


def topologies_of(
    batch: Mapping[str, Messages],
    k: int,
) -> list[list[Topology]]:
    """Finds the topologies that are pumped for instances.

    Returns:
      A list for each instance.
    """
    result: list[list[Topology]] = [[] for _ in range(k)]
    for messages in batch.values():
        if isinstance(messages.payload, list):
            for place, one in zip(messages.instance.tolist(), messages.payload, strict=True):
                if isinstance(one, Topology):
                    result[place].append(one)
    return result
