"""Explanations: what happened to a message, who waits for what, why nothing moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ampjax.errors import DeadlockError, LimitError
from ampjax.ir.state import INSTANCE, State
from ampjax.sched.dispatch import Dispatch
from ampjax.sched.group import Groups
from ampjax.sched.join import Join
from ampjax.sched.plan import Plan
from ampjax.sched.queues import Queue
from ampjax.sched.slots import SlotPool


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


def waiting(plan: Plan, joins: Mapping[int, Join], groups: Mapping[int, Groups]) -> list[str]:
    """One line for each message that waits in a join, and for each open group."""
    lines = []
    for number, join in joins.items():
        stage = plan.stages[number]
        by_key: dict[tuple[int, ...], dict[int, np.ndarray]] = {}
        for port, state, _ in join.pending():
            by_key.setdefault(join.key(port, state), {})[port] = state
        for there in by_key.values():
            port = min(there)
            missing = " or ".join(p.name for i, p in enumerate(stage.ports) if i not in there)
            state = State(there[port][None], plan.layout, stage.ports[port].type.fields)
            lines.append(
                f"node `{stage.name}` has {state!r} on port {stage.ports[port].name} and waits for the same key on port {missing}"
            )
    for collecting in groups.values():
        stage = collecting.stage
        for group in collecting.open.values():
            what = (
                "its opener"
                if group.size is None
                else f"{group.size - len(group.members)} more of {group.size} member(s)"
            )
            port, array = (0, group.members[0][0]) if group.members else (1, group.state)
            assert array is not None
            state = State(array[None], plan.layout, stage.ports[port].type.fields)
            lines.append(f"group `{stage.name}` with {state!r} waits for {what}")
    return lines


def no_room(queue: Queue, pools: Sequence[SlotPool], in_flight: int) -> LimitError:
    """That the oldest message of a queue has no room, and nothing else can move."""
    stage = queue.stage
    number, pool = min(enumerate(pools), key=lambda item: item[1].room)
    key = stage.arenas[number]
    return LimitError(
        f"instance {int(queue.first.states[0, INSTANCE])}, stage `{stage.name}`",
        f"room for its rows of shape {key[1]} {key[2]}",
        f"{pool.used} of at most {pool.limit - 1} rows in use by {in_flight} instance(s) in flight",
        "Raise `memory_limit`, or lower `max_active_keys`.",
    )


def deadlock(lines: Sequence[str], in_flight: int) -> DeadlockError:
    """That nothing can move, with who waits for what."""
    shown = "; ".join(lines[:8]) + (f"; and {len(lines) - 8} more" if len(lines) > 8 else "")
    return DeadlockError(
        f"{in_flight} instance(s) in flight",
        "messages that can move",
        "none: " + (shown or "an instance whose pumping has not ended"),
        "Pump what the nodes wait for, or mend the conditions that route it.",
    )
