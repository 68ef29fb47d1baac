"""States of single messages, and state functions evaluated on one message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.ir.ops.join_keys import Key
from ampjax.ir.state import Layout, State, apply, column

StateDict = dict[str, int]
"""One message's state: `instance` and the fields, by name."""

StateKey = tuple[tuple[str, int], ...]
"""The same, to be compared and hashed."""


def state_key(state: StateDict) -> StateKey:
    """A state as a key: names and values, in order of names."""
    return tuple(sorted(state.items()))


@dataclass(frozen=True)
class StateFunctions:
    """Evaluates user-written functions of a state for one message.

    Args:
      layout: The state fields of the graph.
    """

    layout: Layout

    def view(self, state: StateDict) -> State:
        """Builds a state in the form of user functions: one row."""
        fields = tuple(name for name in state if name != "instance")
        array = np.zeros((1, self.layout.width), np.int64)
        for name, value in state.items():
            array[0, self.layout.column(name)] = value
        return State(array, self.layout, fields)

    def integer(
        self,
        where: str,
        function: Callable[[State], Any],
        state: StateDict,
    ) -> int:
        """Evaluates a function that gives an integer.

        Raises:
          MessageError: If the function fails, or gives no integer.
        """
        return int(column(where, apply(where, function, self.view(state)), 1)[0])

    def after(
        self,
        where: str,
        function: Callable[[State], State],
        state: StateDict,
    ) -> StateDict:
        """Evaluates a function that makes a state of a state.

        Raises:
          MessageError: If the function fails, or gives no state.
        """
        result = apply(where, function, self.view(state))
        results = {}
        for name in ("instance", *result.fields):
            results[name] = int(getattr(result, name)[0])
        return results

    def evaluate_numbered(
        self,
        where: str,
        function: Callable[..., State],
        state: StateDict,
        i: int,
    ) -> StateDict:
        """Evaluates `function(state, i)`, which makes a state.

        Raises:
          MessageError: If the function fails, or gives no state.
        """
        return self.after(
            where,
            lambda s: function(s, np.array([i])),
            state,
        )

    def join_key(self, node: str, by: Key, state: StateDict) -> Any:
        """Computes the key that messages of one join share at a node.

        Args:
          node: The node's name.
          by: Fields, a keying function, or None for the whole state.
          state: The message's state.

        Raises:
          MessageError: If the keying function fails, or gives anything but integers.
        """
        if by is None:
            return state_key(state)
        if not callable(by):
            return tuple(state[name] for name in by)
        where = f"node `{node}`, key"
        value = apply(where, by, self.view(state))
        result = []
        for part in value if isinstance(value, tuple) else (value,):
            result.append(int(column(where, part, 1)[0]))
        return tuple(result)
