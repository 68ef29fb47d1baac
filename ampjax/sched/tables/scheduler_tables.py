"""The tables of a scheduler, lengthened when full, and the slots of arenas, within their limits."""

from __future__ import annotations

import numpy as np

from ampjax.errors import InvariantError
from ampjax.plan.planner import Plan
from ampjax.plan.stages import ArenaKey
from ampjax.sched.decisions.dispatch import DIRECTIONS
from ampjax.sched.decisions.scheduler_settings import NO_ROW_LIMIT, SchedulerSettings
from ampjax.sched.layout import columns as c
from ampjax.sched.tables.plan_tables import (
    PlanArenas,
    lengthen_table,
    limit_queue,
    make_tables,
    most_rows,
)

UNLIMITED_SPARE = np.zeros(0, np.int64)
"""`spare` where no arena has a limit."""


class SchedulerTables:
    """The tables of a scheduler.

    Args:
      plan: The plan.
      settings: Sizes and limits of arenas.

    Attributes:
      t: The tables. Others take their place when they are made longer.
      arenas: The arenas by number.
      capacities: `[arenas]`: slots that each has now; slot 0 is nobody's and is not counted.
      n_slots: These together.
      limited: Whether some arena has a limit.
    """

    def __init__(self, plan: Plan, settings: SchedulerSettings):
        self._plan = plan
        self._most = settings.max_dispatch_size
        self._caps: dict[tuple[int, int], int] = {}
        self.arenas = PlanArenas(plan)
        self._numbers = {key: number for number, key in enumerate(self.arenas.keys)}
        self.t = make_tables(plan, settings, self.arenas)
        self.size_arenas(settings)

    def size_arenas(self, settings: SchedulerSettings) -> None:
        """Gives arenas their first sizes and their limits; nothing may be in flight. Caps are forgotten."""
        for stage, direction in [*self._caps]:
            of_plan = self._plan.stages[stage]
            limit_queue(
                self.t.queues[c.N_DIRECTIONS * stage + direction],
                of_plan,
                direction,
                most_rows(of_plan, self._most),
            )
        self._caps.clear()
        keys = self.arenas.keys
        self.limited = min([settings.limit, *settings.limits.values()]) < NO_ROW_LIMIT
        limits = []
        for key in keys:
            limits.append(max(2, settings.limits.get(key, settings.limit)) - 1)
        first = []
        for key in keys:
            first.append(max(2, settings.capacities.get(key, settings.capacity)) - 1)
        self._limits = np.array(limits, np.int64)
        self.capacities = np.zeros(len(keys), np.int64)
        self.n_slots = 0
        self.t.free[:, c.N_FREE] = 0
        for arena, capacity in enumerate(np.minimum(first, self._limits).tolist()):
            self._add_slots(arena, capacity)

    @property
    def spare(self) -> np.ndarray:
        """`[arenas]`: slots that each arena may still get beyond its present ones; empty where nothing is limited."""
        return self._limits - self.capacities if self.limited else UNLIMITED_SPARE

    def capacity(self, key: ArenaKey) -> int:
        """Gives the rows that an arena must have now; the number only grows.

        Returns:
          How many rows, slot 0 included.
        """
        return int(self.capacities[self._numbers[key]]) + 1

    @property
    def slots_in_use(self) -> int:
        """Arena slots that are taken."""
        return int((self.capacities - self.t.n_free).sum())

    def cap(self, stage: int, direction: str, rows: int) -> None:
        """Lets no dispatch of a stage hold more than so many rows from now on (a single ragged message may). A cap is only ever raised.

        Args:
          stage: The stage's number.
          direction: One of the first three `DIRECTIONS`.
          rows: How many rows, at most.
        """
        number = DIRECTIONS.index(direction)
        self._caps[stage, number] = most = max(
            rows,
            self._caps.get((stage, number), 0),
        )
        of_plan = self._plan.stages[stage]
        limit_queue(
            self.t.queues[c.N_DIRECTIONS * stage + number],
            of_plan,
            number,
            min(most, most_rows(of_plan, self._most)),
        )

    def cap_of(self, stage: int, direction: str) -> int:
        """Gives the cap of a stage's dispatches, in rows.

        Args:
          stage: The stage's number.
          direction: One of the first three `DIRECTIONS`.

        Returns:
          The cap; 0 if it has none.
        """
        return self._caps.get((stage, DIRECTIONS.index(direction)), 0)

    def reserve_instances(self, n: int) -> None:
        """Makes sure that there are free handles."""
        vacant = int(self.t.clock[c.N_VACANT])
        if vacant < n:
            self._add_instances(n - vacant)

    def reserve(self, lengths: np.ndarray, rows: np.ndarray) -> None:
        """Makes tables long enough for more programs.

        Args:
          lengths: `[n]`: the invocations of each.
          rows: `[n]`: the output rows of each.
        """
        t = self.t
        live = int(t.clock[c.LIVE_TOP]) + int(_ranges(lengths).sum())
        slots = int(t.clock[c.ROWS_TOP]) + int(_ranges(rows).sum())
        self.t = t._replace(
            live=lengthen_table(t.live, live),
            slots=lengthen_table(t.slots, slots),
        )

    def reserve_slots(self, rows: np.ndarray) -> None:
        """Makes sure that arenas have free slots.

        Args:
          rows: `[arenas]`: how many of each.
        """
        for arena in np.flatnonzero(rows > self.t.n_free).tolist():
            self.grow_arena(arena, int(rows[arena]))

    def grow_arena(self, arena: int, need: int) -> None:
        """Doubles an arena until enough of its slots are free.

        Raises:
          InvariantError: If its limit does not allow that: the scheduler asks before it takes.
        """
        free = int(self.t.n_free[arena])
        old = int(self.capacities[arena])
        new = old
        limit = int(self._limits[arena])
        while new - old + free < need and new < limit:
            new = min(limit, 2 * new + 1)
        if new - old + free < need:
            raise InvariantError(
                "slots",
                f"at most {new - old + free} to be taken, of {limit}",
                f"{need}",
                "This is a mistake in ampjax: please report it.",
            )
        self._add_slots(arena, new)

    def _add_slots(self, arena: int, new: int) -> None:
        t = self.t
        old = int(self.capacities[arena])
        free = int(self.t.n_free[arena])
        table = lengthen_table(t.free, c.FREE + new, axis=1)
        first = c.FREE + free
        table[arena, first : first + new - old] = np.arange(
            new,
            old,
            -1,
        )
        table[arena, c.N_FREE] += new - old
        self.capacities[arena] = new
        self.n_slots += new - old
        self.t = t._replace(free=table)

    def _add_instances(self, n: int) -> None:
        """Makes handles for at least `n` more instances."""
        t = self.t
        old = len(self.t.instances)
        free = int(self.t.clock[c.N_VACANT])
        instances = lengthen_table(t.instances, old + n)
        new = len(instances)
        idle = lengthen_table(t.idle, new, axis=1)
        idle[c.VACANT, free : free + new - old] = np.arange(
            new - 1,
            old - 1,
            -1,
        )
        t.clock[c.N_VACANT] += new - old
        self.t = t._replace(instances=instances, idle=idle)


def power_of_two(n: int) -> int:
    """Rounds up to a power of two. Ranges of tables are given out in such lengths.

    Returns:
      The least power of two that is at least `n`, and at least 1.
    """
    return 1 << (max(n, 1) - 1).bit_length()


def _ranges(lengths: np.ndarray) -> np.ndarray:
    """The same for many."""
    return 1 << np.ceil(np.log2(np.maximum(lengths, 1))).astype(np.int64)
