"""Groups: messages that share a key become one ragged message, whose rows are theirs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.ops.ragged_nodes import Group
from ampjax.ir.state import HANDLE, INSTANCE, Layout, State, apply, column
from ampjax.plan.stages import Stage
from ampjax.unfold.rules.key_numbers import KeyNumbers


@dataclass(eq=False, slots=True)
class OpenGroup:
    """A group that is not complete yet."""

    size: int | None = None
    opener: int = 0
    state: np.ndarray | None = None
    members: list[tuple[np.ndarray, int]] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class CompleteGroup:
    """A complete group: its state `[width]`, its members' messages in row order, and its opener's message (0 for none)."""

    state: np.ndarray
    members: np.ndarray
    opener: int


class Groups:
    """The open groups of one group node.

    Args:
      stage: The group's stage.
      layout: The column of each state field.
    """

    def __init__(self, stage: Stage, layout: Layout):
        self.stage = stage
        self._layout = layout
        self._op: Group = stage.nodes[0].op
        self._where = f"node `{stage.name}`"
        self._fields = tuple(port.type.fields for port in stage.ports)
        self._keys = KeyNumbers(
            self._op.by,
            self._fields[0],
            layout,
            stage.name,
        )
        self.open: dict[tuple[int, ...], OpenGroup] = {}

    @property
    def waiting(self) -> int:
        """Messages that wait in open groups."""
        return sum(len(g.members) + (g.opener > 0) for g in self.open.values())

    def put(
        self,
        port: int,
        states: np.ndarray,
        messages: np.ndarray,
    ) -> list[CompleteGroup]:
        """Takes messages at a port.

        Args:
          port: 0 for members, 1 for openers.
          states: `[n, width]`: their states.
          messages: `[n]`: their numbers in the table.

        Returns:
          The groups that are complete now.

        Raises:
          MessageError: If a group is opened twice, gets more members than its size, or its size is negative or not agreed on.
        """
        # Sizes come from openers, or from members where there are none.
        sizes = None
        if port == 1 or not self._op.opened:
            where = f"{self._where}, size"
            state = State(states, self._layout, self._fields[port])
            sizes = column(
                where,
                apply(where, self._op.size, state),
                len(messages),
            ).tolist()
        closed = []
        keys = self._keys.values(states, self._fields[port])
        for i, (key, message) in enumerate(
            zip(map(tuple, keys.tolist()), messages.tolist(), strict=True)
        ):
            group = self.open.setdefault(key, OpenGroup())
            # The opener gives the group's state; members are collected in the order of arrival.
            if port == 1:
                if group.opener:
                    raise self._error(port, states[i], "one opener per key", "a second one")
                group.opener = message
                group.state = states[i]
            else:
                group.members.append((states[i], message))
            # Whoever names a size must agree with those before.
            if sizes is not None:
                if sizes[i] < 0 or (group.size not in (None, sizes[i])):
                    raise self._error(
                        port,
                        states[i],
                        "one size of at least 0 for all of a group",
                        f"{sizes[i]}" + ("" if group.size is None else f" after {group.size}"),
                    )
                group.size = sizes[i]
            # Checked before the group closes: one member too many would never close it.
            if group.size is not None and len(group.members) > group.size:
                raise self._error(
                    port,
                    states[i],
                    f"{group.size} members, the group's size",
                    f"{len(group.members)}",
                )
            # The key is free again for the next group.
            if group.size == len(group.members):
                del self.open[key]
                closed.append(self._close(group))
        return closed

    def _close(self, group: OpenGroup) -> CompleteGroup:
        messages = np.array(
            [message for _, message in group.members],
            np.int64,
        )
        states = np.array(
            [state for state, _ in group.members],
            np.int64,
        ).reshape(len(messages), self._layout.width)
        # Rows stand in the order that the user asked for, or else by state: not by arrival, which
        # depends on the schedule.
        if self._op.order is not None and len(messages):
            where = f"{self._where}, order"
            by = column(
                where,
                apply(
                    where,
                    self._op.order,
                    State(states, self._layout, self._fields[0]),
                ),
                len(messages),
            )
            rows = np.argsort(by, kind="stable")
        else:
            rows = np.lexsort(states.T[::-1])
        # The state: the opener's, or the key's fields, or the first row's.
        if group.state is not None:
            state = group.state
        elif isinstance(self._op.by, tuple):
            keep = [
                INSTANCE,
                HANDLE,
                *(self._layout.column(f) for f in self._op.by if f != "instance"),
            ]
            state = np.zeros(self._layout.width, np.int64)
            state[keep] = states[0, keep]
        else:
            state = states[rows[0]]
        return CompleteGroup(state, messages[rows], group.opener)

    def _error(
        self,
        port: int,
        state: np.ndarray,
        expected: str,
        got: str,
    ) -> MessageError:
        shown = State(state[None], self._layout, self._fields[port])
        return MessageError(
            f"{self._where}, port {self.stage.ports[port].name}",
            expected,
            f"{got}, with {shown!r}",
            "Let each group have a key of its own (`by`), and let its messages agree on its size.",
        )
