"""Programs that come and go: an instance that comes again has its program already, and so has one for which the same is pumped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.ir.instances import Messages
from ampjax.sched.columns import Tables
from ampjax.sched.diagnose.unfolded import require_ends
from ampjax.sched.plan import Plan
from ampjax.sched.store import Store
from ampjax.unfold.demand import Rows, demand
from ampjax.unfold.keys import keys_of, topologies_of
from ampjax.unfold.unfolder import Unfolder, of_some


@dataclass(frozen=True)
class CacheStatistics:
    """What has become of programs.

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
    """Gives instances their programs, and unfolds what is not known.

    Programs are found by what is pumped: states, rows, topologies. The instance's number counts only if a state function reads it.

    Args:
      plan: The plan.
      store: Where programs stand.
      most_bytes: Bytes of programs that are kept; those of instances in flight are kept in any case.

    Attributes:
      n_unfolded: Programs that have been unfolded.
    """

    def __init__(self, plan: Plan, store: Store, most_bytes: int):
        self._plan, self._store, self._most = plan, store, most_bytes
        self.unfolder = Unfolder(plan)
        self._by_id = False
        self._places: dict[bytes, int] = {}
        self._held: dict[bytes, Any] = {}
        self._hits = self.n_unfolded = self._dropped = 0

    def places(
        self, t: Tables, ids: np.ndarray, batch: Mapping[str, Messages], purpose: str
    ) -> tuple[Tables, np.ndarray]:
        """The tables, and the places `[k]` of instances' programs.

        Args:
          t: The tables.
          ids: `[k]`: the instances' numbers.
          batch: All that is pumped for them; `Messages.instance` counts positions in `ids`.
          purpose: What they are run for, one of `passes.PURPOSES`.

        Raises:
          MessageError: As `Unfolder.unfold` does.
          DeadlockError: If messages wait for others that never come.
        """
        keys = self._keys(ids, batch, purpose)
        new = {key: place for place, key in enumerate(keys) if key not in self._places}
        if new:
            known = np.array([self._places[key] for key in keys if key not in new], np.int64)
            waves = [self._store.waves[number] for number in self._store.waves_of(known)]
            for wave in waves:  # not to be given up for the new ones
                wave.users += 1
            t, by_id = self._unfold(t, ids, batch, purpose, new)
            for wave in waves:
                wave.users -= 1
            if by_id:
                return self.places(t, ids, batch, purpose)
        self._hits += len(ids) - len(new)
        return t, np.array([self._places[key] for key in keys], np.int64)

    def demands(self, ids: np.ndarray, batches: Sequence[Mapping[str, Messages]], purpose: str) -> list[Rows]:
        """For each of some instances the rows that it needs of each device arena, if nothing is freed before it has ended; for the guard of memory limits.

        Args:
          ids: The instances' numbers, no two the same.
          batches: Their messages; several batches are pumped one after the other.
          purpose: What they are run for.

        Raises:
          MessageError: As `Unfolder.unfold` does.
        """
        found = demand(self._plan, self.unfolder.end(self.unfolder.unfold(batches, ids, purpose, assume=True)))
        return [{key: int(rows[i]) for key, rows in found.items()} for i in range(len(ids))]

    def hold(self, places: np.ndarray) -> None:
        """Notes that instances in flight have these programs."""
        for number in self._store.waves_of(places):
            self._store.waves[number].users += 1
            self._store.waves.move_to_end(number)

    def release(self, places: np.ndarray) -> None:
        """Notes that instances with these programs have ended."""
        for number in self._store.waves_of(places):
            self._store.waves[number].users -= 1
        self._make_room()

    def release_all(self) -> None:
        """Notes that nothing is in flight."""
        for wave in self._store.waves.values():
            wave.users = 0
        self._make_room()

    @property
    def statistics(self) -> CacheStatistics:
        """What has become of programs so far."""
        return CacheStatistics(self._hits, self.n_unfolded, self._dropped, len(self._places), self._store.nbytes)

    def _keys(self, ids: np.ndarray, batch: Mapping[str, Messages], purpose: str) -> list[bytes]:
        keys = keys_of(self._plan.graph, batch, ids, purpose.encode())
        return [key + b"%d" % i for key, i in zip(keys, ids.tolist(), strict=True)] if self._by_id else keys

    def _unfold(
        self, t: Tables, ids: np.ndarray, batch: Mapping[str, Messages], purpose: str, new: Mapping[bytes, int]
    ) -> tuple[Tables, bool]:
        """Adds the programs of the instances at the places `new`, by key; or finds out that keys must hold the instances' numbers."""
        wanted = list(new.values())
        own = batch if len(wanted) == len(ids) else {pump: of_some(m, wanted) for pump, m in batch.items()}
        unfolding = self.unfolder.unfold([own], ids[wanted], purpose)
        by_id = unfolding.space.reads_instance and not self._by_id
        programs = self.unfolder.programs(unfolding)
        require_ends(self._plan, unfolding, programs)
        self.unfolder.give_up(unfolding)
        if by_id:
            self._by_id = True
            return t, True
        t, places = self._store.add(t, programs)
        wave = next(reversed(self._store.waves.values()))
        wave.keys += new
        held = topologies_of(own, len(wanted))
        self._store.charge(wave, sum(a.nbytes for kept in held for one in kept for a in (*one.gather, *one.scatter)))
        self._places.update(zip(new, places, strict=True))
        self._held.update((key, kept) for key, kept in zip(new, held, strict=True) if kept)
        self.n_unfolded += len(wanted)
        wave.users += 1  # while room is made for it
        self._make_room()
        wave.users -= 1
        return t, False

    def _make_room(self) -> None:
        """Drops the programs that have been used least lately until the others have room."""
        store = self._store
        if store.nbytes <= self._most:
            return
        for number in [number for number, wave in store.waves.items() if not wave.users]:
            for key in store.drop(number).keys:
                del self._places[key]
                self._held.pop(key, None)
                self._dropped += 1
            if store.nbytes <= self._most:
                return
