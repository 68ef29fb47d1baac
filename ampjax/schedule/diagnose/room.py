"""Room: whether arenas can take the rows of what waits, and the error if nothing moves for want of it."""

from __future__ import annotations

from ampjax.errors import LimitError
from ampjax.sched.stages import ArenaKey
from ampjax.schedule import columns as c
from ampjax.schedule.diagnose.snapshot import Snapshot


def lacks_room(s: Snapshot, q: int) -> bool:
    """Whether an arena has no room for the results of a queue's first message, growth included."""
    return _full(s, q) is not None


def no_room(s: Snapshot, q: int) -> LimitError | None:
    """That the first message of a queue has no room, and nothing else can move; None if it has."""
    full = _full(s, q)
    if full is None:
        return None
    key, arena = full
    t, clock, stage = s.tables, s.tables.clock, s.plan.stages[q // 3]
    in_flight = int(clock[c.N_TRAIN] + clock[c.N_INFER])
    instance = int(t.instances[t.live[t.queues[q, c.HEAD], c.SLOT], c.ID])
    used = int(s.capacities[arena] - t.n_free[arena])
    return LimitError(
        f"instance {instance}, stage `{stage.name}`",
        f"room for its rows of shape {key[1]} {key[2]}",
        f"{used} of at most {_limit(s, key)} rows in use by {in_flight} instance(s) in flight",
        f"Raise `memory_limit`, or {'lower `max_active_keys`' if in_flight > 1 else 'split the instance'}.",
    )


def _full(s: Snapshot, q: int) -> tuple[ArenaKey, int] | None:
    """The arena that has no room, and its number."""
    t, stage = s.tables, s.plan.stages[q // 3]
    if q % 3 == c.BACKWARD or not t.queues[q, c.ITEMS]:
        return None
    head = t.queues[q, c.HEAD]
    instance = t.instances[t.live[head, c.SLOT]]
    size = t.lines[instance[c.LINE] + head - instance[c.LIVE], c.SIZE]
    for output, key in enumerate(stage.arenas):
        arena = int(t.stages[stage.number, c.ARENA + output])
        room = t.n_free[arena] + _limit(s, key) - s.capacities[arena]
        if size * stage.arenas.count(key) > room:
            return key, arena
    return None


def _limit(s: Snapshot, key: ArenaKey) -> int:
    """Rows that an arena may have; slot 0 is nobody's."""
    return s.settings.limits.get(key, s.settings.limit) - 1
