"""Explanations: what happened to a message, who waits for what, what has no room."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ampjax.errors import LimitError
from ampjax.ir.state import INSTANCE, State
from ampjax.sched.dispatch import Dispatch
from ampjax.sched.group import Groups
from ampjax.sched.plan import Plan
from ampjax.sched.queues import Queue
from ampjax.sched.slots import SlotPool
from ampjax.sched.stages import Stage


def story(plan: Plan, history: Iterable[Dispatch], instance: int, fields: Mapping[str, int]) -> list[str]:
    """One line for each dispatch that held messages of an instance with these state fields."""
    lines = []
    for d in history:
        mask = d.states[:, INSTANCE] == instance
        for name, value in fields.items():
            mask &= d.states[:, plan.layout.column(name)] == value
        if d.stage is not None and mask.any():
            state = State(d.states[mask][:1], plan.layout, d.stage.ports[0].type.fields)
            more = f" and {int(mask.sum()) - 1} more" if mask.sum() > 1 else ""
            lines.append(f"dispatch {d.number}: {d.direction} `{d.stage.name}` on worker {d.worker}, {state!r}{more}")
    return lines


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


def no_room(queue: Queue, pools: Sequence[SlotPool], in_flight: int) -> LimitError:
    """That the oldest message of a queue has no room, and nothing else can move."""
    stage = queue.stage
    number, pool = min(enumerate(pools), key=lambda item: item[1].room)
    key = stage.arenas[number]
    return LimitError(
        f"instance {int(queue.first.states[0, INSTANCE])}, stage `{stage.name}`",
        f"room for its rows of shape {key[1]} {key[2]}",
        f"{pool.used} of at most {pool.limit - 1} rows in use by {in_flight} instance(s) in flight",
        f"Raise `memory_limit`, or {'lower `max_active_keys`' if in_flight > 1 else 'split the instance'}.",
    )
