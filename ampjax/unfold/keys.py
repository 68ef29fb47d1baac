"""What tells programs apart: for two instances the same will happen if these numbers are the same."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ampjax.ir.graph import Graph
from ampjax.ir.instances import Messages, Topology
from ampjax.sched.pump import require_fields
from ampjax.unfold.pumped import find_pump, pumps_of

PLACE, PUMP, N_ROWS, FIELDS = range(4)
"""Columns: the instance's position among the batch's; the pump's number; the rows that are pumped; from here on the pump's own fields, or a topology."""


class PumpedNumbers:
    """The numbers of batches. Payloads are not looked at.

    Topologies are told apart as objects; who remembers an instance by its numbers keeps `topologies_of` too, so that no other object takes their place.

    Args:
      graph: The graph.
    """

    def __init__(self, graph: Graph):
        self._pumps = {name: (*found, frozenset(found[1].fields)) for name, found in pumps_of(graph).items()}
        widest = max((len(wire.fields) for _, wire, _ in self._pumps.values()), default=0)
        self._table = np.zeros((64, FIELDS + max(1, widest)), np.int64)

    def of(self, batch: Mapping[str, Messages]) -> np.ndarray:
        """`[m, columns]`: a line for each message, pump by pump; they hold until this is called again.

        Raises:
          MessageError: If a pump is unknown, or a state field is missing or not known.
        """
        m = sum([len(messages.instance) for messages in batch.values()])
        if m > len(self._table):
            self._table = np.zeros((2 * m, self._table.shape[1]), np.int64)
        at = 0
        for name, messages in batch.items():
            number, wire, fields = find_pump(self._pumps, name)
            lines = self._table[at : at + len(messages.instance)]
            lines[:] = 0
            lines[:, PLACE], lines[:, PUMP] = messages.instance, number
            if wire.topology:
                lines[:, FIELDS] = [id(topology) for topology in messages.payload]
            else:
                require_fields(name, wire, fields, messages)
                lines[:, N_ROWS] = np.asarray(messages.sizes) if wire.ragged else 1
                for column, field in enumerate(wire.fields, FIELDS):
                    lines[:, column] = messages.fields[field]
            at += len(lines)
        return self._table[:m]


def topologies_of(batch: Mapping[str, Messages], k: int) -> list[list[Topology]]:
    """The topologies that are pumped for each of `k` instances."""
    found: list[list[Topology]] = [[] for _ in range(k)]
    for messages in batch.values():
        if isinstance(messages.payload, list):
            for place, one in zip(messages.instance.tolist(), messages.payload, strict=True):
                if isinstance(one, Topology):
                    found[place].append(one)
    return found
