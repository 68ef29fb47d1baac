"""Numbers of keys: small integers that index tables, equal for messages that belong together.

There are three ways, from fast to general. *Direct*: the instance's handle times the ranges of the key's fields as seen so far. *Coded*: where these
multiply beyond a bound, the combinations of fields that have come are counted (a sequence of 10 steps has 54 pairs of step and length, not 256),
and instances times combinations make the number. *Dictionary*: where even that is too much, a dictionary numbers the keys one by one.
"""

from __future__ import annotations

import numpy as np

from ampjax.ir.ops.join_keys import Key
from ampjax.ir.state import HANDLE, Layout, State, apply, column

DIRECT_LIMIT = 1 << 18
"""Numbers that the ranges of fields may make, and combinations of fields that may be looked up."""

CODED_LIMIT = 1 << 20
"""Numbers that instances and combinations may make."""

FEWEST_CODES = 32
"""Combinations for which there must be room, if there may be as many: with less it would have to be made again and again."""

FIRST_DICTIONARY_SIZE = 64
"""Numbers that a dictionary has room for at first."""

NO_CODE = -1


class KeyColumns:
    """Finds the columns that make the keys of states.

    Args:
      by: The key's fields, a keying function of the state, or None for the whole state; the instance is always part of it.
      fields: The state fields of the messages.
      layout: The column of each state field.
      where: The node's name, for messages.
    """

    def __init__(
        self,
        by: Key,
        fields: tuple[str, ...],
        layout: Layout,
        where: str,
    ):
        self._function = by if callable(by) else None
        self._layout = layout
        self._where = where
        names = by if isinstance(by, tuple) else fields
        columns = sorted({HANDLE, *(layout.column(f) for f in names if f != "instance")})
        together = columns == list(range(columns[0], columns[-1] + 1))
        if together:
            self._columns: slice | list[int] = slice(
                columns[0],
                columns[-1] + 1,
            )
        else:
            self._columns = columns

    def values(
        self,
        states: np.ndarray,
        fields: tuple[str, ...],
    ) -> np.ndarray:
        """Gives the keys of states.

        Args:
          states: `[n, width]`.
          fields: The state fields that they carry.

        Returns:
          `[n, k]` int64: the key's columns; the first is the instance's handle.

        Raises:
          MessageError: If the keying function fails, or gives something else than integers.
        """
        if self._function is None:
            return states[:, self._columns]
        where = f"node `{self._where}`, key"
        result = apply(
            where,
            self._function,
            State(states, self._layout, fields),
        )
        parts = result if isinstance(result, tuple) else (result,)
        return np.stack(
            [
                states[:, HANDLE],
                *(column(where, part, len(states)) for part in parts),
            ],
            axis=1,
        )


class _Dictionary:
    """Numbers keys of any size one by one."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._free = list(range(FIRST_DICTIONARY_SIZE - 1, -1, -1))
        self.size = FIRST_DICTIONARY_SIZE

    def numbers(self, values: np.ndarray) -> np.ndarray:
        """The numbers `[n]` of keys `[n, k]`."""
        out = np.empty(len(values), np.int64)
        for i, value in enumerate(np.ascontiguousarray(values)):
            key = value.tobytes()
            number = self._known.get(key)
            if number is None:
                # Twice as many numbers, the low ones given out first.
                if not self._free:
                    self._free = list(range(2 * self.size - 1, self.size - 1, -1))
                    self.size *= 2
                number = self._known[key] = self._free.pop()
            out[i] = number
        return out

    def forget(self, values: np.ndarray) -> None:
        """Lets the numbers of keys `[n, k]` be used again."""
        for value in np.ascontiguousarray(values):
            self._free.append(self._known.pop(value.tobytes()))


class KeyNumbers:
    """Numbers the keys of states: equal keys get equal numbers, small ones.

    Args:
      by: The key's fields, a keying function of the state, or None for the whole state; the instance is always part of it.
      fields: The state fields of the messages.
      layout: The column of each state field.
      where: The node's name, for messages.
      room: Numbers at most, beyond which a dictionary gives them: each is a line of a table.
    """

    def __init__(
        self,
        by: Key,
        fields: tuple[str, ...],
        layout: Layout,
        where: str,
        room: int = CODED_LIMIT,
    ):
        # sizes are powers of two
        if room:
            room = 1 << (room.bit_length() - 1)
        else:
            room = 0
        self._direct_limit = min(DIRECT_LIMIT, room)
        self._coded_limit = min(CODED_LIMIT, room)
        self._columns = KeyColumns(by, fields, layout, where)
        self._low = self._outside = self._strides = np.zeros(
            0,
            np.int64,
        )
        self._codes: np.ndarray | None = None
        self._n_codes = self._n_handles = self._size = 0
        self._dictionary: _Dictionary | None = None
        self._negative = False

    @property
    def size(self) -> int:
        """An upper bound of all numbers, exclusive; 0 before `fit`."""
        return self._size if self._dictionary is None else self._dictionary.size

    def values(
        self,
        states: np.ndarray,
        fields: tuple[str, ...],
    ) -> np.ndarray:
        """Gives the keys of states; see `KeyColumns.values`.

        Args:
          states: `[n, width]`.
          fields: The state fields that they carry.

        Returns:
          `[n, k]` int64: the key's columns; the first is the instance's handle.

        Raises:
          MessageError: As `KeyColumns.values` does.
        """
        return self._columns.values(states, fields)

    def numbers(self, values: np.ndarray) -> np.ndarray | None:
        """Gives the numbers of keys.

        Args:
          values: `[n, k]`: key columns.

        Returns:
          `[n]` int64, below `size`; None if there is no room for a key, which `fit` makes.
        """
        # Slowest, but takes any key.
        if self._dictionary is not None:
            return self._dictionary.numbers(values)
        if not self._size:
            return None
        # A column outside its range has no number yet.
        shifted = values - self._low if self._negative else values
        if np.count_nonzero(shifted & self._outside):
            return None
        # Direct: each column has a stride of its own.
        if self._codes is None:
            if shifted.shape[1] == 1:
                return shifted[:, 0]
            return shifted @ self._strides
        # Coded: combinations are counted as they come, and may run out.
        places = shifted @ self._strides
        codes = self._codes.take(places)
        if codes.min(initial=0) < 0:
            if not self._add_codes(places[codes < 0]):
                return None
            codes = self._codes.take(places)
        return codes * self._n_handles + values[:, 0]

    @property
    def in_dictionary(self) -> bool:
        """Whether a dictionary numbers the keys."""
        return self._dictionary is not None

    def fit(self, values: np.ndarray) -> None:
        """Makes room for keys. All numbers that were given before become invalid.

        Args:
          values: `[n, k]`: key columns, of all keys that must have room.
        """
        low = values.min(axis=0)
        high = values.max(axis=0)
        # Ranges only grow: what had room keeps it.
        if self._size:
            low = np.minimum(low, self._low)
            high = np.maximum(high, self._low + ~self._outside)
        low = np.where(low >= 0, 0, low)
        # Python's integers: the span of a column can exceed 64 bits.
        spans = []
        for top, bottom in zip(high.tolist(), low.tolist(), strict=True):
            spans.append(1 << (top - bottom).bit_length())
        self._negative = bool(low.any())
        self._low = low
        n_handles = spans[0]
        combinations = float(np.prod([float(span) for span in spans[1:]]))
        # Too many for direct numbers: codes if few combinations come, else a dictionary, for good.
        if n_handles * combinations > self._direct_limit:
            few = (
                combinations <= self._direct_limit
                and n_handles * min(combinations, FEWEST_CODES) <= self._coded_limit
            )
            if not (few and self._fit_codes(values - low, n_handles, int(combinations), spans)):
                self._codes = None
                self._dictionary = _Dictionary()
            return
        self._outside = ~(np.array(spans, np.int64) - 1)
        # The instances' handles vary fastest: messages that travel together stand together, and lines of keys that never come are never touched.
        self._strides = np.cumprod(
            [1, *spans[:-1]],
            dtype=np.int64,
        )
        self._size = int(np.prod(spans))

    def forget(self, values: np.ndarray) -> None:
        """Lets a dictionary's numbers of keys that are done be used again.

        Args:
          values: `[n, k]`: key columns.
        """
        assert self._dictionary is not None
        self._dictionary.forget(values)

    def _fit_codes(
        self,
        values: np.ndarray,
        n_handles: int,
        combinations: int,
        spans: list[int],
    ) -> bool:
        """Counts the combinations of `values`, from which the lowest values have been taken; False if there are too many."""
        self._outside = ~(np.array(spans, np.int64) - 1)
        self._strides = np.cumprod([1, *spans[:0:-1]], dtype=np.int64)[::-1].copy()
        self._strides[0] = 0
        self._n_handles = n_handles
        self._n_codes = 0
        self._codes = np.full(combinations, NO_CODE, np.int64)
        self._size = n_handles
        fits = self._add_codes(values @ self._strides)
        # Half of the room is kept for combinations to come: else it would soon have to be fitted again, and again.
        return fits and 2 * self._n_codes * n_handles <= self._coded_limit

    def _add_codes(self, places: np.ndarray) -> bool:
        """Gives new combinations their codes; False if there is no room."""
        assert self._codes is not None
        new = np.unique(places)
        n_codes = self._n_codes + len(new)
        if n_codes * self._n_handles > self._coded_limit:
            return False
        self._codes[new] = np.arange(self._n_codes, n_codes)
        self._n_codes = n_codes
        self._size = self._n_handles * (1 << (n_codes - 1).bit_length())
        return True
