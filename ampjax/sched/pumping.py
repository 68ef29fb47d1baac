"""Pumps messages: gives instances their programs, and their pumped payloads slots in host memory."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np

from ampjax.errors import InvariantError
from ampjax.ir.instances import Messages, Topology
from ampjax.plan.planner import Plan
from ampjax.sched.layout import columns as c
from ampjax.sched.programs.feeds import Feed, Feeds
from ampjax.sched.programs.growing import GrowingPrograms
from ampjax.sched.programs.program_cache import ProgramCache
from ampjax.sched.tables.scheduler_tables import SchedulerTables
from ampjax.unfold.program_keys import PumpedNumbers


class Pumping:
    """Pumps messages for open instances.

    Args:
      plan: The plan.
      tables: The tables.
      programs: Where instances get their programs.
      growing: The instances whose programs grow.
      topologies: Maps of the instances in flight, to be filled: pump name to instance handle to `Topology`.
      loops: The compiled loops.
    """

    def __init__(
        self,
        plan: Plan,
        tables: SchedulerTables,
        programs: ProgramCache,
        growing: GrowingPrograms,
        topologies: dict[str, dict[int, Topology]],
        loops: ModuleType,
    ):
        self._tables = tables
        self._programs = programs
        self._growing = growing
        self._loops = loops
        self._topologies = topologies
        self._feeds = Feeds(plan, tables)
        self._numbers = PumpedNumbers(plan.graph)
        pumps = {}
        for number, name in enumerate(plan.graph.pumps):
            pumps[name] = -1 - number
        self._pumps = pumps
        self._orders: dict[tuple[str, ...], np.ndarray] = {}

    def pump(
        self,
        handles: np.ndarray,
        batch: Mapping[str, Messages],
    ) -> list[Feed]:
        """Pumps messages; see `Scheduler.pump`.

        Args:
          handles: `[n]` int64: the instances' handles, at least one.
          batch: Their messages, by pump; `Messages.instance` counts positions in `handles`.

        Returns:
          Where their payloads go.

        Raises:
          MessageError, DeadlockError: As `Scheduler.pump` does.
        """
        for name, messages in batch.items():
            if isinstance(messages.payload, list) and name in self._pumps:
                maps = zip(
                    handles[messages.instance].tolist(),
                    messages.payload,
                    strict=True,
                )
                self._topologies.setdefault(name, {}).update(maps)
        if int(handles[0]) in self._growing.of:
            return self._pump_more(handles, batch)
        return self._pump_all(handles, batch)

    def find_programs(
        self, ids: np.ndarray, batch: Mapping[str, Messages], purpose: int
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """Finds the programs of instances, and unfolds unknown ones.

        Args:
          ids: `[n]` int64: the instances' numbers.
          batch: All their messages, by pump; `Messages.instance` counts positions in `ids`.
          purpose: What they are run for, by its place in `passes.PURPOSES`.

        Returns:
          `[n]`: the programs' places; `[m, columns]`: what is pumped (`unfold.program_keys`); how many rows that are.

        Raises:
          MessageError, DeadlockError: As `Scheduler.pump` does.
        """
        numbers, n_rows = self._numbers.of(batch)
        self._tables.t, places = self._programs.places(
            self._tables.t,
            ids,
            batch,
            numbers,
            purpose,
        )
        return places, numbers, n_rows

    def _pump_all(
        self,
        handles: np.ndarray,
        batch: Mapping[str, Messages],
    ) -> list[Feed]:
        """Pumps all messages of instances, whose programs are or become known."""
        tables = self._tables
        store = self._programs.store
        ids = tables.t.instances[handles, c.ID]
        purpose = int(tables.t.instances[handles[0], c.PURPOSE])
        places, numbers, n_rows = self.find_programs(ids, batch, purpose)
        first_slots = np.empty(len(handles), np.int64)
        fed = np.empty(n_rows, np.int64)
        known = (
            handles,
            places,
            store.programs,
            store.uses,
            self._order(batch),
            numbers,
            first_slots,
            fed,
        )
        result = self._loops.admit(*known, *tables.t)
        if result == c.LACKS_ROOM:
            needed = store.programs[places]
            tables.reserve(
                needed[:, c.P_LENGTH],
                needed[:, c.P_ROWS],
            )
            tables.reserve_slots(needed[:, c.PUMPED :].sum(axis=0))
            result = self._loops.admit(*known, *tables.t)
        if result == c.PUMPED_BEFORE:
            raise InvariantError(
                "pump",
                "one batch with all messages of an instance",
                "another",
                "Open instances for which more is pumped later with `grows`.",
            )
        return self._feeds.of(batch, fed)

    def _pump_more(
        self,
        handles: np.ndarray,
        batch: Mapping[str, Messages],
    ) -> list[Feed]:
        """Pumps more messages of instances whose programs grow."""
        tables = self._tables
        instances = self._tables.t.instances[handles]
        n_rows_before = np.where(
            instances[:, c.N_INVOCATIONS] < 0,
            0,
            instances[:, c.N_OUT_ROWS],
        )
        messages = self._growing.pump(handles, batch)
        t = tables.t
        numbers, n_rows = self._numbers.of(batch)
        lines = t.live[messages, c.INVOCATION]
        arenas = t.stages[t.lines[lines, c.STAGE], c.ARENA]
        tables.reserve_slots(
            np.bincount(
                arenas,
                t.lines[lines, c.OUT_ROWS],
                len(tables.capacities),
            ).astype(np.int64)
        )
        first_slots = t.instances[handles, c.FIRST_SLOT] + n_rows_before
        fed = np.empty(n_rows, np.int64)
        self._loops.start_more(
            messages,
            self._order(batch),
            numbers,
            first_slots,
            fed,
            *tables.t,
        )
        return self._feeds.of(batch, fed)

    def _order(self, batch: Mapping[str, Messages]) -> np.ndarray:
        """The pumps, as numbers of stages, in the order of a batch, and two columns for `loops.admit`."""
        names = tuple(batch)
        if names not in self._orders:
            order = [
                *dict.fromkeys((*(self._pumps[name] for name in names), *self._pumps.values()))
            ]
            self._orders[names] = np.array(
                [order, order, order],
                np.int64,
            ).T.copy()
        return self._orders[names]
