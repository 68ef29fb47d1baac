"""Admits instances: gives each a handle, a program, and host memory for its pumped payloads."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType

import numpy as np

from ampjax.errors import InvariantError
from ampjax.ir.instances import Messages, Topology
from ampjax.plan.passes import PURPOSES
from ampjax.plan.planner import Plan
from ampjax.sched import columns as c
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.programs.feeds import Feed, Feeds
from ampjax.sched.programs.growing import GrowingPrograms
from ampjax.sched.programs.program_cache import ProgramCache
from ampjax.sched.tables.program_store import ProgramStore
from ampjax.sched.tables.scheduler_tables import SchedulerTables
from ampjax.unfold.program_keys import PumpedNumbers
from ampjax.unfold.unfolding import Unfolding


class Admission:
    """Instances from their admission to their end.

    Args:
      plan: The plan.
      tables: The tables.
      store: Where programs stand.
      programs: Where instances get them.
      loops: The compiled loops.

    Attributes:
      topologies: Maps of the instances in flight: pump name to instance handle to `Topology`.
      under_way: The dispatches that have been issued and are not done, by number.
    """

    def __init__(
        self, plan: Plan, tables: SchedulerTables, store: ProgramStore, programs: ProgramCache, loops: ModuleType
    ):
        self._plan, self._tables, self._store, self._programs, self._loops = plan, tables, store, programs, loops
        self._feeds, self._numbers = Feeds(plan, tables), PumpedNumbers(plan.graph)
        self._growing = GrowingPrograms(tables, store, programs.unfolder, loops)
        self._asks = any(stage.route_by is not None for stage in plan.stages)
        self._pumps = {name: -1 - number for number, name in enumerate(plan.graph.pumps)}
        self._orders: dict[tuple[str, ...], np.ndarray] = {}
        self.topologies: dict[str, dict[int, Topology]] = {}
        self.under_way: dict[int, Dispatch] = {}

    def open(self, ids: np.ndarray, purpose: str, grows: bool) -> np.ndarray:
        """Gives instances handles; see `Scheduler.open`."""
        handles, tables = np.empty(len(ids), np.int64), self._tables
        if len(ids):
            tables.reserve_instances(len(ids))
            self._loops.open_all(ids, PURPOSES.index(purpose), purpose == "train", handles, *tables.t)
        if grows or self._asks:
            self._growing.open(handles, ids, purpose)
        return handles

    def pump(self, handles: np.ndarray, batch: Mapping[str, Messages]) -> list[Feed]:
        """See `Scheduler.pump`."""
        if not len(handles):
            return []
        for name, messages in batch.items():
            if isinstance(messages.payload, list) and name in self._pumps:
                maps = zip(handles[messages.instance].tolist(), messages.payload, strict=True)
                self.topologies.setdefault(name, {}).update(maps)
        if int(handles[0]) in self._growing.of:
            return self._pump_more(handles, batch)
        return self._pump_all(handles, batch)

    @property
    def foresees(self) -> bool:
        """See `Scheduler.foresees`."""
        return not self._asks

    def foresee(self, ids: np.ndarray, batch: Mapping[str, Messages], purpose: str) -> None:
        """See `Scheduler.foresee`."""
        if self.foresees:
            known = ids, batch, self._numbers.of(batch)[0], PURPOSES.index(purpose)
            self._tables.t, _ = self._programs.places(self._tables.t, *known)

    def choose(self, dispatch: Dispatch, choices: np.ndarray | None) -> None:
        """What payloads have decided for a dispatch's messages becomes known."""
        self._follow(self._growing.choose(dispatch, choices))

    def finished(self) -> list[tuple[int, bool]]:
        """Instances that have ended since this was last asked; their handles and programs are free for others."""
        t, store = self._tables.t, self._store
        told = np.empty((int(t.clock[c.N_ENDED]), 2), np.int64)
        for handle in t.ended.tolist() if self._growing.of or self.topologies else ():
            if handle in self._growing.of:
                self._growing.end(handle)
            for maps in self.topologies.values():
                maps.pop(handle, None)
        self._loops.finish(told, store.programs, store.uses, *t)
        self._programs.make_room()
        return list(zip(told[:, 0].tolist(), told[:, 1].astype(bool).tolist(), strict=True))

    @property
    def unfoldings(self) -> list[Unfolding]:
        """The unfoldings of instances in flight whose programs grow."""
        return self._growing.unfoldings

    def forget_all(self) -> None:
        """Forgets the instances in flight, whose programs are free for others; the tables still hold them."""
        self._programs.release_all()
        self._growing.forget_all()
        self.topologies.clear()
        self.under_way.clear()

    def waits_on(self, worker: int) -> bool:
        """Whether a message that a worker is to run has some of its inputs and lacks others."""
        t = self._tables.t
        own = t.instances[np.setdiff1d(np.arange(len(t.instances)), t.vacant)]
        for line, live, n in own[own[:, c.N_INVOCATIONS] > 0][
            :, [c.FIRST_LINE, c.FIRST_LIVE, c.N_INVOCATIONS]
        ].tolist():
            lines, need = t.lines[line : line + n], t.live[live : live + n, c.N_MISSING]
            waits = (need > 0) & (need < lines[:, c.N_IN])
            if (t.stages[lines[waits, c.STAGE], c.WORKER] == worker).any():
                return True
        return self._growing.waits_on(worker)

    def _pump_all(self, handles: np.ndarray, batch: Mapping[str, Messages]) -> list[Feed]:
        """All messages of instances whose programs are or become known."""
        tables, store = self._tables, self._store
        ids, purpose = tables.t.instances[handles, c.ID], int(tables.t.instances[handles[0], c.PURPOSE])
        numbers, n_rows = self._numbers.of(batch)
        tables.t, places = self._programs.places(tables.t, ids, batch, numbers, purpose)
        rows_at, fed = np.empty(len(handles), np.int64), np.empty(n_rows, np.int64)
        known = handles, places, store.programs, store.uses, self._order(batch), numbers, rows_at, fed
        result = self._loops.admit(*known, *tables.t)
        if result == c.LACKS_ROOM:
            needed = store.programs[places]
            tables.reserve(needed[:, c.P_LENGTH], needed[:, c.P_ROWS])
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

    def _pump_more(self, handles: np.ndarray, batch: Mapping[str, Messages]) -> list[Feed]:
        """More messages of instances whose programs grow."""
        tables, own = self._tables, self._tables.t.instances[handles]
        known = np.where(own[:, c.N_INVOCATIONS] < 0, 0, own[:, c.N_OUT_ROWS])
        messages, moved = self._growing.pump(handles, batch)
        self._follow(moved)
        t, (numbers, n_rows) = tables.t, self._numbers.of(batch)
        lines = t.live[messages, c.INVOCATION]
        arenas = t.stages[t.lines[lines, c.STAGE], c.ARENA]
        tables.reserve_slots(np.bincount(arenas, t.lines[lines, c.OUT_ROWS], len(tables.capacities)).astype(np.int64))
        rows_at, fed = t.instances[handles, c.FIRST_SLOT] + known, np.empty(n_rows, np.int64)
        self._loops.start(messages, self._order(batch), numbers, rows_at, fed, *tables.t)
        return self._feeds.of(batch, fed)

    def _follow(self, moved: list[tuple[np.ndarray, ...]]) -> None:
        """Messages that are being dispatched have moved."""
        for olds, counts, news in moved:
            for old, n, new in zip(olds.tolist(), counts.tolist(), news.tolist(), strict=True):
                if old == new or n == 0:
                    continue
                for dispatch in self.under_way.values():
                    messages = dispatch.messages
                    messages[(messages >= old) & (messages < old + n)] += new - old

    def _order(self, batch: Mapping[str, Messages]) -> np.ndarray:
        """The pumps, as numbers of stages, in the order of a batch, and two columns for `loops.admit`."""
        names = tuple(batch)
        if names not in self._orders:
            order = [*dict.fromkeys((*(self._pumps[name] for name in names), *self._pumps.values()))]
            self._orders[names] = np.array([order, order, order], np.int64).T.copy()
        return self._orders[names]
