"""Messages whose payloads decide on their routes, kept until their choices are known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampjax.ir.ops.payload_nodes import RouteBy
from ampjax.ir.state import Layout, State
from ampjax.plan.planner import Plan
from ampjax.unfold.rules.message_columns import MessageTable
from ampjax.unfold.rules.routes import MessageBatch

Part = tuple[np.ndarray, np.ndarray]
"""The states `[n, width]` of some messages, and their numbers `[n]` in the table."""


class AwaitedChoices:
    """The messages of nodes that route by payload, whose payloads have not been read.

    Args:
      plan: The plan.
      layout: The column of each state field.
      table: The messages.
    """

    def __init__(self, plan: Plan, layout: Layout, table: MessageTable):
        self._plan = plan
        self._layout = layout
        self._table = table
        self._parts: dict[int, list[Part]] = {}

    def __bool__(self) -> bool:
        return bool(self._parts)

    @property
    def states(self) -> dict[int, np.ndarray]:
        """For each stage that has asked, the states `[n, width]` of the messages that wait, in order."""
        result = {}
        for number, parts in self._parts.items():
            result[number] = np.concatenate([states for states, _ in parts])
        return result

    def add(
        self,
        number: int,
        states: np.ndarray,
        messages: np.ndarray,
    ) -> None:
        """Lets messages wait.

        Args:
          number: The stage that has made them.
          states: `[n, width]`: their states.
          messages: `[n]`: their numbers in the table.
        """
        self._parts.setdefault(number, []).append((states, messages))

    def take_all(self, number: int, chosen: np.ndarray) -> MessageBatch:
        """Takes all messages of a stage.

        Args:
          number: The stage.
          chosen: `[n]` or `[n, names]`: what has been decided for each, in order.

        Returns:
          The messages, with the choices in their states.
        """
        return self._write_choices(
            number,
            *join_parts(self._parts.pop(number)),
            chosen,
        )

    def take(
        self,
        number: int,
        invocations: np.ndarray,
        chosen: np.ndarray | None,
    ) -> MessageBatch:
        """Takes some messages of a stage.

        Args:
          number: The stage.
          invocations: `[n]`: which invocations have made them.
          chosen: `[n]` or `[n, names]`: what has been decided for each; None takes what its node assumes.

        Returns:
          The messages, with the choices in their states.

        Raises:
          MessageError: As `RouteBy.assumed` does.
        """
        states, messages = join_parts(self._parts.pop(number))
        owners = self._table.owner[messages]
        # The messages that these invocations have made, in the invocations' order.
        order = np.argsort(owners)
        mine = order[np.searchsorted(owners, invocations, sorter=order)]
        # The others wait on, in their old order.
        left = np.delete(np.arange(len(messages)), mine)
        if len(left):
            self._parts[number] = [(states[left], messages[left])]
        states = states[mine]
        messages = messages[mine]
        return self._write_choices(
            number, states, messages, self.assumed(number, states) if chosen is None else chosen
        )

    def assumed(self, number: int, states: np.ndarray) -> np.ndarray:
        """Gives the choices that a node assumes where nothing is computed.

        Args:
          number: The node's stage.
          states: `[n, width]`: the states of messages.

        Returns:
          `[n]` or `[n, names]`: the choices.

        Raises:
          MessageError: As `RouteBy.assumed` does.
        """
        stage = self._plan.stages[number]
        op: RouteBy = stage.nodes[-1].op
        return op.assumed(
            f"node `{stage.name}`",
            State(states, self._layout, stage.ports[0].type.fields),
        )

    def _write_choices(
        self,
        number: int,
        states: np.ndarray,
        messages: np.ndarray,
        chosen: np.ndarray,
    ) -> MessageBatch:
        """Writes choices into the states of messages."""
        op: RouteBy = self._plan.stages[number].nodes[-1].op
        columns = [self._plan.layout.column(name) for name in op.names]
        states[:, columns] = np.asarray(chosen).reshape(
            len(states),
            len(columns),
        )
        return MessageBatch(states, messages)


def join_parts(parts: Sequence[Part]) -> Part:
    """Joins the states and the numbers of messages.

    Args:
      parts: One after the other.

    Returns:
      All states `[n, width]`, and all numbers `[n]`.
    """
    return np.concatenate([states for states, _ in parts]), np.concatenate(
        [messages for _, messages in parts]
    )
