"""Joins: a node with several inputs waits until all messages of one key are there.

Keys are dense integers (instance slot times the ranges of the key's fields as seen so far), so a join is a few array operations
for a whole batch. Where the ranges multiply beyond a bound, a dictionary numbers the keys instead.
"""

from __future__ import annotations

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.control import Key
from ampjax.ir.state import SLOT, Layout, State, apply, column
from ampjax.sched.cells import Lines

DENSE_LIMIT = 1 << 18
"""Entries of a dense table at most."""


class KeyNumbers:
    """Numbers the keys of states: equal keys get equal numbers, small ones.

    Args:
      by: The key's fields, a keying function of the state, or None for the whole state; the instance is always part of it.
      fields: The state fields of the messages.
      layout: Where the fields stand.
      where: The node's name, for messages.
    """

    def __init__(self, by: Key, fields: tuple[str, ...], layout: Layout, where: str):
        self._function = by if callable(by) else None
        self._layout, self._where = layout, where
        names = by if isinstance(by, tuple) else fields
        columns = sorted({SLOT, *(layout.column(f) for f in names if f != "instance")})
        together = columns == list(range(columns[0], columns[-1] + 1))
        self._columns: slice | list[int] = slice(columns[0], columns[-1] + 1) if together else columns
        self._low = self._outside = self._strides = np.zeros(0, np.int64)
        self._dictionary: dict[bytes, int] | None = None
        self._free: list[int] = []
        self._negative = False
        self.size = 0

    def values(self, states: np.ndarray, fields: tuple[str, ...]) -> np.ndarray:
        """The key columns `[n, k]` of states."""
        if self._function is None:
            return states[:, self._columns]
        where = f"node `{self._where}`, key"
        result = apply(where, self._function, State(states, self._layout, fields))
        parts = result if isinstance(result, tuple) else (result,)
        return np.stack([states[:, SLOT], *(column(where, part, len(states)) for part in parts)], axis=1)

    def numbers(self, values: np.ndarray) -> np.ndarray | None:
        """The numbers `[n]` of key columns; None if a value is outside the ranges, which `fit` widens."""
        if self._dictionary is not None:
            return self._from_dictionary(values)
        if not self.size:
            return None
        shifted = values - self._low if self._negative else values
        if np.count_nonzero(shifted & self._outside):
            return None
        return shifted[:, 0] if shifted.shape[1] == 1 else shifted @ self._strides

    @property
    def in_dictionary(self) -> bool:
        """Whether a dictionary numbers the keys, because their ranges multiply beyond `DENSE_LIMIT`."""
        return self._dictionary is not None

    def fit(self, values: np.ndarray) -> None:
        """Widens the ranges so that they hold `values`; all numbers given before become invalid."""
        low, high = values.min(axis=0), values.max(axis=0)
        if self.size:
            low, high = np.minimum(low, self._low), np.maximum(high, self._low + ~self._outside)
        low = np.where(low >= 0, 0, low)
        # Python's integers: the span of a column can exceed 64 bits.
        spans = [1 << (top - bottom).bit_length() for top, bottom in zip(high.tolist(), low.tolist(), strict=True)]
        if np.prod([float(span) for span in spans]) > DENSE_LIMIT:
            self._dictionary, self.size = {}, 1024
            self._free = list(range(1023, -1, -1))
            return
        self._negative = bool(low.any())
        self._low, self._outside = low, ~(np.array(spans, np.int64) - 1)
        self._strides = np.cumprod([1, *spans[:0:-1]], dtype=np.int64)[::-1].copy()
        self.size = int(np.prod(spans))

    def forget(self, values: np.ndarray) -> None:
        """Lets a dictionary's numbers of keys that are done be used again."""
        assert self._dictionary is not None
        for value in np.ascontiguousarray(values):
            self._free.append(self._dictionary.pop(value.tobytes()))

    def _from_dictionary(self, values: np.ndarray) -> np.ndarray:
        assert self._dictionary is not None
        known, out = self._dictionary, np.empty(len(values), np.int64)
        for i, value in enumerate(np.ascontiguousarray(values)):
            key = value.tobytes()
            number = known.get(key)
            if number is None:
                if not self._free:
                    self._free = list(range(2 * self.size - 1, self.size - 1, -1))
                    self.size *= 2
                number = known[key] = self._free.pop()
            out[i] = number
        return out


class Join:
    """What waits at one node's input ports.

    Args:
      where: The node's name, for messages.
      ports: Names of the input ports.
      by: What makes messages belong together.
      fields: Each port's state fields.
      layout: Where the fields stand.
    """

    def __init__(
        self, where: str, ports: tuple[str, ...], by: Key, fields: tuple[tuple[str, ...], ...], layout: Layout
    ):
        self.where, self.ports, self._fields, self._layout = where, ports, fields, layout
        self._keys = KeyNumbers(by, fields[0], layout, where)
        self._resize(0)

    @property
    def waiting(self) -> int:
        """Messages that wait."""
        return int(np.count_nonzero(self._cells.array))

    def put(self, port: int, states: np.ndarray, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Takes messages at a port; returns those that are complete now: port 0's states `[m, width]`, input cells `[m, ports]`.

        Raises:
          MessageError: If a message with the same key waits at the port already. Nothing has been taken then.
        """
        numbers = self._numbers(port, states)
        here = self._here[port]
        if np.count_nonzero(here[numbers]):
            self._refuse(port, states[here[numbers] != 0])
        here[numbers] = cells
        inputs = self._cells.take(numbers)
        if len(cells) > 1 and np.count_nonzero(inputs[:, port] != cells):
            here[numbers] = 0
            self._refuse(port, states[inputs[:, port] != cells])
        n_there = np.count_nonzero(inputs)
        if n_there == inputs.size:
            return self._completed(port, numbers, states, inputs)
        complete = inputs.all(axis=1) if n_there > len(cells) else np.zeros(len(cells), bool)
        if not np.count_nonzero(complete):
            self._states[port].put(numbers, states)
            return states[:0], inputs[:0]
        self._states[port].put(numbers[~complete], states[~complete])
        return self._completed(port, numbers[complete], states[complete], inputs[complete])

    def _completed(
        self, port: int, numbers: np.ndarray, states: np.ndarray, inputs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Messages leave: those that have just come at a port, and all that have waited for them."""
        self._cells.clear(numbers)
        if self._keys.in_dictionary:
            self._keys.forget(self._keys.values(states, self._fields[port]))
        return states if port == 0 else self._states[0].take(numbers), inputs

    def pending(self) -> list[tuple[int, np.ndarray, int]]:
        """What waits: `(port, state [width], cell)` of each message."""
        cells = self._cells.array.T
        ports, numbers = np.nonzero(cells)
        return [(int(p), self._states[p].array[i], int(cells[p, i])) for p, i in zip(ports, numbers, strict=True)]

    def key(self, port: int, state: np.ndarray) -> tuple[int, ...]:
        """The key of a message at a port."""
        return tuple(self._keys.values(state[None], self._fields[port])[0].tolist())

    def _numbers(self, port: int, states: np.ndarray) -> np.ndarray:
        """The numbers of the messages' keys, within the tables."""
        values = self._keys.values(states, self._fields[port])
        numbers = self._keys.numbers(values)
        if numbers is None:
            self._widen(values)
            numbers = self._keys.numbers(values)
            assert numbers is not None
        if self._keys.size > len(self._cells):
            self._resize(self._keys.size)
        return numbers

    def _widen(self, values: np.ndarray) -> None:
        """Makes room for keys outside the ranges: what waits gets new numbers."""
        waiting = self.pending()
        self._keys.fit(values)
        self._resize(0)
        for port, state, cell in waiting:
            number = self._keys.numbers(self._keys.values(state[None], self._fields[port]))
            assert number is not None
            if self._keys.size > len(self._cells):
                self._resize(self._keys.size)
            self._here[port][number] = cell
            self._states[port].put(number, state[None])

    def _resize(self, size: int) -> None:
        """Makes the tables `size` lines long; 0 empties them."""
        n, width = len(self.ports), self._layout.width
        self._cells = self._cells.grown(size) if size else Lines(0, n)
        self._states = [old.grown(size) for old in self._states] if size else [Lines(0, width) for _ in range(n)]
        self._here = [self._cells.array[:, port] for port in range(n)]

    def _refuse(self, port: int, states: np.ndarray) -> None:
        state = State(states[:1], self._layout, self._fields[port])
        raise MessageError(
            f"node `{self.where}`, port {self.ports[port]}",
            "one message per key",
            f"a second one with {state!r}",
            "Make states unique with an isu, or join on more fields.",
        )
