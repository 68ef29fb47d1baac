"""Admission of ids to a limited number of entries. Knows integers only.

An id is *known* if it has an entry; a *candidate* has been seen, but not often enough, or there was no entry left for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ampjax.errors import SettingsError
from ampjax.sparse.vocabulary.id_columns import (
    ID,
    N_EVICTED,
    N_FORGOTTEN,
    N_REFUSED,
    N_TALLIES,
    NONE,
)
from ampjax.sparse.vocabulary.id_table import IdTable, compiled_loops, empty_slots
from ampjax.utils.setting_checks import at_least, one_of

_ORDERS = ("age", "frequency", None)
_MOST_ROWS = 2**31 - 1


@dataclass(frozen=True)
class VocabularySettings:
    """The settings of a vocabulary, checked; `Vocabulary` explains each.

    Args:
      n_rows: Rows of the table at first.
      max_rows: Rows that it may have.
      admit_after: How often an id must be seen.
      evict: Which id loses its row for another.
      max_age: Calls after which an id loses its row.
      max_candidates: How many ids without rows are remembered.
      strings: Whether ids are strings.

    Raises:
      SettingsError: If one is out of its range.
    """

    n_rows: int
    max_rows: int
    admit_after: int
    evict: str | None
    max_age: int | None
    max_candidates: int
    strings: bool

    def __post_init__(self) -> None:
        at_least("n_rows", self.n_rows, 2)
        at_least("max_rows", self.max_rows, self.n_rows)
        if self.max_rows > _MOST_ROWS:
            raise SettingsError(
                "setting `max_rows`",
                f"at most {_MOST_ROWS}, since row numbers are int32",
                f"{self.max_rows}",
                "Use several tables.",
            )
        at_least("admit_after", self.admit_after, 1)
        one_of("evict", self.evict, _ORDERS)
        if self.max_age is not None:
            at_least("max_age", self.max_age, 1)
        at_least("max_candidates", self.max_candidates, int(self.admit_after > 1))
        one_of("strings", self.strings, (False, True))


class AdmittedIds(NamedTuple):
    """The outcome of a call.

    Args:
      entries: `[n]`, the entries of the call's ids, or `NONE`.
      new: `[k, 2]`, entries and ids that were admitted.
      lost: `[m, 2]`, entries and ids that were known before.
      forgotten: `[f]`, ids that were candidates before.
      left_out: `[l]`, ids of the call that have no entry.
      n_refused: How many of these had been seen often enough.
    """

    entries: np.ndarray
    new: np.ndarray
    lost: np.ndarray
    forgotten: np.ndarray
    left_out: np.ndarray
    n_refused: int


class IdAdmission:
    """The known ids and the candidates of a vocabulary. Entry e is row e + 1.

    Args:
      settings: The vocabulary's.
    """

    def __init__(self, settings: VocabularySettings):
        self.settings = settings
        self.known = IdTable()
        self.candidates = IdTable()

    def admit(self, ids: np.ndarray, step: int) -> AdmittedIds:
        """Finds the entries of ids, and gives entries to new ids.

        Args:
          ids: `[n]`, int64, an array that may be written to.
          step: The call's number.

        Returns:
          What has become of them.
        """
        aged, outdated = self._drop_aged(step)
        entries = np.empty(len(ids), np.int64)
        misses = np.empty(len(ids), np.int64)
        n_misses = compiled_loops().see(
            self.known.arrays,
            ids,
            step,
            entries,
            misses,
        )
        misses = misses[:n_misses]
        distinct, counts, places = _find_distinct(ids, misses)
        got, evicted, forgotten, n_refused = self._admit_distinct(distinct, counts, step)
        entries[misses] = got[places]
        has_entry = got != NONE
        new = np.stack([got, distinct], axis=1)
        return AdmittedIds(
            entries,
            new[has_entry],
            np.concatenate([aged, evicted]),
            np.concatenate([outdated, forgotten]),
            distinct[~has_entry],
            n_refused,
        )

    def _drop_aged(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Takes out ids that are too old.

        Returns:
          Entries and ids that have lost their rows, `[n, 2]`, and ids that were candidates, `[m]`.
        """
        max_age = self.settings.max_age
        if max_age is None:
            return np.empty(
                (0, 2),
                np.int64,
            ), np.empty(0, np.int64)
        aged = self.known.drop_older(step - max_age)
        outdated = self.candidates.drop_older(step - max_age)
        aged_ids = self.known.arrays.lines[aged, ID]
        outdated_ids = self.candidates.arrays.lines[outdated, ID]
        return np.stack([aged, aged_ids], axis=1), outdated_ids

    def _admit_distinct(
        self,
        ids: np.ndarray,
        counts: np.ndarray,
        step: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
        """Admits ids that have been seen often enough, as far as there is room.

        Args:
          ids: `[n]`, each once; none is known.
          counts: `[n]`, how often each was seen in this call.
          step: The call's number.

        Returns:
          Their entries, `[n]`; entries and ids that have lost their rows, `[m, 2]`; ids that are forgotten, `[k]`; how many ids found no room.
        """
        settings = self.settings
        loops = compiled_loops()
        most = settings.max_rows - 1
        n_ripe = loops.count_ripe(
            self.candidates.arrays,
            ids,
            counts,
            settings.admit_after,
        )
        n_ripe = int(n_ripe)  # NumPy's, where Numba is switched off
        self.known.reserve(n_ripe, most)
        self.candidates.reserve(len(ids), settings.max_candidates)
        victims = self._victims(n_ripe - (most - len(self.known)), step)
        victim_ids = self.known.arrays.lines[victims, ID]
        entries = np.empty(len(ids), np.int64)
        forgotten = np.empty(len(ids), np.int64)
        tally = np.zeros(N_TALLIES, np.int64)
        loops.take_in(
            self.known.arrays,
            self.candidates.arrays,
            ids,
            counts,
            step,
            settings.admit_after,
            most,
            settings.max_candidates,
            victims,
            entries,
            forgotten,
            tally,
        )
        evicted = np.stack([victims, victim_ids], axis=1)
        evicted = evicted[: tally[N_EVICTED]]
        forgotten = forgotten[: tally[N_FORGOTTEN]]
        return entries, evicted, forgotten, int(tally[N_REFUSED])

    def _victims(self, count: int, step: int) -> np.ndarray:
        """Lists at most so many entries of ids that lose their rows for others, without ids of this call."""
        if count <= 0 or self.settings.evict is None:
            return np.empty(0, np.int64)
        if self.settings.evict == "age":
            return self.known.oldest(count, step)
        return self.known.rarest(count, step)


def _find_distinct(
    ids: np.ndarray,
    misses: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the distinct ids among some ids, in the order of their first places.

    Args:
      ids: `[n]`.
      misses: `[m]`, places of the ids that are meant.

    Returns:
      The distinct ids `[k]`, how often each comes `[k]`, and for each of the misses the place of its id among them, `[m]`.
    """
    distinct = np.empty(len(misses), np.int64)
    counts = np.empty(len(misses), np.int64)
    places = np.empty(len(misses), np.int64)
    n_distinct = compiled_loops().find_distinct(
        ids,
        misses,
        empty_slots(len(misses)),
        distinct,
        counts,
        places,
    )
    return distinct[:n_distinct], counts[:n_distinct], places
