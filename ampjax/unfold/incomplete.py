"""Lists the messages that wait in joins, and the groups that are not complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ampjax.ir.state import State
from ampjax.plan.planner import Plan
from ampjax.plan.stages import Stage
from ampjax.unfold.rules.groups import Groups


@dataclass(frozen=True, eq=False)
class Waiting:
    """A message that waits in a join, or an open group.

    Args:
      stage: Where.
      state: Its state (one row); of a group, its first member's or its opener's.
      port: Where it stands.
      missing: The ports on which messages are missing.
      what: What it waits for, in words.
    """

    stage: Stage
    state: State
    port: int
    missing: tuple[int, ...]
    what: str

    def __str__(self) -> str:
        if not self.stage.kind.is_dispatched:
            return f"group `{self.stage.name}` with {self.state!r} waits for {self.what}"
        return f"node `{self.stage.name}` has {self.state!r} on port {self.stage.ports[self.port].name} and waits for {self.what}"


def missing_ports(stage: Stage, ports: Iterable[int]) -> str:
    """Describes the ports that a message in a join waits for.

    Args:
      stage: Its stage.
      ports: The ports on which messages of its key are missing.

    Returns:
      Part of a sentence.
    """
    return "the same key on port " + " or ".join(stage.ports[port].name for port in ports)


def missing_members(n: int, size: int | None) -> str:
    """Describes the members that an open group waits for.

    Args:
      n: How many members are missing.
      size: How many members it will have; None if its opener is missing.

    Returns:
      Part of a sentence.
    """
    return "its opener" if size is None else f"{n} more of {size} member(s)"


class HasPending(Protocol):
    """A join, as far as its waiting messages can be asked for."""

    def pending(self) -> list[tuple[int, np.ndarray, int]]:
        """Lists the messages that wait.

        Returns:
          `(port, state [width], message)` of each message, by port and key.
        """
        ...

    def key(
        self,
        port: int,
        state: np.ndarray,
    ) -> tuple[int, ...]:
        """The key of a message at a port.

        Args:
          port: The port's number.
          state: `[width]`: the message's state.

        Returns:
          Integers; the first is the instance's handle.
        """
        ...


def find_waiting(
    plan: Plan,
    joins: Mapping[int, HasPending],
    groups: Mapping[int, Groups],
) -> list[Waiting]:
    """Finds the messages that wait in joins, one for each key, and the open groups.

    Returns:
      Who waits, and for what.
    """
    result = []
    for number, join in joins.items():
        stage = plan.stages[number]
        by_key: dict[tuple[int, ...], dict[int, np.ndarray]] = {}
        for port, state, _ in join.pending():
            by_key.setdefault(join.key(port, state), {})[port] = state
        for states in by_key.values():
            port = min(states)
            missing = tuple(i for i in range(len(stage.ports)) if i not in states)
            state = _state(plan, stage, port, states[port])
            result.append(Waiting(stage, state, port, missing, missing_ports(stage, missing)))
    for collecting in groups.values():
        stage = collecting.stage
        for group in collecting.open.values():
            missing = (1,) if group.size is None else (0,)
            what = missing_members(
                (group.size or 0) - len(group.members),
                group.size,
            )
            if group.members:
                port = 0
                array = group.members[0][0]
            else:
                port = 1
                array = group.state
            assert array is not None
            result.append(
                Waiting(
                    stage,
                    _state(plan, stage, port, array),
                    port,
                    missing,
                    what,
                )
            )
    return result


def _state(
    plan: Plan,
    stage: Stage,
    port: int,
    array: np.ndarray,
) -> State:
    return State(
        array[None],
        plan.layout,
        stage.ports[port].type.fields,
    )
