"""Joins while control flow is evaluated: a node with several inputs runs on messages that share a key, once each port has one.

Keys are small integers (`key_numbers`). What a key has at each port is a message's number in a table; states are kept for those messages alone that wait.
"""

from __future__ import annotations

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.state import Layout, State
from ampjax.plan.stages import Stage
from ampjax.unfold.rules.key_numbers import KeyNumbers

WaitingMessages = tuple[np.ndarray, np.ndarray]
"""States `[n, width]` and messages `[n]` that have come to a port and had to wait; some of them may be gone."""


class JoinTable:
    """The messages that wait at one stage's ports.

    Args:
      stage: The stage.
      layout: The column of each state field.
    """

    def __init__(self, stage: Stage, layout: Layout):
        self._where = stage.name
        self._layout = layout
        self._n = len(stage.ports)
        self._ports = tuple(port.name for port in stage.ports)
        self._fields = tuple(port.type.fields for port in stage.ports)
        self._keys = KeyNumbers(
            stage.join,
            self._fields[0],
            layout,
            stage.name,
        )
        of_ports = []
        for _ in range(self._n):
            of_ports.append(np.zeros(0, np.int32))
        self._here = of_ports
        self._place = np.zeros(
            0, np.int32
        )  # of each key: where the state of port 0's message is kept
        self.forget()

    def forget(self) -> None:
        """Forgets states; nothing may wait."""
        self._states = np.zeros(
            (0, self._layout.width),
            np.int64,
        )
        self._n_states = 0
        self._waiting: list[list[WaitingMessages]] = [[] for _ in range(self._n)]

    @property
    def waiting(self) -> int:
        """Messages that wait."""
        return sum(int(np.count_nonzero(of_port)) for of_port in self._here)

    def put(
        self, port: int, states: np.ndarray, messages: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Takes messages at a port.

        Args:
          port: The port's number.
          states: `[n, width]`: their states.
          messages: `[n]`: their numbers in the table.

        Returns:
          For the keys that are complete now, port 0's states `[m, width]`, and the messages of all ports `[m, ports]`.

        Raises:
          MessageError: If a message with the same key waits at the port already.
        """
        numbers = self._numbers(port, states)
        of_port = self._here[port]
        # A second message with a key that waits is an error.
        if np.count_nonzero(occupied := of_port.take(numbers)):
            self._refuse(port, states[occupied != 0])
        # So are two in one batch. Places are written and read back: of two with one key the later
        # place stands.
        if len(messages) > 1:  # by place: copies of one message share its number
            places = np.arange(len(messages), dtype=np.int32)
            of_port[numbers] = places
            double = of_port.take(numbers) != places
            if np.count_nonzero(double):
                of_port[numbers] = 0
                self._refuse(port, states[double])
        # Now every new message stands at its port, and keys can be asked at all ports.
        of_port[numbers] = messages
        inputs = np.empty(
            (len(messages), self._n),
            np.int64,
        )
        complete: np.ndarray | None = None
        for other in range(self._n):
            # A key is complete if each other port holds a message.
            inputs[:, other] = partners = (
                messages if other == port else self._here[other].take(numbers)
            )
            if other != port:
                complete = partners != 0 if complete is None else complete & (partners != 0)
        assert complete is not None
        n_complete = np.count_nonzero(complete)
        # Nothing runs yet: all wait.
        if n_complete == 0:
            self._keep(port, numbers, states, messages)
            return states[:0], inputs[:0]
        # Those whose keys are not complete wait; the others go on.
        if n_complete < len(messages):
            waits = ~complete
            self._keep(
                port,
                numbers[waits],
                states.compress(waits, axis=0),
                messages[waits],
            )
            states = states.compress(complete, axis=0)
            numbers = numbers[complete]
            inputs = inputs.compress(complete, axis=0)
        # Complete keys leave all ports.
        for of_port in self._here:
            of_port[numbers] = 0
        # A dictionary's numbers are used again. Other numbers are fixed by the key.
        if self._keys.in_dictionary:
            self._keys.forget(self._keys.values(states, self._fields[port]))
        return states if port == 0 else self._states.take(
            self._place.take(numbers),
            axis=0,
        ), inputs

    def pending(self) -> list[tuple[int, np.ndarray, int]]:
        """Lists the messages that wait.

        Returns:
          `(port, state [width], message)`, by port and key.
        """
        result = []
        for port in range(self._n):
            states, messages = self._still_here(port)
            order = np.lexsort(self._keys.values(states, self._fields[port]).T[::-1])
            result += [(port, states[i], int(messages[i])) for i in order.tolist()]
        return result

    def key(
        self,
        port: int,
        state: np.ndarray,
    ) -> tuple[int, ...]:
        """The key of a message at a port.

        Args:
          port: The port's number.
          state: `[width]`: the message's state.

        Returns:
          Integers; the first is the instance's handle.
        """
        return tuple(self._keys.values(state[None], self._fields[port])[0].tolist())

    def _keep(
        self,
        port: int,
        numbers: np.ndarray,
        states: np.ndarray,
        messages: np.ndarray,
    ) -> None:
        """Notes messages that wait."""
        self._waiting[port].append((states, messages))
        # Only port 0's state is needed when the key is complete, so only it is kept by place.
        if port:
            return
        end = self._n_states + len(states)
        # The store of states doubles, so growing costs little for each message.
        if end > len(self._states):
            more = np.empty(
                (
                    max(end, 2 * len(self._states)),
                    self._layout.width,
                ),
                np.int64,
            )
            more[: self._n_states] = self._states[: self._n_states]
            self._states = more
        self._states[self._n_states : end] = states
        self._place[numbers] = np.arange(self._n_states, end)
        self._n_states = end

    def _still_here(self, port: int) -> WaitingMessages:
        """The messages that wait at a port, in the order of arrival."""
        parts_of_port = [
            (
                np.zeros((0, self._layout.width), np.int64),
                np.zeros(0, np.int64),
            ),
            *self._waiting[port],
        ]
        states, messages = (np.concatenate(parts) for parts in zip(*parts_of_port, strict=True))
        if not len(messages):
            return states, messages
        numbers = self._numbers(port, states)
        waits = (
            self._here[port][numbers] == messages
        )  # by key: copies of one message share its number, and some may be gone
        return states[waits], messages[waits]

    def _numbers(self, port: int, states: np.ndarray) -> np.ndarray:
        """The numbers of the messages' keys, within the tables."""
        values = self._keys.values(states, self._fields[port])
        numbers = self._keys.numbers(values)
        if numbers is None:
            self._widen(values)
            numbers = self._keys.numbers(values)
            assert numbers is not None
        if self._keys.size > len(self._place):
            self._grow(self._keys.size)
        return numbers

    def _widen(self, values: np.ndarray) -> None:
        """Makes room for keys outside the ranges, and gives the keys of waiting messages new numbers."""
        waiting = [self._still_here(port) for port in range(self._n)]
        keys = []
        for port, (states, _) in enumerate(waiting):
            keys.append(self._keys.values(states, self._fields[port]))
        # All keys get new numbers, waiting ones too, so the tables start from zero.
        self._keys.fit(np.concatenate([values, *keys]))
        for table in (*self._here, self._place):
            table[:] = 0
        self.forget()
        # Then what waits is put back under its new numbers.
        for port, (states, messages) in enumerate(waiting):
            if len(messages):
                numbers = self._numbers(port, states)
                self._here[port][numbers] = messages
                self._keep(port, numbers, states, messages)

    def _grow(self, size: int) -> None:
        """Makes the tables `size` lines long."""
        more = np.zeros(size - len(self._place), np.int32)
        self._here = [np.concatenate([of_port, more]) for of_port in self._here]
        self._place = np.concatenate([self._place, more])

    def _refuse(self, port: int, states: np.ndarray) -> None:
        state = State(
            states[:1],
            self._layout,
            self._fields[port],
        )
        raise MessageError(
            f"node `{self._where}`, port {self._ports[port]}",
            "one message per key",
            f"a second one with {state!r}",
            "Make states unique with an isu, or join on more fields.",
        )
