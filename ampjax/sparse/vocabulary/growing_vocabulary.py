"""A vocabulary that grows: rows of a table for new ids, and from ids that come no more.

Knows ids and numbers of rows; nothing of the table that holds the rows. `Table.assign` and `Runner.assign_rows` give rows new values.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.errors import DataError, SettingsError
from ampjax.sparse.vocabulary import vocabulary_files
from ampjax.sparse.vocabulary.id_admission import (
    AdmittedIds,
    IdAdmission,
    VocabularySettings,
)
from ampjax.sparse.vocabulary.id_columns import ID, NONE, PLACE
from ampjax.sparse.vocabulary.string_codes import StringCodes
from ampjax.sparse.vocabulary.vocabulary_files import SavedVocabulary
from ampjax.utils.interrupts import uninterrupted

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
    """Counts of a vocabulary's calls, reads and changes so far.

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


class Vocabulary:
    """A vocabulary that grows: rows of a table for ids, any integers or strings.

    Call `admit` with a batch's ids before its step: an id gets a row when it has been seen often enough. Until then, and where there is no row
    for it, it reads row 0, the unknown row, which is trained like any other. Rows that `admit` has given to new ids still have the values and
    the optimizer state of the ids before them: give them new ones with `Runner.assign_rows` or `Table.assign`. The same ids in the same order
    get the same rows. One call runs at a time. Strings take about ten times as long as integers.

    Args:
      n_rows: Rows of the table at first, the unknown row included.
      max_rows: Rows that the table may have. When all rows are taken, `n_rows` doubles until it reaches this number; only then ids lose rows to
        others. None: the table never grows.
      admit_after: How often an id must have been seen to get a row. If it comes several times in one batch, each of them counts.
      evict: Which id loses its row to a new one when there is none left. `age`: the one that was seen longest ago. `frequency`: the one that was
        seen least often since it was new; of equal ones the one that was seen longest ago; a batch that needs room then looks at all ids. None:
        no id does. An id of the same batch never does.
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
        settings = VocabularySettings(
            n_rows,
            most,
            admit_after,
            evict,
            max_age,
            max_candidates,
            strings,
        )
        self._ids = IdAdmission(settings)
        self._codes = StringCodes() if strings else None
        self._counts = VocabularyCounts()

    def __len__(self) -> int:
        return len(self._ids.known)

    def __repr__(self) -> str:
        kind = "strings" if self._ids.settings.strings else "integers"
        rows = f"{self.n_rows} of at most {self.max_rows} rows"
        return f"Vocabulary({len(self)} {kind}, {rows})"

    @property
    def n_rows(self) -> int:
        """Rows that the table must have by now, the unknown row included."""
        result = self._ids.settings.n_rows
        while result <= self._ids.known.n_used:
            result = min(2 * result, self.max_rows)
        return result

    @property
    def max_rows(self) -> int:
        """Rows that the table may have."""
        return self._ids.settings.max_rows

    @property
    def counts(self) -> VocabularyCounts:
        """The counts of calls, reads and changes so far."""
        return self._counts

    def ids(self) -> tuple[Any, np.ndarray]:
        """Lists all ids that have rows.

        Returns:
          The ids, `[n]`, and their rows, `[n]`, in the order of the rows.
        """
        entries = np.sort(self._ids.known.by_age())
        return self._as_given(self._ids.known.arrays.lines[entries, ID]), _rows(entries)

    def rows(self, ids: Any) -> np.ndarray:
        """Finds the rows of ids, as for an evaluation; nothing changes, and nothing is counted.

        Args:
          ids: As `admit` takes them.

        Returns:
          Int32, of the ids' shape; 0, the unknown row, for ids that have no row of their own.

        Raises:
          DataError: If they are no integers of 64 bits, or no strings where ids are strings.
        """
        id_array = self._check_ids(ids)
        numbers = id_array.reshape(-1)
        if self._codes is not None:
            numbers = self._codes.find(numbers.tolist())
        return _rows(self._ids.known.find(numbers)).reshape(id_array.shape)

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
        id_array = self._check_ids(ids)
        numbers = id_array.reshape(-1)
        with uninterrupted():
            if self._codes is not None:
                numbers = self._codes.give(numbers.tolist())
            admitted = self._ids.admit(numbers, self._counts.calls + 1)
            changes = VocabularyChanges(
                rows=_rows(admitted.new[:, 0]),
                ids=self._as_given(admitted.new[:, 1]),
                evicted_rows=_rows(admitted.lost[:, 0]),
                evicted_ids=self._as_given(admitted.lost[:, 1]),
                unknown=int((admitted.entries == NONE).sum()),
                n_rows=self.n_rows,
            )
            self._forget_codes(admitted)
            self._note(changes, admitted)
        return _rows(admitted.entries).reshape(id_array.shape), changes

    def _note(
        self,
        changes: VocabularyChanges,
        admitted: AdmittedIds,
    ) -> None:
        """Counts a call."""
        self._counts = self._counts.plus(
            calls=1,
            reads=len(admitted.entries),
            unknown=changes.unknown,
            admitted=len(admitted.new),
            evicted=len(admitted.lost),
            refused=admitted.n_refused,
            forgotten=len(admitted.forgotten),
        )

    # ---- ids as they are given ---------------------------------------------------------------------------------------

    def _check_ids(self, ids: Any) -> np.ndarray:
        """Ids of the right kind, in their shape: int64 in an array of their own, or strings as objects."""
        if isinstance(ids, np.ma.MaskedArray):
            fix = "Pass the ids that count, with `compressed()`."
            raise DataError("vocabulary, ids", "an array without a mask", "a masked one", fix)
        return _check_integers(ids) if self._codes is None else _check_strings(ids)

    def _as_given(self, numbers: np.ndarray) -> np.ndarray:
        """Ids in the form that users gave."""
        if self._codes is None:
            return numbers.copy()
        texts = np.empty(len(numbers), object)
        texts[:] = self._codes.texts(numbers)
        return texts

    def _forget_codes(self, admitted: AdmittedIds) -> None:
        """Forgets strings that are neither known nor candidates any more."""
        if self._codes is None:
            return
        gone = (admitted.lost[:, 1], admitted.forgotten, admitted.left_out)
        codes = np.unique(np.concatenate(gone))
        has_row = self._ids.known.find(codes) != NONE
        is_candidate = self._ids.candidates.find(codes) != NONE
        self._codes.forget(codes[~has_row & ~is_candidate])

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Writes the vocabulary to a folder, with checksums; if writing is interrupted, the earlier save there is still valid.

        Save it when the runner is saved, into a folder of its own beside the runner's: rows and ids belong together.

        Args:
          folder: Made if it is missing.
        """
        tables = []
        for table in (self._ids.known, self._ids.candidates):
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
            asdict(self._ids.settings),
            asdict(self._counts),
            known,
            self._ids.known.free.copy(),
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
            raise vocabulary_files.damage_error(
                folder, "settings and counts", f"{error}"
            ) from error
        result = cls(**saved.settings)
        vocabulary_files.check(folder, saved, settings.max_rows - 1, counts.calls)
        candidates = saved.candidates
        result._counts = counts
        result._codes = None if saved.texts is None else StringCodes(saved.texts)
        result._ids.known.restore(
            saved.known[:, 0],
            saved.known[:, 1:],
            saved.free,
        )
        result._ids.candidates.restore(
            np.arange(len(candidates)),
            candidates[:, 1:],
            np.empty(0, np.int64),
        )
        return result


def _rows(entries: np.ndarray) -> np.ndarray:
    """The rows of entries, int32: row 0 belongs to ids without an entry."""
    return (entries + 1).astype(np.int32)


def _check_integers(ids: Any) -> np.ndarray:
    """Ids as int64, a copy.

    Raises:
      DataError: If they are no integers, or too large.
    """
    where = "vocabulary, ids"
    try:
        array = np.asarray(ids)
    except ValueError:
        fix = "Join them to one list: `np.concatenate(ids)`."
        raise DataError(where, "an array", "lists of unequal lengths", fix) from None
    if not array.size:
        return np.zeros(array.shape, np.int64)
    if array.dtype.kind not in "iu":
        fix = "Cast them; a vocabulary of strings is made with `strings=True`."
        raise DataError(where, "integers of 64 bits", f"{array.dtype}", fix)
    if array.dtype.kind == "u" and int(array.max()) > _INT64.max:
        fix = "Hash them to 63 bits, or pass their bits as negative numbers: `ids.view(np.int64)`."
        raise DataError(where, f"integers up to {_INT64.max}", f"{array.max()}", fix)
    return np.array(array, np.int64, order="C")


def _check_strings(ids: Any) -> np.ndarray:
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
