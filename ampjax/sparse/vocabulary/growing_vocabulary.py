"""A vocabulary that grows: gives rows of a table to ids as they come, and takes rows back from ids that come no more.

Knows ids and numbers of rows; nothing of the table that holds the rows. `Table.assign` and `Runner.assign_rows` give rows new values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.errors import DataError, SettingsError
from ampjax.sparse.vocabulary import vocabulary_files
from ampjax.sparse.vocabulary.id_columns import (
    ID,
    N_EVICTED,
    N_FORGOTTEN,
    N_REFUSED,
    N_TALLIES,
    NONE,
    PLACE,
)
from ampjax.sparse.vocabulary.id_table import IdTable, compiled_loops, empty_slots
from ampjax.sparse.vocabulary.string_codes import StringCodes
from ampjax.sparse.vocabulary.vocabulary_files import SavedVocabulary
from ampjax.utils.interrupts import uninterrupted
from ampjax.utils.setting_checks import at_least, one_of

_ORDERS = ("age", "frequency", None)
_MOST_ROWS = 2**31 - 1
_INT64 = np.iinfo(np.int64)


@dataclass(frozen=True)
class VocabularyChanges:
    """The changes that a vocabulary has made for a batch.

    Args:
      rows: `[k]`, the rows that new ids have got. They need new values, and fresh optimizer state.
      ids: `[k]`, these ids.
      evicted_rows: `[m]`, the rows that ids have lost; new ids may have got some of them.
      evicted_ids: `[m]`, these ids.
      unknown: How many of the batch's ids read the unknown row.
      n_rows: How many rows the table must have by now.
    """

    rows: np.ndarray
    ids: np.ndarray
    evicted_rows: np.ndarray
    evicted_ids: np.ndarray
    unknown: int
    n_rows: int


@dataclass(frozen=True)
class VocabularyCounts:
    """What a vocabulary has done so far.

    Args:
      calls: Calls of `admit`.
      reads: Ids in these, each as often as it came.
      unknown: How many of them read the unknown row.
      admitted: Ids that have got rows; one that has lost its row and comes back counts again.
      evicted: Ids that have lost their rows.
      refused: How often an id had been seen often enough in a call, and there was no row for it.
      forgotten: Ids that were forgotten before they had been seen often enough.
    """

    calls: int = 0
    reads: int = 0
    unknown: int = 0
    admitted: int = 0
    evicted: int = 0
    refused: int = 0
    forgotten: int = 0

    def plus(self, **more: int) -> VocabularyCounts:
        """Adds to some counts.

        Args:
          **more: By count how much.
        """
        sums = {}
        for each in fields(self):
            sums[each.name] = getattr(self, each.name) + more.get(each.name, 0)
        return VocabularyCounts(**sums)


@dataclass(frozen=True)
class VocabularySettings:
    """A vocabulary's settings, checked; `Vocabulary` says what they mean.

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


class Vocabulary:
    """A vocabulary that grows: it gives rows of a table to ids, which may be any integers or strings.

    Call `admit` with a batch's ids before its step: an id gets a row when it has been seen often enough. Until then, and where there is no row
    for it, it reads row 0, the unknown row, which is trained like any other. Rows that `admit` has given to new ids still have the values and
    the optimizer state of the ids before them: give them new ones with `Runner.assign_rows` or `Table.assign`. The same ids in the same order
    get the same rows. An id takes about 100 bytes of host memory; 20,000 ids that are known take about a millisecond, strings five times as long.

    Args:
      n_rows: Rows of the table at first, the unknown row included.
      max_rows: Rows that the table may have. When all rows are taken, `n_rows` doubles until it reaches this number; only then ids lose rows to
        others. None: the table never grows.
      admit_after: How often an id must have been seen to get a row. If it comes several times in one batch, each of them counts.
      evict: Which id loses its row to a new one when there is none left. `age`: the one that was seen longest ago. `frequency`: the one that was
        seen least often since it was new; of equal ones the one that was seen longest ago. None: no id does. An id of the same batch never does.
      max_age: An id that was not in the last so many batches loses its row, also if no other id needs it; and an id that is not admitted yet is
        forgotten. None: however old it is.
      max_candidates: How many ids that are not admitted yet are remembered; if there are more, the one that was seen longest ago is forgotten, and
        begins anew. None: as many as `max_rows`; none are if `admit_after` is 1.
      strings: Whether ids are strings, not integers.

    Raises:
      SettingsError: If a setting is out of its range.

    >>> vocabulary = Vocabulary(4, admit_after=2)
    >>> rows, changes = vocabulary.admit(np.array([10**15, -7, 10**15, 5]))
    >>> rows.tolist(), changes.rows.tolist(), changes.unknown
    ([1, 0, 1, 0], [1], 2)
    >>> vocabulary.admit(np.array([5, 10**15]))[0].tolist()
    [2, 1]
    """

    def __init__(
        self,
        n_rows: int,
        max_rows: int | None = None,
        *,
        admit_after: int = 1,
        evict: str | None = "age",
        max_age: int | None = None,
        max_candidates: int | None = None,
        strings: bool = False,
    ):
        most = n_rows if max_rows is None else max_rows
        if max_candidates is None:
            max_candidates = 0 if admit_after == 1 else most
        self._settings = VocabularySettings(
            n_rows, most, admit_after, evict, max_age, max_candidates, strings
        )
        self._known = IdTable()  # entry e has row e + 1
        self._candidates = IdTable()
        self._codes = StringCodes() if strings else None
        self._counts = VocabularyCounts()

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        kind = "strings" if self._settings.strings else "integers"
        rows = f"{self.n_rows} of at most {self.max_rows} rows"
        return f"Vocabulary({len(self)} {kind}, {rows})"

    @property
    def n_rows(self) -> int:
        """Rows that the table must have by now, the unknown row included."""
        result = self._settings.n_rows
        while result <= self._known.n_used:
            result = min(2 * result, self.max_rows)
        return result

    @property
    def max_rows(self) -> int:
        """Rows that the table may have."""
        return self._settings.max_rows

    @property
    def counts(self) -> VocabularyCounts:
        """The counts of what it has done so far."""
        return self._counts

    def ids(self) -> tuple[Any, np.ndarray]:
        """Lists all ids that have rows.

        Returns:
          The ids, `[n]`, and their rows, `[n]`, in the order of the rows.
        """
        entries = np.sort(self._known.by_age())
        return self._as_given(self._known.arrays.lines[entries, ID]), _rows(entries)

    def rows(self, ids: Any) -> np.ndarray:
        """Finds the rows of ids, as for an evaluation; nothing changes, and nothing is counted.

        Args:
          ids: As `admit` takes them.

        Returns:
          Int32, of the ids' shape; 0, the unknown row, for ids that have no row of their own.

        Raises:
          DataError: If they are no integers of 64 bits, or no strings where ids are strings.
        """
        given = self._checked(ids)
        numbers = given.reshape(-1)
        if self._codes is not None:
            numbers = self._codes.find(numbers.tolist())
        return _rows(self._known.find(numbers)).reshape(given.shape)

    def admit(self, ids: Any) -> tuple[np.ndarray, VocabularyChanges]:
        """Finds the rows of a batch's ids, and gives rows to new ids.

        Args:
          ids: Integers of any shape, from -2^63 to 2^63 - 1; or strings, where ids are strings. They may repeat.

        Returns:
          The rows, int32, of the ids' shape; 0, the unknown row, for ids that have no row of their own. And the changes: `changes.rows` need new
          values before the step.

        Raises:
          DataError: If they are no integers of 64 bits, or no strings where ids are strings. Nothing has changed then.
        """
        given = self._checked(ids)
        numbers = given.reshape(-1)
        with uninterrupted():
            if self._codes is not None:
                numbers = self._codes.give(numbers.tolist())
            rows, changes = self._take_in(numbers)
        return rows.reshape(given.shape), changes

    def _take_in(self, ids: np.ndarray) -> tuple[np.ndarray, VocabularyChanges]:
        """Does the work of `admit`, with ids as integers `[n]`."""
        step = self._counts.calls + 1
        aged, outdated = self._drop_aged(step)
        entries = np.empty(len(ids), np.int64)
        misses = np.empty(len(ids), np.int64)
        n_misses = compiled_loops().see(self._known.arrays, ids, step, entries, misses)
        misses = misses[:n_misses]
        new, counts, places = _find_distinct(ids, misses)
        got, evicted, forgotten, n_refused = self._admit_distinct(new, counts, step)
        entries[misses] = got[places]
        lost = np.concatenate([aged, evicted])
        forgotten = np.concatenate([outdated, forgotten])
        is_admitted = got != NONE
        changes = VocabularyChanges(
            rows=_rows(got[is_admitted]),
            ids=self._as_given(new[is_admitted]),
            evicted_rows=_rows(lost[:, 0]),
            evicted_ids=self._as_given(lost[:, 1]),
            unknown=int((entries == NONE).sum()),
            n_rows=self.n_rows,
        )
        self._forget_codes([lost[:, 1], forgotten, new[~is_admitted]])
        self._counts = self._counts.plus(
            calls=1,
            reads=len(ids),
            unknown=changes.unknown,
            admitted=len(changes.rows),
            evicted=len(lost),
            refused=n_refused,
            forgotten=len(forgotten),
        )
        return _rows(entries), changes

    def _drop_aged(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Takes out ids that are too old.

        Returns:
          Entries and ids that have lost their rows, `[n, 2]`, and ids that were candidates, `[m]`.
        """
        max_age = self._settings.max_age
        if max_age is None:
            return np.empty((0, 2), np.int64), np.empty(0, np.int64)
        aged = self._known.drop_older(step - max_age)
        outdated = self._candidates.drop_older(step - max_age)
        return (
            np.stack([aged, self._known.arrays.lines[aged, ID]], axis=1),
            self._candidates.arrays.lines[outdated, ID],
        )

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
        settings = self._settings
        loops = compiled_loops()
        most = settings.max_rows - 1
        n_ripe = loops.count_ripe(
            self._candidates.arrays,
            ids,
            counts,
            settings.admit_after,
        )
        self._known.reserve(n_ripe, most)
        self._candidates.reserve(len(ids), settings.max_candidates)
        victims = self._victims(n_ripe - (most - len(self)), step)
        victim_ids = self._known.arrays.lines[victims, ID]
        entries = np.empty(len(ids), np.int64)
        forgotten = np.empty(len(ids), np.int64)
        tally = np.zeros(N_TALLIES, np.int64)
        loops.take_in(
            self._known.arrays,
            self._candidates.arrays,
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
        return (
            entries,
            evicted[: tally[N_EVICTED]],
            forgotten[: tally[N_FORGOTTEN]],
            int(tally[N_REFUSED]),
        )

    def _victims(self, count: int, step: int) -> np.ndarray:
        """Lists entries of ids that lose their rows if others need them, at most so many; ids of this call are not among them."""
        if count <= 0 or self._settings.evict is None:
            return np.empty(0, np.int64)
        if self._settings.evict == "age":
            return self._known.oldest(count, step)
        return self._known.rarest(count, step)

    # ---- ids as they are given ---------------------------------------------------------------------------------------

    def _checked(self, ids: Any) -> np.ndarray:
        """Ids of the right kind, in their shape: int64 in an array of their own, or strings as objects."""
        return _checked_integers(ids) if self._codes is None else _checked_strings(ids)

    def _as_given(self, numbers: np.ndarray) -> np.ndarray:
        """Ids as users gave them."""
        if self._codes is None:
            return numbers.copy()
        texts = np.empty(len(numbers), object)
        texts[:] = self._codes.texts(numbers)
        return texts

    def _forget_codes(self, numbers: Sequence[np.ndarray]) -> None:
        """Forgets strings that are neither known nor candidates any more."""
        if self._codes is None:
            return
        codes = np.unique(np.concatenate(numbers))
        has_row = self._known.find(codes) != NONE
        is_candidate = self._candidates.find(codes) != NONE
        self._codes.forget(codes[~has_row & ~is_candidate])

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Writes the vocabulary to a folder, with checksums; if writing is interrupted, what was saved there before is still valid.

        Save it when the runner is saved, into a folder of its own beside the runner's: rows and ids belong together.

        Args:
          folder: Made if it is missing.
        """
        tables = []
        for table in (self._known, self._candidates):
            entries = table.by_age()
            lines = table.arrays.lines[entries]
            tables.append(np.column_stack([entries, lines[:, :PLACE]]))
        known, candidates = tables
        texts = None
        if self._codes is not None:
            texts = self._codes.texts(np.concatenate([known[:, 1], candidates[:, 1]]))
            known[:, 1] = np.arange(len(known))
            candidates[:, 1] = np.arange(len(known), len(texts))
        saved = SavedVocabulary(
            asdict(self._settings),
            asdict(self._counts),
            known,
            self._known.free.copy(),
            candidates,
            texts,
        )
        vocabulary_files.save(folder, saved)

    @classmethod
    def load(cls, folder: str | Path) -> Vocabulary:
        """Loads a saved vocabulary, after a check of every byte. It goes on as the one that was saved.

        Args:
          folder: The folder that `save` wrote.

        Returns:
          The vocabulary.

        Raises:
          TableError: If files are missing, cut off or altered, or are of something else.
        """
        saved = vocabulary_files.load(folder)
        try:
            settings = VocabularySettings(**saved.settings)
            counts = VocabularyCounts(**saved.counts)
        except (TypeError, SettingsError) as error:
            raise vocabulary_files.damaged(folder, "settings and counts", f"{error}") from error
        result = cls(**saved.settings)
        vocabulary_files.check(folder, saved, settings.max_rows - 1, counts.calls)
        candidates = saved.candidates
        result._counts = counts
        result._codes = None if saved.texts is None else StringCodes(saved.texts)
        result._known.restore(saved.known[:, 0], saved.known[:, 1:], saved.free)
        result._candidates.restore(
            np.arange(len(candidates)),
            candidates[:, 1:],
            np.empty(0, np.int64),
        )
        return result


def _rows(entries: np.ndarray) -> np.ndarray:
    """The rows of entries, int32: row 0 is the one of ids without an entry."""
    return (entries + 1).astype(np.int32)


def _find_distinct(
    ids: np.ndarray,
    misses: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Finds the distinct ones among some ids, in the order in which they first come.

    Args:
      ids: `[n]`.
      misses: `[m]`, places of the ids that are meant.

    Returns:
      The distinct ids `[k]`, how often each comes `[k]`, and for each of the misses the place of its id among them, `[m]`.
    """
    distinct = np.empty(len(misses), np.int64)
    counts = np.empty(len(misses), np.int64)
    places = np.empty(len(misses), np.int64)
    found = compiled_loops().find_distinct(
        ids,
        misses,
        empty_slots(len(misses)),
        distinct,
        counts,
        places,
    )
    return distinct[:found], counts[:found], places


def _checked_integers(ids: Any) -> np.ndarray:
    """Ids as int64, a copy.

    Raises:
      DataError: If they are no integers, or too large.
    """
    where = "vocabulary, ids"
    array = np.asarray(ids)
    if not array.size:
        return np.zeros(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        fix = "Cast them; a vocabulary of strings is made with `strings=True`."
        raise DataError(where, "integers of 64 bits", f"{array.dtype}", fix)
    if array.dtype.kind == "u" and int(array.max()) > _INT64.max:
        fix = "Hash them to 63 bits, or pass their bits as negative numbers: `ids.view(np.int64)`."
        raise DataError(where, f"integers up to {_INT64.max}", f"{array.max()}", fix)
    return np.array(array, np.int64, order="C")


def _checked_strings(ids: Any) -> np.ndarray:
    """Ids as an array of strings, which are objects.

    Raises:
      DataError: If they are no strings.
    """
    array = np.asarray(ids, None if isinstance(ids, np.ndarray) else object)
    if not array.size:
        return np.zeros(array.shape, object)
    texts = array.astype(object)
    for kind in {*map(type, texts.reshape(-1).tolist())}:
        if not issubclass(kind, str):
            fix = "Decode bytes with `np.char.decode`; integers go into a vocabulary without `strings=True`."
            raise DataError("vocabulary, ids", "strings", kind.__name__, fix)
    return texts
