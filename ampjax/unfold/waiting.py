"""Who waits for what: messages in joins, and groups that are not complete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ampjax.ir.state import State
from ampjax.sched.plan import Plan
from ampjax.sched.stages import Stage
from ampjax.unfold.group import Groups


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
        if self.stage.kind == "group":
            return f"group `{self.stage.name}` with {self.state!r} waits for {self.what}"
        return f"node `{self.stage.name}` has {self.state!r} on port {self.stage.ports[self.port].name} and waits for {self.what}"


class Pending(Protocol):
    """A join, as far as it tells what waits in it."""

    def pending(self) -> list[tuple[int, np.ndarray, int]]:
        """`(port, state [width], message)` of each message that waits, by port and key."""
        ...

    def key(self, port: int, state: np.ndarray) -> tuple[int, ...]:
        """The key of a message at a port."""
        ...


def find_waiting(plan: Plan, joins: Mapping[int, Pending], groups: Mapping[int, Groups]) -> list[Waiting]:
    """The messages that wait in joins, one for each key, and the open groups."""
    found = []
    for number, join in joins.items():
        stage = plan.stages[number]
        by_key: dict[tuple[int, ...], dict[int, np.ndarray]] = {}
        for port, state, _ in join.pending():
            by_key.setdefault(join.key(port, state), {})[port] = state
        for there in by_key.values():
            port = min(there)
            missing = tuple(i for i in range(len(stage.ports)) if i not in there)
            what = "the same key on port " + " or ".join(stage.ports[i].name for i in missing)
            found.append(Waiting(stage, _state(plan, stage, port, there[port]), port, missing, what))
    for collecting in groups.values():
        stage = collecting.stage
        for group in collecting.open.values():
            missing = (1,) if group.size is None else (0,)
            n = 0 if group.size is None else group.size - len(group.members)
            what = "its opener" if group.size is None else f"{n} more of {group.size} member(s)"
            port, array = (0, group.members[0][0]) if group.members else (1, group.state)
            assert array is not None
            found.append(Waiting(stage, _state(plan, stage, port, array), port, missing, what))
    return found


def _state(plan: Plan, stage: Stage, port: int, array: np.ndarray) -> State:
    return State(array[None], plan.layout, stage.ports[port].type.fields)
