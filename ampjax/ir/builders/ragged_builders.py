"""Nodes that make several messages of one, or one of several; and nodes on ragged messages, which hold any number of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ampjax.errors import GraphError
from ampjax.ir.builders.add_node import add_with_one_output
from ampjax.ir.graph import current_graph
from ampjax.ir.ops import control_nodes, ragged_nodes
from ampjax.ir.ops.payload_nodes import Collect, Reduce
from ampjax.ir.state import State, StateFn
from ampjax.ir.wires import Wire


def flatmap(
    wire: Wire,
    count: StateFn,
    state: Callable[[State, np.ndarray], State],
    name: str | None = None,
) -> Wire:
    """Sends each message several times, or not at all, each time with another state (arXiv version, §4).

    Args:
      wire: The messages.
      count: State function that says how many times; may be 0.
      state: `state(s, i)` gives the states of the messages that are sent, for `i = 0 ... count - 1`.
      name: The node's name.

    Returns:
      The messages that are sent.

    Raises:
      GraphError: If a function does not work on the states.
    """
    return add_with_one_output(
        control_nodes.Flatmap(count, state),
        (wire,),
        name=name,
    )


def repeat(
    wire: Wire,
    count: StateFn,
    name: str | None = None,
) -> Wire:
    """Turns each row into a ragged message of several equal rows.

    Args:
      wire: The messages.
      count: State function that says how many rows; may be 0.
      name: The node's name.

    Returns:
      The ragged messages, with the states of the rows.

    Raises:
      GraphError: If the function does not work on the states, or the wire is ragged already.
    """
    return add_with_one_output(ragged_nodes.Repeat(count), (wire,), name=name)


def group(
    wire: Wire,
    *,
    by: Sequence[str] | StateFn = (),
    size: StateFn,
    order: StateFn | None = None,
    opener: Wire | None = None,
    name: str | None = None,
) -> Wire:
    """Collects messages that share a key into one ragged message.

    Args:
      wire: The members.
      by: The fields that form the key, with the instance; or a keying function of the state.
      size: State function that says how many members a group has: of the opener's state if there is an opener, else of the members' states.
      order: State function that sorts a group's rows; by default the members' whole state.
      opener: A wire whose messages open groups, so that a group of size 0 is emitted at once; its state becomes the group's.
      name: The node's name.

    Returns:
      The groups, as ragged messages.

    Raises:
      GraphError: If a field is missing, or a function does not work on the states.
    """
    key = by if callable(by) else tuple(by)
    if opener is wire:
        raise GraphError(
            f"group `{name or 'group'}`",
            "an opener of its own",
            "the members' wire itself",
            "Leave the opener out: then the members' states give the size.",
        )
    wires = (wire,) if opener is None else (wire, opener)
    return add_with_one_output(
        ragged_nodes.Group(key, size, order, opener is not None),
        wires,
        name=name,
    )


def ungroup(
    wire: Wire,
    field: str | None = None,
    *,
    state: Callable[[State, np.ndarray], State] | None = None,
    name: str | None = None,
) -> Wire:
    """Emits one message per row of a ragged message.

    Args:
      wire: The ragged message.
      field: A state field that gets the row's number.
      state: Instead of `field`: `state(s, i)` gives the rows' states.
      name: The node's name.

    Returns:
      A message for each row.

    Raises:
      GraphError: If neither or both of `field` and `state` are given.
    """
    if (field is None) == (state is None):
        raise GraphError(
            "ungroup",
            "either `field` or `state`",
            "both" if field else "neither",
            "Say how the rows' states differ.",
        )
    make = state if state is not None else _SetField(str(field))
    return add_with_one_output(ragged_nodes.Ungroup(make), (wire,), name=name)


def distribute(
    wire: Wire,
    topology: Wire,
    n: int,
    name: str | None = None,
) -> tuple[Wire, ...]:
    """Sends rows of a ragged message to several wires by the instance's topology (ICLR version, figure 3).

    Args:
      wire: The ragged message.
      topology: The wire of a topology pump.
      n: Number of wires, for example one for each kind of edge.
      name: The node's name.

    Returns:
      The `n` wires, which carry ragged messages.

    Raises:
      GraphError: If the wire is not ragged, or `topology` is not the wire of a topology pump.
    """
    return (
        current_graph()
        .add(
            name,
            ragged_nodes.Distribute(n),
            (wire, topology),
            n,
        )
        .outputs
    )


def collect(
    wires: Sequence[Wire],
    topology: Wire,
    name: str | None = None,
) -> Wire:
    """Adds rows of several ragged messages into one by the instance's topology (ICLR version, figure 3).

    Args:
      wires: The ragged messages, with rows of one shape.
      topology: The wire of a topology pump.
      name: The node's name.

    Returns:
      Ragged messages of `n_rows` rows each, as the topology says.

    Raises:
      GraphError: If wires are not ragged or of different shapes, or `topology` is not the wire of a topology pump.
    """
    return add_with_one_output(Collect(), (*wires, topology), name=name)


def reduce(
    name: str,
    function: Callable[..., Any],
    wire: Wire,
) -> Wire:
    """Turns a ragged message into one row.

    Args:
      name: The node's name.
      function: `function(rows, segment_ids, n_segments)`, for example `jax.ops.segment_sum`; rows `[r, *shape]`, ids `[r]` sorted.
      wire: The ragged message.

    Returns:
      A message with one row for each ragged message.

    Raises:
      GraphError: If the wire is not ragged, or the function does not give a row for each segment.
    """
    return add_with_one_output(Reduce(function), (wire,), name=name)


class _SetField:
    """`state(s, i)` that puts the row's number into a field."""

    def __init__(self, field: str):
        self.field = field

    def __call__(self, s: State, i: np.ndarray) -> State:
        return s.replace(**{self.field: i})
