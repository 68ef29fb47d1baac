"""Instances in flight: their slots (small numbers, recycled), what of them is still alive, and their topologies."""

from __future__ import annotations

import numpy as np

from ampjax.ir.instances import Topology


class InFlight:
    """Who is in flight.

    An instance ends when nothing of it is alive. In training its pumped messages are all that need counting: they are
    answered only when everything that came of them has been. In inference every message counts.
    """

    def __init__(self) -> None:
        self.count = {True: 0, False: 0}
        self.finished: list[tuple[int, bool]] = []
        self.topologies: dict[str, dict[int, Topology]] = {}
        self.ids = np.zeros(0, np.int64)
        self.ages = np.zeros(0, np.int64)
        self._opened = 0
        self._train = np.zeros(0, bool)
        self._live = np.zeros(0, np.int64)
        self._free: list[int] = []

    @property
    def total(self) -> int:
        """Instances in flight."""
        return self.count[True] + self.count[False]

    @property
    def oldest(self) -> int | None:
        """The instance in flight that was admitted first; None if there is none."""
        alive = np.flatnonzero(self._live)
        return int(self.ids[alive[self.ages[alive].argmin()]]) if len(alive) else None

    def open(self, ids: np.ndarray, train: bool) -> np.ndarray:
        """Gives each instance a slot `[n]`; it is alive until `release`."""
        n = len(ids)
        while len(self._free) < n:
            self._grow()
        slots = np.array(self._free[-n:][::-1] if n else [], np.int64)
        del self._free[len(self._free) - n :]
        self.ids[slots] = ids
        self.ages[slots] = np.arange(self._opened, self._opened + n)
        self._opened += n
        self._train[slots] = train
        self._live[slots] = 1
        self.count[train] += n
        return slots

    def is_train(self, slot: int) -> bool:
        """Whether the instance in a slot is a training instance."""
        return bool(self._train[slot])

    def hold(self, slots: np.ndarray) -> None:
        """One thing more of each of these instances is alive (slots may repeat)."""
        np.add.at(self._live, slots, 1)

    def release(self, slots: np.ndarray) -> None:
        """One thing less; instances of which nothing is left have ended."""
        np.subtract.at(self._live, slots, 1)
        left = self._live[slots]
        if np.count_nonzero(left) == len(left):
            return
        ended = list(dict.fromkeys(slots[left == 0].tolist()))
        trains = self._train[ended].tolist()
        n_train = sum(trains)
        self.count[True] -= n_train
        self.count[False] -= len(ended) - n_train
        self.finished += zip(self.ids[ended].tolist(), trains, strict=True)
        self._free += ended
        for maps in self.topologies.values():
            for slot in ended:
                maps.pop(slot, None)

    def _grow(self) -> None:
        n = len(self.ids)
        more = max(8, n)
        self._free.extend(range(n + more - 1, n - 1, -1))
        self.ids = np.concatenate([self.ids, np.zeros(more, np.int64)])
        self.ages = np.concatenate([self.ages, np.zeros(more, np.int64)])
        self._live = np.concatenate([self._live, np.zeros(more, np.int64)])
        self._train = np.concatenate([self._train, np.ones(more, bool)])
