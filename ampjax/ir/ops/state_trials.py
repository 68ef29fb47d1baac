"""State functions are tried on sample states when a graph is built, so that mistakes show there."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ampjax.errors import GraphError, MessageError
from ampjax.ir.state import State, StateFn, column, sample, try_function

if TYPE_CHECKING:
    from ampjax.ir.nodes import Node


def try_on_samples(
    where: str,
    function: Callable[[State], Any],
    states: State,
) -> tuple[Any, State]:
    """Runs a state function on sample states; if that raises an IndexError, only on the first one, which is all zero.

    A state function may look up a table that is too small for the other samples.

    Returns:
      The function's result, and the samples that it is the result of.

    Raises:
      GraphError: If the function fails.
    """
    try:
        return try_function(where, function, states), states
    except GraphError as error:
        if not isinstance(error.__cause__, IndexError):
            raise
    first = states.take(np.array([0]))
    return try_function(where, function, first), first


def try_column(
    node: Node,
    role: str,
    function: StateFn,
    fields: tuple[str, ...],
) -> np.ndarray:
    """Tries a state function on samples and checks that the result is an integer column.

    Args:
      node: The node that it belongs to.
      role: What an error calls it.
      function: The state function.
      fields: The state fields of the messages that it will get.

    Returns:
      The column, `[n]` integers or truth values.

    Raises:
      GraphError: If it fails, or gives something else.
    """
    where = f"node `{node.name}`, {role}"
    value, states = try_on_samples(where, function, sample(fields))
    try:
        return column(where, value, len(states))
    except MessageError as error:
        raise GraphError(
            error.where,
            error.expected,
            error.got,
            error.fix,
        ) from None


def try_states(
    node: Node, role: str, function: Callable[..., Any], states: State
) -> tuple[State, State]:
    """Tries a function from states to states on samples.

    Returns:
      Its result, and the samples that it is the result of.

    Raises:
      GraphError: If it fails, or gives no states of the same instances.
    """
    where = f"node `{node.name}`, {role}"
    value, states = try_on_samples(where, function, states)
    if not isinstance(value, State) or len(value) != len(states):
        raise GraphError(
            where,
            "a State with as many rows as it was given",
            f"{type(value).__name__}",
            "Return `s.replace(...)` or `s.drop(...)`.",
        )
    if (value.instance != states.instance).any():
        raise GraphError(
            where,
            "states of the same instances, row by row",
            f"instances {value.instance.tolist()} for {states.instance.tolist()}",
            "Keep the rows in their order, and `instance` as it is.",
        )
    return value, states
