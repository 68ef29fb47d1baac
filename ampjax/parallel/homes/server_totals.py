"""The totals that servers exchange in an update, such as a global norm of all gradients (Parallax, arXiv version, +OPAU).

With +OPAU each server reduces its own partitions' gradients, and a few scalars travel to the chief and back. Without it the gradients
themselves go to the chief, which reduces them, and come back. The numbers are the same; the bytes that travel are counted. The chief is
the machine of the first server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ampjax.cluster.hosts.resources import Resources
from ampjax.optim.row_rule import Values
from ampjax.parallel.homes.row_homes import RowHome
from ampjax.parallel.homes.wire import MachineWire
from ampjax.sparse.table.pending_update import PendingUpdate

SCALARS = "scalars"
"""The name under which totals and shared values are counted."""


@dataclass(frozen=True)
class ServerTotals:
    """Computes totals of several variables' gradients, and counts the servers' exchange for the totals.

    Args:
      resources: The machines.
      wire: The way between them.
      among_servers: Whether each server reduces its own part (+OPAU).
    """

    resources: Resources
    wire: MachineWire
    among_servers: bool

    @property
    def chief(self) -> int:
        """The machine that triggers updates."""
        return self.resources.servers[0]

    def totals(
        self,
        turn: int,
        path: str,
        home: RowHome,
        pending: PendingUpdate,
        shared: Values,
    ) -> list[np.ndarray]:
        """Computes one round's reductions over a whole table, as the chief gets them.

        Args:
          turn: The round.
          path: The variable.
          home: Its home.
          pending: Its row gradients.
          shared: The values that its rule needs for this round.

        Returns:
          The reductions, in the order of the rule's.
        """
        totals = pending.partials(turn, shared)
        for machine in self._machines(home):
            self._exchange(machine, home, pending, path, totals)
        return totals

    def announce(self, home: RowHome, shared: Values) -> None:
        """Sends the chief's shared values (step sizes, a clipping factor) to a table's servers."""
        for machine in self._machines(home):
            for value in shared:
                self.wire.send(
                    self.chief,
                    machine,
                    np.asarray(value),
                    SCALARS,
                )

    def _machines(self, home: RowHome) -> list[int]:
        if not home.is_served:
            return []
        return sorted({self.resources.servers[server] for server in home.table.placement})

    def _exchange(
        self,
        machine: int,
        home: RowHome,
        pending: PendingUpdate,
        path: str,
        totals: Sequence[np.ndarray],
    ) -> None:
        if self.among_servers:
            for total in totals:  # one server's part is as large as the total
                self.wire.send(
                    machine,
                    self.chief,
                    np.asarray(total),
                    SCALARS,
                )
            return
        for partition, (_, grads) in pending.read_sums().items():
            if self.resources.servers[home.table.placement[partition]] == machine:
                self.wire.send(
                    self.chief,
                    machine,
                    self.wire.send(machine, self.chief, grads, path),
                    path,
                )
