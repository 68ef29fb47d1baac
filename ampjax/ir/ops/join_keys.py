"""Keys: integers that are equal for messages that belong together, at joins and in groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampjax.errors import GraphError, MessageError
from ampjax.ir.state import StateFn, column, sample, try_function

if TYPE_CHECKING:
    from ampjax.ir.nodes import Node
    from ampjax.ir.wires import WireType

Key = tuple[str, ...] | StateFn | None
"""The key by which messages are joined or grouped: fields, a keying function, or (None) the whole state."""


def check_key(
    node: Node,
    port: int,
    by: tuple[str, ...] | StateFn | None,
    wire: WireType,
) -> None:
    """Checks a join's or group's key against one port's state fields.

    Args:
      node: The node.
      port: Its port.
      by: The key: fields, a keying function, or None for the whole state.
      wire: What the port's wire carries.

    Raises:
      GraphError: If a field is missing, or the keying function does not work.
    """
    if callable(by):
        states = sample(wire.fields)
        where = f"node `{node.name}`, port {port}, key"
        value = try_function(where, by, states)
        for part in value if isinstance(value, tuple) else (value,):
            try:
                column(where, part, len(states))
            except MessageError as error:
                raise GraphError(
                    error.where,
                    error.expected,
                    error.got,
                    error.fix,
                ) from None
        return
    missing = []
    for f in by or ():
        if f != "instance" and f not in wire.fields:
            missing.append(f)
    if missing:
        raise GraphError(
            f"node `{node.name}`, port {port}",
            f"a state with the field `{missing[0]}`, which the key names",
            f"the fields {('instance', *wire.fields)} from `{node.source_name(port)}`",
            "Pump the field, or take it out of the key.",
        )


def check_join(
    node: Node,
    types: tuple[WireType, ...],
    join: Key,
) -> tuple[str, ...]:
    """Checks that the inputs can be joined.

    Returns:
      The state fields of the result: those of port 0.

    Raises:
      GraphError: If a topology came where payload belongs, ragged and ordinary messages meet, or the states don't fit the key.
    """
    for port, wire in enumerate(types):
        if wire.topology:
            raise GraphError(
                f"node `{node.name}`, port {port}",
                "a payload",
                f"the topology pump `{node.source_name(port)}`",
                "Topologies drive distribute and collect only.",
            )
        if wire.ragged != types[0].ragged:
            raise GraphError(
                f"node `{node.name}`, port {port}",
                f"{'a ragged' if types[0].ragged else 'an ordinary'} message, as on port 0",
                f"{wire.payload} from `{node.source_name(port)}`",
                "Use `amp.graphs.repeat` to copy a row to every row of a ragged message.",
            )
        if join is None and not wire.same_schema(types[0]):
            raise GraphError(
                f"node `{node.name}`, port {port}",
                f"the state fields {sorted(types[0].fields)}, as on port 0 from `{node.source_name(0)}`",
                f"{sorted(wire.fields)} from `{node.source_name(port)}`",
                "Pump the missing fields, or say which fields to join on with `join=(...)`.",
            )
        check_key(node, port, join, wire)
    return types[0].fields
