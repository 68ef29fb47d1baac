"""What servers say to each other in an update: the totals that all variables share (Parallax, arXiv version, +OPAU).

With the boundary drawn among servers, each folds its own partitions' gradients and a few scalars travel to the chief and back.
Without it the gradients themselves go to the chief, where the folding operation was put, and come back with what it made of
them. The numbers are the same; the bytes are counted. The chief is the machine of the first server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.parallel.config.resources import Resources
from ampjax.parallel.homes.row_homes import RowHome
from ampjax.parallel.homes.wire import Wire
from ampjax.sparse.rows.pending_update import Pending

SCALARS = "scalars"
"""The name under which totals and shared values are counted."""

Waiting = Mapping[str, Sequence[Pending]]


@dataclass(frozen=True)
class Boundary:
    """The placement of what is computed from several variables' gradients.

    Args:
      resources: The machines.
      wire: The way between them.
      among_servers: Whether each server computes its own part.
    """

    resources: Resources
    wire: Wire
    among_servers: bool

    @property
    def chief(self) -> int:
        """The machine that triggers updates."""
        return self.resources.servers[0]

    def totals(
        self, turn: int, rows: Mapping[str, RowHome], waiting: Waiting, shared: Mapping[str, Any]
    ) -> dict[str, list[np.ndarray]]:
        """One round's reductions over all tables.

        Args:
          turn: The round.
          rows: The tables' homes.
          waiting: Their gradients.
          shared: What their rules need for it.
        """
        result = {}
        for path, home in rows.items():
            result[path] = home.table.partials(turn, waiting[path][0], shared[path])
            for machine in self._machines(home):
                self._exchange(machine, home, waiting[path][0], path, result[path])
        return result

    def announce(self, rows: Mapping[str, RowHome], shared: Mapping[str, Sequence[Any]]) -> None:
        """Sends the chief's shared values (step sizes, a clipping factor) to the servers of each table."""
        for path, home in rows.items():
            for machine in self._machines(home):
                for value in shared[path]:
                    self.wire.send(self.chief, machine, np.asarray(value), SCALARS)

    def _machines(self, home: RowHome) -> list[int]:
        if not home.is_served:
            return []
        return sorted({self.resources.servers[server] for server in home.table.placement})

    def _exchange(self, machine: int, home: RowHome, pending: Pending, path: str, totals: Sequence[np.ndarray]) -> None:
        if self.among_servers:
            for total in totals:  # one server's part is as large as the total
                self.wire.send(machine, self.chief, np.asarray(total), SCALARS)
            return
        for partition, (_, grads) in home.table.merged(pending).items():
            if self.resources.servers[home.table.placement[partition]] == machine:
                self.wire.send(self.chief, machine, self.wire.send(machine, self.chief, grads, path), path)
