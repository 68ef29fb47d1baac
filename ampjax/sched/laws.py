"""Laws that must hold after every event: each message that waits holds a reference, the throttle holds, nothing leaks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ampjax.errors import InvariantError
from ampjax.sched.queues import BACKWARD
from ampjax.sched.slots import SlotPool
from ampjax.sched.stages import ArenaKey
from ampjax.sched.traffic import Traffic


def check(traffic: Traffic, max_active_keys: int, pools: Mapping[ArenaKey, SlotPool], idle: bool) -> None:
    """Recounts references from scratch, and checks the throttle and that nothing leaks (DESIGN, laws 1 and 5).

    Args:
      traffic: The messages.
      max_active_keys: The throttle.
      pools: The slots of each arena.
      idle: Whether everything has ended.

    Raises:
      InvariantError: If a count is off.
    """
    owed: dict[int, int] = {}
    for cells in _holders(traffic):
        for owner in traffic.cells.owner[cells.reshape(-1)].tolist():
            owed[owner] = owed.get(owner, 0) + 1
    wrong = [owner for owner, count in owed.items() if traffic.cells.refs[owner] < count]
    if wrong:
        raise _broken(
            f"message {wrong[0]}",
            f"at least {owed[wrong[0]]} references, one per holder",
            f"{int(traffic.cells.refs[wrong[0]])}",
        )
    count = traffic.inflight.count
    if max(count.values()) > max_active_keys:
        raise _broken("throttle", f"at most {max_active_keys} instances in flight", f"{count}")
    used = {key: pool.used for key, pool in pools.items() if pool.used}
    if idle and (traffic.cells.alive or used or owed):
        raise _broken(
            "after everything ended",
            "no message, no slot in use, nothing waiting",
            f"{traffic.cells.alive} cells, slots {used}, {len(owed)} held",
        )


def _holders(traffic: Traffic) -> list[np.ndarray]:
    """The cells that joins, open groups, closed groups and forward queues hold."""
    held = [np.array([cell for *_, cell in join.pending()], np.int64) for join in traffic.joins.values()]
    for groups in traffic.groups.values():
        held += [
            np.array([c for _, c in g.members] + ([g.opener] if g.opener else []), np.int64)
            for g in groups.open.values()
        ]
    held += list(traffic.parts.values())
    return held + [
        chunk.cells for queue in traffic.queues.values() if queue.direction != BACKWARD for chunk in queue.contents()
    ]


def _broken(where: str, expected: str, got: str) -> InvariantError:
    return InvariantError(where, expected, got, "This is a mistake in ampjax: please report it.")
