"""A table of ids: finds the entry of each, and knows how often and when an id was last seen.

It gets larger when it is asked to. What an entry means is its user's affair.
"""

from __future__ import annotations

from types import ModuleType

import numpy as np

from ampjax.sparse.vocabulary.id_columns import (
    COUNT,
    HEAD,
    N_COLUMNS,
    N_FREE,
    N_NUMBERS,
    N_USED,
    NONE,
    PLACE,
    SEEN,
    TAIL,
    IdArrays,
)


def compiled_loops() -> ModuleType:
    """The loops over ids; the first call imports Numba, which takes longer than importing the rest of ampjax.

    Returns:
      The module `id_loops`.
    """
    from ampjax.sparse.vocabulary import id_loops

    return id_loops


class IdTable:
    """Ids with their entries, numbered from 0.

    Attributes:
      arrays: What the loops work on.
    """

    def __init__(self) -> None:
        self.arrays = _empty_arrays(1)

    def __len__(self) -> int:
        return int(self.n_used - self.arrays.numbers[N_FREE])

    @property
    def n_used(self) -> int:
        """The number of entries that were ever used; lower entries were used first."""
        return int(self.arrays.numbers[N_USED])

    @property
    def free(self) -> np.ndarray:
        """The entries that are free by now; the last entry is used next."""
        return self.arrays.free[: self.arrays.numbers[N_FREE]]

    def reserve(self, n_new: int, most: int) -> None:
        """Makes room for more ids; where there is none, there will be twice as much as before, at least.

        Args:
          n_new: How many may come.
          most: Entries that will ever be used.
        """
        has = len(self.arrays.lines)
        wanted = min(self.n_used + n_new, most)
        if wanted <= has:
            return
        old = self.arrays
        doubled = min(2 * has, most)
        new = _empty_arrays(max(wanted, doubled))
        new.lines[:has] = old.lines
        new.free[:has] = old.free
        new.queue[: len(old.queue)] = old.queue
        new.numbers[:] = old.numbers
        compiled_loops().fill_slots(new)
        self.arrays = new

    def find(self, ids: np.ndarray) -> np.ndarray:
        """Finds the entries of ids, `[n]`; `NONE` for an id that is not in the table.

        Args:
          ids: `[n]`, int64.
        """
        entries = np.empty(len(ids), np.int64)
        compiled_loops().find(self.arrays, ids, entries)
        return entries

    def drop_older(self, step: int) -> np.ndarray:
        """Takes out all ids that were last seen before a call.

        Args:
          step: The call's number.

        Returns:
          Their entries, the oldest first.
        """
        dropped = np.empty(len(self), np.int64)
        n_dropped = compiled_loops().drop_older(self.arrays, step, dropped)
        return dropped[:n_dropped]

    def by_age(self) -> np.ndarray:
        """Lists the entries of all ids, the one that was seen longest ago first."""
        numbers = self.arrays.numbers
        places = np.arange(numbers[HEAD], numbers[TAIL])
        entries = self.arrays.queue[places]
        is_last = self.arrays.lines[entries, PLACE] == places
        return entries[is_last]

    def oldest(self, count: int, step: int) -> np.ndarray:
        """Lists entries of ids that were seen longest ago, the oldest first.

        Args:
          count: At most how many.
          step: Only ids that were last seen before this call.
        """
        oldest_rows = np.empty(min(count, len(self)), np.int64)
        n_found = compiled_loops().list_oldest(self.arrays, step, oldest_rows)
        return oldest_rows[:n_found]

    def rarest(self, count: int, step: int) -> np.ndarray:
        """Lists entries of ids that were seen least often; of equal counts the oldest first, then the lowest entry.

        Args:
          count: At most how many.
          step: Only ids that were last seen before this call.
        """
        lines = self.arrays.lines[: self.n_used]
        is_used = lines[:, PLACE] != NONE
        is_older = lines[:, SEEN] < step
        entries = np.flatnonzero(is_used & is_older)
        counts = lines[entries, COUNT]
        if count < len(entries):
            # Sorting all of them would take ten times as long.
            bound = np.partition(counts, count - 1)[count - 1]
            entries = entries[counts <= bound]
            counts = lines[entries, COUNT]
        seen = lines[entries, SEEN]
        order = np.lexsort((entries, seen, counts))
        return entries[order[:count]]

    def restore(
        self,
        entries: np.ndarray,
        lines: np.ndarray,
        free: np.ndarray,
    ) -> None:
        """Fills an empty table.

        Args:
          entries: `[n]`, of all ids, the one that was seen longest ago first.
          lines: `[n, 3]`, their ids, counts and last calls.
          free: `[m]`, the free entries among the first `n + m`, the one that is used next last.
        """
        n_ids = len(entries)
        n_used = n_ids + len(free)
        self.reserve(n_used, n_used)
        arrays = self.arrays
        arrays.lines[entries, :PLACE] = lines
        arrays.lines[entries, PLACE] = np.arange(n_ids)
        arrays.queue[:n_ids] = entries
        arrays.free[: len(free)] = free
        arrays.numbers[N_USED] = n_used
        arrays.numbers[N_FREE] = len(free)
        arrays.numbers[TAIL] = n_ids
        compiled_loops().fill_slots(arrays)


def empty_slots(n_ids: int) -> np.ndarray:
    """Makes empty slots, at least twice as many as ids.

    Args:
      n_ids: How many ids there may be.
    """
    n_slots = 1 << max(2 * n_ids, 4).bit_length()
    return np.full((n_slots, 2), NONE, np.int64)


def _empty_arrays(n_entries: int) -> IdArrays:
    return IdArrays(
        empty_slots(n_entries),
        np.full((n_entries, N_COLUMNS), NONE, np.int64),
        np.empty(2 * n_entries, np.int64),
        np.empty(n_entries, np.int64),
        np.zeros(N_NUMBERS, np.int64),
    )
