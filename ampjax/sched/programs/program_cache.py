"""Caches programs: instances for which the same is pumped share one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType

import numpy as np

from ampjax.ir.instances import Messages, Topology
from ampjax.plan.passes import PURPOSES
from ampjax.plan.planner import Plan
from ampjax.sched.diagnose.never_ends import require_ends
from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables
from ampjax.sched.tables.plan_tables import PlanArenas
from ampjax.sched.tables.program_store import ProgramStore
from ampjax.unfold.demand import ArenaRows, demand
from ampjax.unfold.program_keys import topologies_of
from ampjax.unfold.unfolder import Unfolder, select_instances


@dataclass(frozen=True)
class CacheStatistics:
    """Counts of programs: kept, unfolded, dropped.

    Args:
      hits: Instances whose programs were there when they were pumped.
      unfolded: Programs that have been unfolded.
      dropped: Programs that have been given up for others.
      programs: Programs that are kept now.
      nbytes: Bytes that these take, with the topologies that tell them apart.
    """

    hits: int = 0
    unfolded: int = 0
    dropped: int = 0
    programs: int = 0
    nbytes: int = 0


class ProgramCache:
    """Gives instances their programs, and unfolds unknown ones.

    Programs are found by what is pumped: states, rows, topologies. The instance's number counts only if a state function reads it.

    Args:
      plan: The plan.
      arenas: The plan's arenas.
      most_bytes: Bytes of programs that are kept; those of instances in flight are kept in any case.
      loops: The compiled loops.

    Attributes:
      store: The places of programs in the tables.
      n_unfolded: Programs that have been unfolded.
    """

    def __init__(
        self,
        plan: Plan,
        arenas: PlanArenas,
        most_bytes: int,
        loops: ModuleType,
    ):
        self._plan = plan
        self._most = most_bytes
        self._loops = loops
        self.store = ProgramStore(plan, arenas)
        self.unfolder = Unfolder(plan)
        self._by_id = False
        self._table = np.full(64, c.NOBODY, np.int64)
        self._entered = 0
        self._held: dict[int, list[Topology]] = {}
        self._hits = self.n_unfolded = self._dropped = 0

    def places(
        self,
        t: Tables,
        ids: np.ndarray,
        batch: Mapping[str, Messages],
        numbers: np.ndarray,
        purpose: int,
    ) -> tuple[Tables, np.ndarray]:
        """Finds the programs of instances, and unfolds unknown ones.

        Args:
          t: The tables.
          ids: `[k]`: the instances' numbers.
          batch: All that is pumped for them; `Messages.instance` counts positions in `ids`.
          numbers: What tells them apart (`unfold.program_keys`).
          purpose: What they are run for, by its place in `passes.PURPOSES`.

        Returns:
          The tables, some of which may be longer; the places `[k]` of the programs.

        Raises:
          MessageError: As `Unfolder.unfold` does.
          DeadlockError: If messages wait for others that never come.
        """
        keys = np.empty((len(ids), 2), np.int64)
        places = np.empty(len(ids), np.int64)
        if self._by_id:
            salts = ids
        else:
            salts = np.zeros(len(ids), np.int64)
        missing = self._loops.find(
            numbers,
            salts,
            1 + purpose,
            self.store.programs,
            self._table,
            keys,
            places,
        )
        if missing:
            by_id = self._by_id
            t = self._find_missing(
                t,
                ids,
                batch,
                PURPOSES[purpose],
                keys,
                places,
            )
            if self._by_id != by_id:
                return self.places(t, ids, batch, numbers, purpose)
        self._hits += len(ids) - missing
        return t, places

    def demands(
        self,
        ids: np.ndarray,
        batches: Sequence[Mapping[str, Messages]],
        purpose: str,
    ) -> list[ArenaRows]:
        """Counts the rows that instances need of each device arena, if nothing is freed before the instances have ended; for the guard of memory limits.

        Args:
          ids: The instances' numbers, no two the same.
          batches: Their messages; several batches are pumped one after the other.
          purpose: What they are run for.

        Returns:
          For each instance its rows of each arena.

        Raises:
          MessageError: As `Unfolder.unfold` does.
        """
        demands = demand(
            self._plan,
            self.unfolder.end(self.unfolder.unfold(batches, ids, purpose, assume=True)),
        )
        result = []
        for i in range(len(ids)):
            result.append({key: int(rows[i]) for key, rows in demands.items()})
        return result

    def release_all(self) -> None:
        """Notes that nothing is in flight."""
        self.store.uses[:, c.USERS] = 0
        self.make_room()

    def make_room(self) -> None:
        """Drops the programs that have been used least lately until the others have room."""
        store = self.store
        if store.nbytes <= self._most:
            return
        for number in store.unused:
            places = store.waves[number].places
            self._loops.remove(
                store.programs,
                np.arange(places.start, places.stop),
                self._table,
            )
            store.drop(number)
            for place in places:
                self._held.pop(place, None)
            self._dropped += len(places)
            if store.nbytes <= self._most:
                return

    @property
    def statistics(self) -> CacheStatistics:
        """Statistics of programs so far."""
        return CacheStatistics(
            self._hits,
            self.n_unfolded,
            self._dropped,
            self.n_unfolded - self._dropped,
            self.store.nbytes,
        )

    def _find_missing(
        self,
        t: Tables,
        ids: np.ndarray,
        batch: Mapping[str, Messages],
        purpose: str,
        keys: np.ndarray,
        places: np.ndarray,
    ) -> Tables:
        """Unfolds the instances whose places are missing, once for each key; or finds out that keys must hold the instances' numbers."""
        missing = np.flatnonzero(places < 0)
        new: dict[tuple[int, ...], int] = {}
        of = []
        for key in keys[missing].tolist():
            of.append(new.setdefault(tuple(key), len(new)))
        wanted = missing[np.unique(of, return_index=True)[1]]
        if len(wanted) == len(ids):
            own = batch
        else:
            own = {}
            for pump, m in batch.items():
                own[pump] = select_instances(m, wanted.tolist())
        unfolding = self.unfolder.unfold([own], ids[wanted], purpose)
        by_id = unfolding.workspace.reads_instance and not self._by_id
        programs = self.unfolder.programs(unfolding)
        require_ends(self._plan, unfolding, programs)
        self.unfolder.give_up(unfolding)
        if by_id:
            self._by_id = True
            return t
        store = self.store
        known = places[places >= 0]
        t, number = store.add(t, programs, keys[wanted])
        wave = store.waves[number]
        places[missing] = np.array(wave.places)[of]
        held = topologies_of(own, len(wanted))
        store.charge(
            wave,
            sum(a.nbytes for kept in held for one in kept for a in (*one.gather, *one.scatter)),
        )
        self._held.update(
            (place, kept) for place, kept in zip(wave.places, held, strict=True) if kept
        )
        self.n_unfolded += len(wanted)
        self._enter(wave.places)
        for users in (known, places[missing[:1]]):  # not to be given up while room is made
            store.use(users, 1)
        self.make_room()
        for users in (known, places[missing[:1]]):
            store.use(users, -1)
        return t

    def _enter(self, places: range) -> None:
        """Enters programs into the hash table, and makes the table anew where more than half has been used."""
        self._entered += len(places)
        if 2 * self._entered > len(self._table):
            entered = self._table[self._table >= 0]
            self._entered = len(entered) + len(places)
            self._table = np.full(
                1 << (4 * self._entered).bit_length(),
                c.NOBODY,
                np.int64,
            )
            self._loops.insert(self.store.programs, entered, self._table)
        self._loops.insert(
            self.store.programs,
            np.arange(places.start, places.stop),
            self._table,
        )
