"""Joins: a node with several inputs waits until all messages of one key are there.

Keys are small integers (`keys`), so a join is a few array operations for a whole batch.
"""

from __future__ import annotations

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.control import Key
from ampjax.ir.state import Layout, State
from ampjax.sched.cells import Lines
from ampjax.sched.keys import CODED_LIMIT, KeyNumbers


class Join:
    """What waits at one node's input ports.

    Args:
      where: The node's name, for messages.
      ports: Names of the input ports.
      by: What makes messages belong together.
      fields: Each port's state fields.
      layout: Where the fields stand.
      room: Lines that its tables may have where keys are not looked up in a dictionary.
    """

    def __init__(
        self,
        where: str,
        ports: tuple[str, ...],
        by: Key,
        fields: tuple[tuple[str, ...], ...],
        layout: Layout,
        room: int = CODED_LIMIT,
    ):
        self.where, self.ports, self._fields, self._layout = where, ports, fields, layout
        self._keys = KeyNumbers(by, fields[0], layout, where, room)
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
        waits = ~complete
        self._states[port].put(numbers[waits], states.compress(waits, axis=0))
        done = states.compress(complete, axis=0)
        return self._completed(port, numbers[complete], done, inputs.compress(complete, axis=0))

    def _completed(
        self, port: int, numbers: np.ndarray, states: np.ndarray, inputs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Messages leave: those that have just come at a port, and all that have waited for them."""
        self._cells.clear(numbers)
        if self._keys.in_dictionary:
            self._keys.forget(self._keys.values(states, self._fields[port]))
        return states if port == 0 else self._states[0].take(numbers), inputs

    def pending(self) -> list[tuple[int, np.ndarray, int]]:
        """What waits: `(port, state [width], cell)` of each message, by port and key."""
        found = []
        for port, states, cells in self._waiting():
            order = np.lexsort(self._keys.values(states, self._fields[port]).T[::-1])
            found += [(port, states[i], int(cells[i])) for i in order.tolist()]
        return found

    def key(self, port: int, state: np.ndarray) -> tuple[int, ...]:
        """The key of a message at a port."""
        return tuple(self._keys.values(state[None], self._fields[port])[0].tolist())

    def _waiting(self) -> list[tuple[int, np.ndarray, np.ndarray]]:
        """What waits at each port: states `[n, width]` and cells `[n]`."""
        found = []
        for port, here in enumerate(self._here):
            numbers = np.flatnonzero(here)
            found.append((port, self._states[port].take(numbers), here[numbers]))
        return found

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
        waiting = [found for found in self._waiting() if len(found[2])]
        known = [self._keys.values(states, self._fields[port]) for port, states, _ in waiting]
        self._keys.fit(np.concatenate([values, *known]))
        self._resize(0)
        for port, states, cells in waiting:
            numbers = self._numbers(port, states)
            self._here[port][numbers] = cells
            self._states[port].put(numbers, states)

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
