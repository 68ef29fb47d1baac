"""The error if nothing moves for want of room."""

from __future__ import annotations

from ampjax.errors import LimitError
from ampjax.plan.stages import ArenaKey
from ampjax.sched.diagnose.snapshot import Snapshot
from ampjax.sched.layout import columns as c


def no_room(s: Snapshot, q: int) -> LimitError:
    """Makes the error that the first message of a queue has no room for its results, and nothing else can move.

    Returns:
      The error to be raised.
    """
    t = s.tables
    stage = s.plan.stages[q // c.N_DIRECTIONS]
    in_flight = int(t.clock[c.N_TRAIN] + t.clock[c.N_INFER])
    instance = int(t.instances[t.live[t.queues[q, c.HEAD], c.HANDLE], c.ID])
    _, used, key = min(
        _room(s, int(arena), key) for arena, key in zip(_arenas(s, q), stage.arenas, strict=True)
    )
    return LimitError(
        f"instance {instance}, stage `{stage.name}`",
        f"room for its rows of shape {key[1]} {key[2]}",
        f"{used} of at most {_limit(s, key)} rows in use by {in_flight} instance(s) in flight",
        f"Raise `memory_limit`, or {'lower `max_active_keys`' if in_flight > 1 else 'split the instance'}.",
    )


def _arenas(s: Snapshot, q: int) -> list[int]:
    """The arena of each output of a queue's stage."""
    stage = s.tables.stages[q // c.N_DIRECTIONS]
    return stage[c.ARENA : c.ARENA + stage[c.N_OUTPUTS]].tolist()


def _room(
    s: Snapshot,
    arena: int,
    key: ArenaKey,
) -> tuple[int, int, ArenaKey]:
    """Rows that an arena has room for, growth included; rows in use; its key."""
    used = int(s.capacities[arena] - s.tables.n_free[arena])
    return _limit(s, key) - used, used, key


def _limit(s: Snapshot, key: ArenaKey) -> int:
    """Rows that an arena may have; slot 0 is nobody's."""
    return max(2, s.settings.limits.get(key, s.settings.limit)) - 1
