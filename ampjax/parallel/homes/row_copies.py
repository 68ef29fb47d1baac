"""The home of a sparse variable of which every machine has a whole table (AR).

Rows are read at home, and an AllGatherv brings every replica's gradients to all machines, each of which makes the same update. Knows tables
and machines; nothing of programs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ampjax.cluster.hosts.resources import Resources
from ampjax.parallel.homes.placement import in_turn
from ampjax.parallel.homes.row_homes import WHOLE, Grads, PulledRows, Reading, row_bytes
from ampjax.parallel.homes.wire import MachineWire
from ampjax.sparse.rewrite.unique_ids import UniqueRows
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.table.pending_update import PendingUpdate
from ampjax.sparse.table.sharded_table import Table

_ID_BYTES = np.dtype(np.int32).itemsize
"""Of a row's number, as replicas exchange it."""


class RowsOnEveryMachine:
    """A variable of which every machine has a whole table.

    Args:
      path: Its name in the counters.
      tables: One for each machine, equal.
      resources: The machines.
      wire: Its counters get the bytes of the AllGatherv.
      servers: By machine, the numbers of the servers that hold its table.
    """

    is_served = False

    def __init__(
        self,
        path: str,
        tables: Sequence[Table],
        resources: Resources,
        wire: MachineWire,
        servers: Sequence[Sequence[int]],
    ):
        self.tables = list(tables)
        self._servers = servers
        self._path = path
        self._resources = resources
        self._wire = wire

    @property
    def table(self) -> Table:
        """The first machine's."""
        return self.tables[0]

    def copy_of(self, machine: int) -> int:
        """Each machine uses its own table."""
        return machine

    def resplit(self, partitions: int, servers: Sequence[int]) -> None:
        """Deals the rows of every machine's table out anew.

        Args:
          partitions: The number of partitions.
          servers: Not used: each machine has its own.
        """
        del servers
        for table, row_servers in zip(self.tables, self._servers, strict=True):
            table.resplit(partitions, in_turn(row_servers, partitions))

    def pull(
        self,
        workers: Sequence[UniqueRows],
        reading: Reading = WHOLE,
    ) -> list[PulledRows]:
        """Gives each replica rows of its machine's table. The rows are whole, since they don't travel.

        Args:
          workers: By replica, the rows that it reads.
          reading: Not used.

        Returns:
          By replica, its rows.
        """
        del reading
        homes = self._resources.homes
        result = []
        for unique, home in zip(workers, homes, strict=True):
            result.append(PulledRows(unique, self.tables[home].pull(unique.ids)))
        return result

    def push(
        self,
        pulled: Sequence[PulledRows],
        grads: Grads,
    ) -> list[PendingUpdate]:
        """Applies all replicas' gradients at every machine, from the array gathered on its first replica's device.

        Args:
          pulled: What `pull` gave.
          grads: Gives all replicas' ids `[n, m]` and gradients `[n, m, *row]`.

        Returns:
          The waiting gradients, one entry for each machine.
        """
        result = []
        for machine in range(len(self.tables)):
            result.append(self._machine_push(machine, pulled, grads))
        return result

    def fetch(
        self,
        pending: Sequence[PendingUpdate],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reads the aggregated gradient, which every machine has.

        Args:
          pending: What `push` gave.

        Returns:
          Ids of touched rows `[k]`, and their gradients `[k, *row]`.
        """
        return pending[0].gradients()

    def _machine_push(
        self, machine: int, pulled: Sequence[PulledRows], grads: Grads
    ) -> PendingUpdate:
        ids, rows = grads(self._resources.replicas_of(machine)[0])
        self._count(machine, ids.nbytes, rows.nbytes)
        pending = None
        for replica, rows_of_replica in enumerate(pulled):
            n = len(rows_of_replica.unique.ids)
            pending = self.tables[machine].aggregate(
                ids[replica, :n],
                rows[replica, :n],
                pending,
                copy=False,
            )
        assert pending is not None  # there is a replica
        return pending

    def note_traffic(
        self,
        replica: int,
        counts: Mapping[int, ByteCounts],
    ) -> None:
        """Records a replica's reads and writes of its machine's table; none of these bytes has left the machine.

        Args:
          replica: Its number.
          counts: By server, what has gone to and fro.
        """
        self.tables[self._resources.homes[replica]].note_traffic(counts)

    def note_gathered(self, size: int) -> None:
        """Counts an AllGatherv that replicas in other processes have made.

        Args:
          size: Rows of each replica, with padding.
        """
        n = len(self._resources.homes)
        for machine in range(len(self.tables)):
            self._count(
                machine,
                n * size * _ID_BYTES,
                n * size * row_bytes(self.table),
            )

    def _count(self, machine: int, ids: int, rows: int) -> None:
        """A ring AllGather: each replica sends and receives all entries but one; inside a machine nothing travels."""
        n = len(self._resources.homes)
        n_local = len(self._resources.replicas_of(machine))
        if n_local == n:
            return
        for end in ("sent", "received"):
            self._wire.count(
                end,
                machine,
                self._path,
                rows * (n - 1) // n,
            )
            self._wire.count(
                "ids",
                machine,
                self._path,
                ids * (n - 1) // n,
            )
