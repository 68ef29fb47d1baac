"""The homes of a sparse variable, and the home that hybrid and PS use: a table at servers.

Machines pull and push the rows that they touch. The other home is a whole table on every machine (`row_copies`). Knows tables and machines;
nothing of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from ampjax.cluster.hosts.resources import Resources
from ampjax.parallel.homes.local_aggregation import share_ids
from ampjax.parallel.homes.wire import MachineWire
from ampjax.sparse.detection.loss_jaxpr import Leaf
from ampjax.sparse.rewrite.unique_ids import UniqueRows
from ampjax.sparse.rows import row_blocks
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.table.pending_update import PendingUpdate
from ampjax.sparse.table.sharded_table import Table

Grads = Callable[[int], Any]
"""By replica, its row gradients: `[m, *row]`, or where they were gathered a pair of ids `[n, m]` and gradients `[n, m, *row]`."""


class Reading(NamedTuple):
    """The part of a table's rows that a program computes with: only this part has to travel.

    Args:
      dtype: To which it casts them all; None if it does not.
      columns: From and to where along the rows' last axis; None for all.
    """

    dtype: np.dtype | None = None
    columns: tuple[int, int] | None = None


WHOLE = Reading()


@dataclass(frozen=True)
class RowGrads:
    """The aggregated gradient of a sparse variable.

    Args:
      ids: The rows that were touched, `[k]`; rows of its table, if this has other axes (see `ampjax.sparse.detection.row_axes`).
      values: Their gradients, `[k, *row]`; all other rows have zero.
    """

    ids: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class PulledRows:
    """The rows that one replica has pulled.

    Args:
      unique: The rows' ids, and where each read finds its own among them.
      rows: `[k, *row]`, a fresh array; replicas of a machine may share it.
      reading: Which part of them has come; the rest is zero, and so are its gradients.
    """

    unique: UniqueRows
    rows: np.ndarray
    reading: Reading = WHOLE


class RowHome(Protocol):
    """The protocol of homes of sparse variables."""

    is_served: bool
    tables: list[Table]

    @property
    def table(self) -> Table:
        """The table, or one of several equal tables."""
        ...

    def copy_of(self, machine: int) -> int:
        """Finds the number of the table that a machine uses."""
        ...

    def note_traffic(
        self,
        replica: int,
        counts: Mapping[int, ByteCounts],
    ) -> None:
        """Records a replica's own pulls and pushes.

        Args:
          replica: Its number.
          counts: By server, what has gone to and fro.
        """
        ...

    def resplit(self, partitions: int, servers: Sequence[int]) -> None:
        """Deals the rows out anew.

        Args:
          partitions: The number of partitions.
          servers: By partition its server.
        """
        ...

    def pull(
        self,
        workers: Sequence[UniqueRows],
        reading: Reading = WHOLE,
    ) -> list[PulledRows]:
        """Gives each replica its rows.

        Args:
          workers: By replica, the rows that it reads.
          reading: What of the rows has to travel.

        Returns:
          By replica, its rows.
        """
        ...

    def push(
        self,
        pulled: Sequence[PulledRows],
        grads: Grads,
    ) -> list[PendingUpdate]:
        """Takes gradients of the pulled rows. The gradients wait for the update.

        Args:
          pulled: What `pull` gave.
          grads: Gives the gradients of each replica's rows.

        Returns:
          The waiting gradients, one entry for each copy of the table.
        """
        ...

    def fetch(
        self,
        pending: Sequence[PendingUpdate],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reads the aggregated gradient, for every machine.

        Args:
          pending: What `push` gave.

        Returns:
          Ids of touched rows `[k]`, and their gradients `[k, *row]`.
        """
        ...


class RowsAtServers:
    """A variable at servers.

    Args:
      path: Its name in the counters.
      table: Its table; server s of it is server s of the resources.
      resources: The machines.
      wire: Its counters get the bytes between machines.
      local_aggregation: Whether the replicas of a machine pull and push together.
      is_alone: Whether no client elsewhere uses the table at the same time. If one does, what a server counts can't be told apart, and what
        this client counts stands for both ends.
    """

    is_served = True

    def __init__(
        self,
        path: str,
        table: Table,
        resources: Resources,
        wire: MachineWire,
        local_aggregation: bool,
        is_alone: bool = True,
    ):
        self.tables = [table]
        self._path = path
        self._resources = resources
        self._wire = wire
        self._together = local_aggregation
        self._is_alone = is_alone

    @property
    def table(self) -> Table:
        """The table."""
        return self.tables[0]

    def copy_of(self, machine: int) -> int:
        """Returns 0: there is one table, for all machines.

        Args:
          machine: Not used.
        """
        del machine
        return 0

    def resplit(self, partitions: int, servers: Sequence[int]) -> None:
        """Deals the rows out anew, each partition to its server.

        Args:
          partitions: The number of partitions.
          servers: By partition its server.
        """
        self.table.resplit(partitions, servers)

    def pull(
        self,
        workers: Sequence[UniqueRows],
        reading: Reading = WHOLE,
    ) -> list[PulledRows]:
        """Pulls rows once for each machine, or once for each replica.

        Args:
          workers: By replica, the rows that it reads.
          reading: What of the rows has to travel.

        Returns:
          By replica, its rows.
        """
        result: dict[int, PulledRows] = {}
        for machine, replicas in self._clients():
            wanted = share_ids([workers[replica] for replica in replicas])
            rows = self.pull_for(machine, wanted[0].ids, reading)
            result |= {
                r: PulledRows(unique, rows, reading)
                for r, unique in zip(replicas, wanted, strict=True)
            }
        return [result[replica] for replica in range(len(workers))]

    def push(
        self,
        pulled: Sequence[PulledRows],
        grads: Grads,
    ) -> list[PendingUpdate]:
        """Pushes gradients once for each machine, or once for each replica.

        Args:
          pulled: What `pull` gave.
          grads: Gives the gradients of each replica's rows.

        Returns:
          The waiting gradients: one entry.
        """
        pending = None
        for machine, replicas in self._clients():
            first = pulled[replicas[0]]
            replica_grads = []
            for replica in replicas:
                replica_grads.append(np.asarray(grads(replica))[: len(first.unique.ids)])
            total = _sum(replica_grads)
            pending = self.push_from(machine, first, total, pending)
        return [] if pending is None else [pending]

    def pull_for(
        self,
        machine: int,
        ids: np.ndarray,
        reading: Reading = WHOLE,
    ) -> np.ndarray:
        """Sends rows to a machine.

        Args:
          machine: The machine's number.
          ids: `[k]`, the rows.
          reading: What of them has to travel.

        Returns:
          `[k, *row]` in the table's dtype.
        """
        return self._call_and_count(
            machine,
            lambda: self.table.pull(ids, reading.dtype, reading.columns),
        )

    def push_from(
        self,
        machine: int,
        pulled: PulledRows,
        grads: np.ndarray,
        into: PendingUpdate | None = None,
    ) -> PendingUpdate:
        """Sends a machine's gradients of the rows that it has pulled.

        Args:
          machine: The machine's number.
          pulled: What it has pulled.
          grads: `[k, *row]`; nobody writes into them any more.
          into: What other machines have sent for the same update; None starts a new one.

        Returns:
          All gradients of the update so far.
        """
        ids = pulled.unique.ids
        columns = pulled.reading.columns
        return self._call_and_count(
            machine,
            lambda: self.table.aggregate(ids, grads, into, columns, copy=False),
        )

    def fetch(
        self,
        pending: Sequence[PendingUpdate],
    ) -> tuple[np.ndarray, np.ndarray]:
        """Reads the aggregated gradient, once for every machine.

        Args:
          pending: What `push` gave.

        Returns:
          Ids of touched rows `[k]`, and their gradients `[k, *row]`.
        """
        for machine in range(1, len(self._resources.machines)):
            self._call_and_count(machine, pending[0].gradients)
        return self._call_and_count(0, pending[0].gradients)

    def _clients(self) -> list[tuple[int, list[int]]]:
        return self._resources.clients(self._together)

    def _call_and_count(
        self,
        machine: int,
        call: Callable[[], Any],
    ) -> Any:
        """Calls the table; bytes to or from other machines are recorded at the ends that counted them."""
        homes = self._resources.servers[: self.table.n_servers]
        if all(home == machine for home in homes):
            return call()
        before = self.table.traffic
        result = call()
        after = self.table.traffic
        for server, home in enumerate(homes):
            if not self._is_alone:
                before = (before[0],) * 2
                after = (after[0],) * 2
            for end, old, new in zip((machine, home), before, after, strict=True):
                self._put_down(machine, home, end, new[server] - old[server])
        return result

    def note_traffic(
        self,
        replica: int,
        counts: Mapping[int, ByteCounts],
    ) -> None:
        """Records a replica's own pulls and pushes.

        Args:
          replica: Its number.
          counts: By server, what has gone to and fro.
        """
        self.table.note_traffic(counts)
        machine = self._resources.homes[replica]
        for server, count in counts.items():
            for end in (machine, self._resources.servers[server]):
                self._put_down(machine, self._resources.servers[server], end, count)

    def _put_down(
        self,
        machine: int,
        home: int,
        end: int,
        count: ByteCounts,
    ) -> None:
        """Counts, at one end, the bytes between a machine and a server's machine."""
        if home == machine:
            return
        self._wire.count(
            "received" if end == machine else "sent",
            end,
            self._path,
            count.pulled,
        )
        self._wire.count(
            "sent" if end == machine else "received",
            end,
            self._path,
            count.pushed,
        )
        self._wire.count("ids", end, self._path, count.indices)


def _sum(grads: Sequence[np.ndarray]) -> np.ndarray:
    """The sum over replicas; of one replica, its own array. Half precision is rounded once, when the sum travels."""
    if len(grads) == 1:
        return grads[0]
    total = np.add(
        grads[0],
        grads[1],
        dtype=np.result_type(grads[0].dtype, np.float32),
    )
    for others in grads[2:]:
        total += others
    return total


def row_bytes(table: Table | Leaf) -> int:
    """Bytes of one row's parameters.

    Args:
      table: The table, or its shape and dtype.
    """
    return row_blocks.row_bytes(table.shape[1:], table.dtype)
