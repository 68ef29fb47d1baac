"""Wires between nodes, fully typed when the graph is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from ampjax.ir.nodes import Node


@dataclass(frozen=True)
class WireType:
    """The type of a wire: payloads and state fields.

    Args:
      shape: The payload's shape for one row.
      dtype: The payload's dtype.
      fields: The state fields, without `instance`; as a set: the order does not matter.
      ragged: True if a message holds any number of rows (after `group`, `distribute`, a ragged pump).
      topology: True for a pump of `Topology` maps, which only drives `distribute` and `collect`.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    fields: tuple[str, ...] = ()
    ragged: bool = False
    topology: bool = False

    @property
    def is_float(self) -> bool:
        """Whether payloads are floats, and so can have a gradient."""
        return jnp.issubdtype(self.dtype, jnp.inexact)

    @property
    def payload(self) -> str:
        """The payload in words, for messages."""
        if self.topology:
            return "topology"
        return f"{'rows of ' if self.ragged else ''}shape {self.shape} {self.dtype}"

    def same_schema(self, other: WireType) -> bool:
        """Whether both carry the same state fields."""
        return set(self.fields) == set(other.fields)

    def __str__(self) -> str:
        if self.topology:
            return "topology"
        dims = (
            "×".join(
                map(
                    str,
                    (("n",) if self.ragged else ()) + self.shape,
                )
            )
            or "scalar"
        )
        return f"{dims} {self.dtype}" + (f" {{{', '.join(self.fields)}}}" if self.fields else "")


@dataclass(eq=False)
class Wire:
    """One output of a node. A second use of a wire is a Bcast.

    `type` is known once the graph is closed (for most nodes: at once). What travels on a discarded wire ends there, answered with a zero
    gradient; `predict` does not return it.
    """

    source: Node
    port: int
    type: WireType | None = None
    consumers: list[tuple[Node, int]] = field(default_factory=list)
    discarded: bool = False

    @property
    def name(self) -> str:
        """The source node's name, with the output's number where there are several."""
        return (
            self.source.name
            if len(self.source.outputs) == 1
            else f"{self.source.name}[{self.port}]"
        )

    @property
    def is_topology(self) -> bool:
        """Whether a pump of `Topology` maps is its source."""
        return self.type is not None and self.type.topology

    def __repr__(self) -> str:
        return f"Wire({self.name}: {self.type if self.type else 'not typed yet'})"
