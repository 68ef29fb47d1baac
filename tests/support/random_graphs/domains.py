"""What is known of the wires of a random graph while it grows: the exact set of states that their messages have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ampjax.ir.wires import Wire

MAX_WIDTH = 8
"""Messages of one instance on one wire, at most."""


@dataclass(frozen=True)
class Domain:
    """A set of states: equal domains have equal states in every instance.

    Args:
      key: What it was derived from; equal keys mean equal sets.
      fields: The state fields.
      width: Messages of one instance, at most.
      single: Exactly one message per instance.
      base: Number of the pump group whose messages stand in a 1 : 1 relation to these, by that group's unique fields; None if there is
        none.
    """

    key: Any
    fields: tuple[str, ...]
    width: int
    single: bool
    base: int | None = None


@dataclass(frozen=True)
class OpenWire:
    """A wire to build on: its domain, and for ragged wires what its row counts are derived from (None: not ragged)."""

    wire: Wire
    domain: Domain
    rows: Any = None

    def like(self, wire: Wire) -> OpenWire:
        """The same, for another wire with the same states and rows."""
        return replace(self, wire=wire)

    def fits(self, other: OpenWire) -> bool:
        """Whether the two can be joined message by message and row by row."""
        return (self.domain.key, self.rows) == (other.domain.key, other.rows)


def flattened(
    domain: Domain,
    rows: Any,
    most: int,
    name: str,
) -> Domain:
    """Describes the states that a flatmap, an ungroup or a loop makes: those of a domain, numbered from 0 in one more field.

    Args:
      domain: The states that they are made of.
      rows: What the number of states is derived from.
      most: States that one becomes, at most.
      name: The field that numbers them.
    """
    return Domain(
        ("flat", domain.key, rows, name),
        (*domain.fields, name),
        max(domain.width * most, 1),
        False,
    )
