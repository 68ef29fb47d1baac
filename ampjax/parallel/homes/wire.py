"""The way between workers and servers: arrays go over it from machine to machine, and both ends count their bytes.

Dense variables and shared values go through `send`: both ends lie in this process, so an array is handed over as it is. Tables carry
their own rows, to server processes too, and count them at both ends; here they are put down by machine. Knows machines by number; nothing of
tables or steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

End = tuple[str, int, str]
"""`sent`, `received` or `ids` (row ids, either way, which Table 3 leaves out), a machine, and what the bytes are of."""


@dataclass
class Wire:
    """Machines' connections and counters. What stays on its machine is not counted: it does not travel.

    Args:
      n_machines: How many machines there are.
      ends: Bytes by end since the start.
    """

    n_machines: int
    ends: Counter[End] = field(default_factory=Counter)

    def send(self, source: int, target: int, array: np.ndarray, what: str) -> np.ndarray:
        """An array as it arrives at another machine.

        Args:
          source: The machine that sends it.
          target: The machine that gets it.
          array: Any array.
          what: What it is of, for the counters: a variable's path, or `scalars`.
        """
        if source == target:
            return array
        self.count("sent", source, what, array.nbytes)
        return self._receive(target, array, what)

    def _receive(self, target: int, array: np.ndarray, what: str) -> np.ndarray:
        self.count("received", target, what, array.nbytes)
        return array

    def count(self, end: str, machine: int, what: str, nbytes: int) -> None:
        """Counts bytes at one end only, for what goes over another way (a collective)."""
        self.ends[end, machine, what] += nbytes

    def traffic(self) -> MachineBytes:
        """The counters as they are now."""
        return MachineBytes(self.n_machines, dict(self.ends))


@dataclass(frozen=True)
class MachineBytes:
    """Bytes of some steps.

    Args:
      n_machines: How many machines there are.
      ends: Bytes by end.
    """

    n_machines: int
    ends: Mapping[End, int]

    def __sub__(self, earlier: MachineBytes) -> MachineBytes:
        return MachineBytes(self.n_machines, {end: n - earlier.ends.get(end, 0) for end, n in self.ends.items()})

    def of_machine(self, machine: int, what: str | None = None) -> int:
        """Bytes that a machine sent and received, of one thing or of all; without ids."""
        return sum(
            n for (way, m, name), n in self.ends.items() if way != "ids" and m == machine and what in (None, name)
        )

    def per_machine(self, what: str | None = None) -> float:
        """The mean of `of_machine` over machines."""
        return sum(self.of_machine(m, what) for m in range(self.n_machines)) / self.n_machines

    @property
    def balanced(self) -> bool:
        """Whether what was sent was received."""
        sent, received = (sum(n for (way, _, _), n in self.ends.items() if way == end) for end in ("sent", "received"))
        return sent == received
