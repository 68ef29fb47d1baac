"""The connections between machines: arrays travel from worker to server and back, and both ends count the bytes.

Dense variables and shared values go through `send`. Both ends are in this process, so an array is passed on as it is. Tables send
their rows themselves, also to server processes, and count them at both ends; the counts are added here by machine. Knows machines by
number; nothing of tables or steps.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

End = tuple[str, int, str]
"""`sent`, `received` or `ids` (row ids, either way, which Table 3 leaves out), a machine, and what the bytes are of."""


@dataclass
class MachineWire:
    """The connections of all machines, with counters. Arrays that stay on their machine do not travel and are not counted.

    Args:
      n_machines: How many machines there are.
      ends: Bytes by end since the start.
    """

    n_machines: int
    ends: Counter[End] = field(default_factory=Counter)
    # Tables are pulled and pushed in several threads.
    _lock: Any = field(
        default_factory=threading.Lock,
        init=False,
        compare=False,
        repr=False,
    )

    def send(
        self,
        source: int,
        target: int,
        array: np.ndarray,
        name: str,
    ) -> np.ndarray:
        """Sends an array to another machine, and returns the array that arrives there.

        Args:
          source: The machine that sends it.
          target: The machine that gets it.
          array: Any array.
          name: What it is of, for the counters: a variable's path, or `scalars`.

        Returns:
          The array.
        """
        if source == target:
            return array
        self.count("sent", source, name, array.nbytes)
        return self._receive(target, array, name)

    def _receive(
        self,
        target: int,
        array: np.ndarray,
        name: str,
    ) -> np.ndarray:
        self.count("received", target, name, array.nbytes)
        return array

    def count(
        self,
        end: str,
        machine: int,
        name: str,
        nbytes: int,
    ) -> None:
        """Counts bytes at one end only, for arrays that travel another way (a collective, a server process).

        Args:
          end: `sent`, `received` or `ids`.
          machine: The machine at that end.
          name: What the bytes are of: a variable's path, or `scalars`.
          nbytes: How many.
        """
        with self._lock:
            self.ends[end, machine, name] += nbytes

    def traffic(self) -> MachineBytes:
        """Copies the present counters."""
        with self._lock:
            return MachineBytes(self.n_machines, dict(self.ends))


@dataclass(frozen=True)
class MachineBytes:
    """Bytes that machines have sent and received in some steps.

    Args:
      n_machines: How many machines there are.
      ends: Bytes by end.
    """

    n_machines: int
    ends: Mapping[End, int]

    def __sub__(self, earlier: MachineBytes) -> MachineBytes:
        return MachineBytes(
            self.n_machines,
            {end: n - earlier.ends.get(end, 0) for end, n in self.ends.items()},
        )

    def of_machine(self, machine: int, name: str | None = None) -> int:
        """The bytes that a machine sent and received, without row ids.

        Args:
          machine: The machine's number.
          name: A variable's path, or `scalars`; None for all.
        """
        return sum(
            n
            for (end, m, of), n in self.ends.items()
            if end != "ids" and m == machine and name in (None, of)
        )

    def per_machine(self, name: str | None = None) -> float:
        """The mean of `of_machine` over machines.

        Args:
          name: A variable's path, or `scalars`; None for all.
        """
        return sum(self.of_machine(m, name) for m in range(self.n_machines)) / self.n_machines

    @property
    def balanced(self) -> bool:
        """Tells whether every byte sent was received."""
        sent, received = (
            sum(n for (end, _, _), n in self.ends.items() if end == kind)
            for kind in ("sent", "received")
        )
        return sent == received
