"""The pumps of a random graph, and the instances that are drawn for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from support.random_graphs.chance import Chance
from support.random_graphs.domains import Domain, OpenWire
from support.random_graphs.palette import FEATURES

from ampjax.ir import builders as amp
from ampjax.ir.instances import Topology, messages
from ampjax.ir.wires import Wire

KINDS = "float", "token", "ragged", "label"
"""Pumps of four floats a message, of an integer in `[0, 4)`, of any number of rows of four floats, of an integer as a label."""

INTEGERS = "token", "label"


@dataclass(frozen=True)
class PumpGroup:
    """Pumps whose messages have the same states in each instance.

    Args:
      domain: Their states.
      pumps: The name and the kind of each.
    """

    domain: Domain
    pumps: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class TopologyPump:
    """A pump of maps that say which rows `distribute` sends along which kind of edge.

    Args:
      wire: Its wire.
      rows_of: The ragged pump whose rows are distributed.
      n_kinds: Kinds of edges.
      n_rows: Rows that are collected; None for as many as were distributed.
    """

    wire: Wire
    rows_of: str
    n_kinds: int
    n_rows: int | None


class RandomPumps:
    """Adds pumps to a graph that is being built; then draws instances for them.

    Args:
      chance: Makes the choices.
      dtype: Of float payloads.

    Attributes:
      groups: Pumps with one message per instance; and, often, pumps with several.
      topologies: Pumps of topologies, by name.
    """

    def __init__(self, chance: Chance, dtype: str):
        self._chance = chance
        self._dtype = dtype
        shapes = [("a", "b"), ("a",), ()]
        self.groups = [
            PumpGroup(
                Domain(
                    "one",
                    chance.pick(shapes),
                    1,
                    True,
                    0,
                )
            )
        ]
        if chance.happens(0.7):
            self.groups.append(
                PumpGroup(
                    Domain(
                        "many",
                        ("i", *chance.pick(shapes)),
                        4,
                        False,
                        1,
                    )
                )
            )
        self.topologies: dict[str, TopologyPump] = {}

    def add(self, group: int, kind: str, name: str) -> OpenWire:
        """Adds a pump.

        Args:
          group: The number of the group that it belongs to.
          kind: One of `KINDS`.
          name: Its name.
        """
        domain = self.groups[group].domain
        pumps = self.groups[group].pumps
        pumps.append((name, kind))
        if kind in INTEGERS:
            shape = ()
            dtype = "int32"
        else:
            shape = (FEATURES,)
            dtype = self._dtype
        wire = amp.pump(
            name,
            shape,
            dtype,
            domain.fields,
            ragged=kind == "ragged",
        )
        return OpenWire(wire, domain, ("pump", name) if kind == "ragged" else None)

    def add_topology(self, name: str, rows_of: str) -> None:
        """Adds a pump of topologies.

        Args:
          name: Its name.
          rows_of: The ragged pump whose rows are distributed.
        """
        if self._chance.happens(0.2):
            n_rows = self._chance.integer(0, 4)
        else:
            n_rows = None
        self.topologies[name] = TopologyPump(
            amp.topology(name),
            rows_of,
            self._chance.integer(1, 4),
            n_rows,
        )

    @property
    def single(self) -> set[str]:
        """The names of pumps with exactly one message per instance."""
        result = set()
        for group in self.groups:
            if group.domain.single:
                for name, _ in group.pumps:
                    result.add(name)
        return result

    def draw_instance(self) -> dict[str, Any]:
        """One instance: its messages, or its topology, by pump."""
        chance = self._chance
        instance = dict[str, Any]()
        n_ragged = dict[str, int]()
        for group in self.groups:
            domain = group.domain
            if domain.single:
                n = 1
            else:
                n = int(
                    chance.rng.choice(
                        5,
                        p=[0.1, 0.3, 0.25, 0.2, 0.15],
                    )
                )
            fields = {}
            for f in domain.fields:
                if f == "i":
                    fields[f] = np.arange(n)
                else:
                    fields[f] = chance.rng.integers(0, 6, n)
            for name, kind in group.pumps:
                if kind == "ragged":
                    sizes = chance.rng.integers(0, 5, n)
                else:
                    sizes = None
                payload = self._draw_payload(
                    kind,
                    n if sizes is None else int(sizes.sum()),
                )
                instance[name] = messages(payload, sizes=sizes, **fields)
                if sizes is not None and domain.single:
                    n_ragged[name] = int(sizes[0])
        for name, topology in self.topologies.items():
            instance[name] = self._draw_topology(topology, n_ragged[topology.rows_of])
        return instance

    def _draw_topology(self, pump: TopologyPump, n_node: int) -> Topology:
        chance = self._chance
        n_kinds = pump.n_kinds
        n_rows = n_node if pump.n_rows is None else pump.n_rows
        if pump.n_rows is None and chance.happens(0.3):
            return Topology.from_kinds(chance.rng.integers(0, n_kinds, n_node), n_kinds)
        n_edge = chance.integer(0, 7) if n_node and n_rows else 0
        senders, receivers = (chance.rng.integers(0, max(n, 1), n_edge) for n in (n_node, n_rows))
        kinds = chance.rng.integers(0, n_kinds, n_edge)
        return Topology.from_edges(senders, receivers, kinds, n_rows, n_kinds)

    def _draw_payload(self, kind: str, n: int) -> np.ndarray:
        if kind in INTEGERS:
            return self._chance.rng.integers(0, FEATURES, n).astype(np.int32)
        return self._chance.rng.standard_normal((n, FEATURES)).astype(self._dtype)
