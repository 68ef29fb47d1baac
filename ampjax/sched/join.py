"""Joins: a node with several inputs waits until all messages of one key are there.

Keys are dense integers (instance slot times the ranges of the key's fields as seen so far), so a join is a few array operations
for a whole batch. Where the ranges multiply beyond a bound, a dictionary numbers the keys instead.
"""

from __future__ import annotations

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.control import Key
from ampjax.ir.state import SLOT, Layout, State, apply, column

DENSE_LIMIT = 1 << 21
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
        self._columns = [SLOT, *(layout.column(f) for f in names if f != "instance")]
        self._low = self._outside = self._strides = np.zeros(0, np.int64)
        self._dictionary: dict[bytes, int] | None = None
        self._free: list[int] = []
        self.size = self._n_values = 0

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
        shifted = values - self._low
        if (shifted & self._outside).any():
            return None
        return shifted @ self._strides

    @property
    def width(self) -> int:
        """Key columns (0 until the first key has been seen)."""
        return self._n_values

    def fit(self, values: np.ndarray) -> None:
        """Widens the ranges so that they hold `values`; all numbers given before become invalid."""
        self._n_values = values.shape[1]
        low, high = values.min(axis=0), values.max(axis=0)
        if self.size:
            low, high = np.minimum(low, self._low), np.maximum(high, self._low + ~self._outside)
        low = np.where(low >= 0, 0, low)
        spans = [1 << int(span).bit_length() for span in (high - low).tolist()]
        if np.prod([float(span) for span in spans]) > DENSE_LIMIT:
            self._dictionary, self.size = {}, 1024
            self._free = list(range(1023, -1, -1))
            return
        self._low, self._outside = low, ~(np.array(spans, np.int64) - 1)
        self._strides = np.cumprod([1, *spans[:0:-1]], dtype=np.int64)[::-1].copy()
        self.size = int(np.prod(spans))

    def forget(self, values: np.ndarray) -> None:
        """Lets the numbers of keys that are done be used again (only a dictionary needs that)."""
        if self._dictionary is not None:
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
        self._allocate(0, 0)
        self.waiting = 0

    def put(self, port: int, states: np.ndarray, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Takes messages at a port; returns those that are complete now: port 0's states `[m, width]`, input cells `[m, ports]`.

        Raises:
          MessageError: If a message with the same key waits at the port already.
        """
        values = self._keys.values(states, self._fields[port])
        numbers = self._keys.numbers(values)
        if numbers is None:
            self._keys.fit(values)
            self._move(renumber=True)
            numbers = self._keys.numbers(values)
            assert numbers is not None
        if self._keys.size > len(self._missing):
            self._move(renumber=False)
        here = self._cells[port]
        twice = here[numbers] != 0
        here[numbers] = cells
        twice |= here[numbers] != cells
        if twice.any():
            self._refuse(port, states[twice][:1])
        self._values[numbers] = values
        if port == 0:
            self._states[numbers] = states
        self._missing[numbers] -= 1
        done = numbers[self._missing[numbers] == 0]
        self.waiting += len(cells) - len(self.ports) * len(done)
        inputs = self._cells[:, done].T.copy()
        self._cells[:, done] = 0
        self._missing[done] = len(self.ports)
        self._keys.forget(self._values[done])
        return self._states[done], inputs

    def pending(self) -> tuple[np.ndarray, np.ndarray]:
        """What waits: `(port, cell)` of each message."""
        port, number = np.nonzero(self._cells)
        return port, self._cells[port, number]

    def _refuse(self, port: int, states: np.ndarray) -> None:
        state = State(states, self._layout, self._fields[port])
        raise MessageError(
            f"node `{self.where}`, port {self.ports[port]}",
            "one message per key",
            f"a second one with {state!r}",
            "Make states unique with an isu, or join on more fields.",
        )

    def _allocate(self, size: int, n_values: int) -> None:
        n = len(self.ports)
        self._cells = np.zeros((n, size), np.int64)
        self._missing = np.full(size, n, np.int64)
        self._states = np.zeros((size, self._layout.width), np.int64)
        self._values = np.zeros((size, n_values), np.int64)

    def _move(self, renumber: bool) -> None:
        """Makes room for all numbers, keeping what waits (under its new numbers, if the ranges have changed)."""
        old = (self._cells, self._missing, self._states, self._values)
        held = np.flatnonzero(self._missing < len(self.ports))
        numbers = self._keys.numbers(self._values[held]) if renumber and len(held) else held
        self._allocate(self._keys.size, max(self._values.shape[1], self._keys.width))
        self._cells[:, numbers] = old[0][:, held]
        self._missing[numbers] = old[1][held]
        if len(held):
            self._states[numbers], self._values[numbers] = old[2][held], old[3][held]
