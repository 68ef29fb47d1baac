"""What the scheduler of integers decides, as launches: of graphs without ragged messages, random bodies and stashed weights so far. No run uses it yet."""

from __future__ import annotations

from collections.abc import Callable

from ampjax.engine.launch import CHANGES_ONLY, Launch
from ampjax.errors import SettingsError
from ampjax.sched.dispatch import Update
from ampjax.sched.plan import Plan
from ampjax.sched.stages import ArenaKey
from ampjax.schedule.dispatch import Dispatch


class Unfolded:
    """Makes launches of dispatches.

    Args:
      plan: The plan.
      capacity: The rows of an arena.

    Raises:
      SettingsError: If the plan has what it can't do yet.
    """

    def __init__(self, plan: Plan, capacity: Callable[[ArenaKey], int]):
        for stage in plan.stages:
            if stage.ragged or stage.random:
                raise SettingsError(
                    f"stage `{stage.name}`",
                    "messages of one row, and no random body",
                    "ragged messages" if stage.ragged else "a random body",
                    "Use `ampjax.sched.scheduler.Scheduler` for it.",
                )
        self._plan, self._capacity = plan, capacity

    def __call__(self, d: Dispatch) -> Launch:
        """A dispatch as a launch."""
        if d.stage < 0:
            return Launch(d.number, d.worker, CHANGES_ONLY, d.direction, changes=d.changes)
        stage, rows = self._plan.stages[d.stage], d.rows
        updates = {change.node: change.count for change in d.changes if isinstance(change, Update)}
        return Launch(
            d.number,
            d.worker,
            d.stage,
            d.direction,
            d.n_rows,
            rows[: len(stage.ports)],
            rows[len(stage.ports) :],
            [self._capacity(key) for key in stage.arenas],
            d.changes,
            bool(d.changes) and updates == dict.fromkeys(stage.params, d.n_rows),
        )
