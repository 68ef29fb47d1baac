"""Where a sparse variable lives: in a table at servers, or as a whole table on every machine.

At servers (PS, hybrid) machines pull and push the rows that they touch. With a table on every machine (AR) rows are read at home, and
an AllGatherv brings every replica's gradients to all machines, each of which makes the same update. Knows tables and machines;
nothing of programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from ampjax.parallel.config.resources import Resources
from ampjax.parallel.homes.local_aggregation import share_ids
from ampjax.parallel.homes.wire import Wire
from ampjax.sparse.rewrite.unique_ids import UniqueRows
from ampjax.sparse.table.pending_update import PendingUpdate
from ampjax.sparse.table.sharded_table import Table

Grads = Callable[[int], Any]
"""By replica, its row gradients: `[m, *row]`, or where they were gathered a pair of ids `[n, m]` and gradients `[n, m, *row]`."""


class Reading(NamedTuple):
    """What of a table's rows a program computes with: only that has to travel.

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
      ids: Rows that were touched, `[k]`; those of its table, where that has other axes (see `ampjax.sparse.detection.row_axes`).
      values: Their gradients, `[k, *row]`; all other rows have zero.
    """

    ids: np.ndarray
    values: np.ndarray


@dataclass(frozen=True)
class PulledRows:
    """What one replica gets.

    Args:
      unique: The rows, and which of them each read wants.
      rows: `[k, *row]`, a fresh array; replicas of a machine may share it.
      reading: What of them has come; the rest is zero, and so are its gradients.
    """

    unique: UniqueRows
    rows: np.ndarray
    reading: Reading = WHOLE


class RowHome(Protocol):
    """What a step asks of a home of a sparse variable."""

    is_served: bool
    tables: list[Table]

    @property
    def table(self) -> Table:
        """The table, or one of those that are equal."""
        ...

    def resplit(self, partitions: int, servers: Sequence[int]) -> None:
        """Splits it anew."""
        ...

    def pull(self, workers: Sequence[UniqueRows], reading: Reading = WHOLE) -> list[PulledRows]:
        """Rows for each replica."""
        ...

    def push(self, pulled: Sequence[PulledRows], grads: Grads) -> list[PendingUpdate]:
        """Takes gradients for the rows that were pulled; they wait for the update, one entry for each table."""
        ...

    def fetch(self, pending: Sequence[PendingUpdate]) -> tuple[np.ndarray, np.ndarray]:
        """The aggregated gradient, for every machine: touched rows and their gradients."""
        ...


class RowsAtServers:
    """A variable at servers.

    Args:
      path: Its name in the counters.
      table: Its table; server s of it is server s of the resources.
      resources: The machines.
      wire: Whose counters get the bytes between machines.
      local_aggregation: Whether the replicas of a machine pull and push together.
    """

    is_served = True

    def __init__(self, path: str, table: Table, resources: Resources, wire: Wire, local_aggregation: bool):
        self.tables = [table]
        self._path, self._resources, self._wire = path, resources, wire
        self._together = local_aggregation

    @property
    def table(self) -> Table:
        """The table."""
        return self.tables[0]

    def resplit(self, partitions: int, servers: Sequence[int]) -> None:
        """Splits it anew, each partition on its server."""
        self.table.resplit(partitions, servers)

    def pull(self, workers: Sequence[UniqueRows], reading: Reading = WHOLE) -> list[PulledRows]:
        """One pull for each machine, or for each replica."""
        result: dict[int, PulledRows] = {}
        for machine, replicas in self._clients():
            wanted = share_ids([workers[replica] for replica in replicas])
            rows = self.pull_for(machine, wanted[0].ids, reading)
            result |= {r: PulledRows(unique, rows, reading) for r, unique in zip(replicas, wanted, strict=True)}
        return [result[replica] for replica in range(len(workers))]

    def push(self, pulled: Sequence[PulledRows], grads: Grads) -> list[PendingUpdate]:
        """One push for each machine, or for each replica."""
        pending = None
        for machine, replicas in self._clients():
            first = pulled[replicas[0]]
            own = [np.asarray(grads(replica))[: len(first.unique.ids)] for replica in replicas]
            wide = np.result_type(own[0].dtype, np.float32)  # half precision is rounded once, when the sum travels
            total = own[0] if len(own) == 1 else np.sum(np.stack(own), axis=0, dtype=wide)
            pending = self.push_from(machine, first, total, pending)
        return [] if pending is None else [pending]

    def pull_for(self, machine: int, ids: np.ndarray, reading: Reading = WHOLE) -> np.ndarray:
        """Rows as they arrive at a machine."""
        return self._counted(machine, lambda: self.table.pull(ids, reading.dtype, reading.columns))

    def push_from(
        self, machine: int, pulled: PulledRows, grads: np.ndarray, into: PendingUpdate | None = None
    ) -> PendingUpdate:
        """A machine's gradients for what it has pulled, as they arrive at the servers."""
        ids, columns = pulled.unique.ids, pulled.reading.columns
        return self._counted(machine, lambda: self.table.aggregate(ids, grads, into, columns))

    def fetch(self, pending: Sequence[PendingUpdate]) -> tuple[np.ndarray, np.ndarray]:
        """The aggregated gradient, read once by every machine."""
        for machine in range(1, len(self._resources.machines)):
            self._counted(machine, pending[0].gradients)
        return self._counted(0, pending[0].gradients)

    def _clients(self) -> list[tuple[int, list[int]]]:
        return self._resources.clients(self._together)

    def _counted(self, machine: int, call: Callable[[], Any]) -> Any:
        """A call to the table; what went to or from other machines is put down for the ends that counted it."""
        homes = self._resources.servers[: self.table.n_servers]
        if all(home == machine for home in homes):
            return call()
        before = self.table.traffic
        result = call()
        after = self.table.traffic
        for server, home in enumerate(homes):
            if home == machine:
                continue
            for end, old, new in zip((machine, home), before, after, strict=True):
                down, up = new[server].pulled - old[server].pulled, new[server].pushed - old[server].pushed
                self._wire.count("received" if end == machine else "sent", end, self._path, down)
                self._wire.count("sent" if end == machine else "received", end, self._path, up)
                self._wire.count("ids", end, self._path, new[server].indices - old[server].indices)
        return result


class RowsOnEveryMachine:
    """A variable of which every machine has a whole table.

    Args:
      path: Its name in the counters.
      tables: One for each machine, equal.
      resources: The machines.
      wire: Whose counters get the bytes of the AllGatherv.
    """

    is_served = False

    def __init__(self, path: str, tables: Sequence[Table], resources: Resources, wire: Wire):
        self.tables = list(tables)
        self._path, self._resources, self._wire = path, resources, wire

    @property
    def table(self) -> Table:
        """The first machine's."""
        return self.tables[0]

    def resplit(self, partitions: int, servers: Sequence[int]) -> None:
        """Splits every machine's table anew."""
        del servers  # each machine is its own
        for table in self.tables:
            table.resplit(partitions)

    def pull(self, workers: Sequence[UniqueRows], reading: Reading = WHOLE) -> list[PulledRows]:
        """Each replica's rows out of its machine's table, whole: they don't travel."""
        del reading
        homes = self._resources.homes
        return [PulledRows(own, self.tables[home].pull(own.ids)) for own, home in zip(workers, homes, strict=True)]

    def push(self, pulled: Sequence[PulledRows], grads: Grads) -> list[PendingUpdate]:
        """Every machine takes all replicas' gradients out of the buffers that were gathered on its first replica's device."""
        return [self._machine_push(machine, pulled, grads) for machine in range(len(self.tables))]

    def fetch(self, pending: Sequence[PendingUpdate]) -> tuple[np.ndarray, np.ndarray]:
        """The aggregated gradient, which every machine has."""
        return pending[0].gradients()

    def _machine_push(self, machine: int, pulled: Sequence[PulledRows], grads: Grads) -> PendingUpdate:
        ids, rows = grads(self._resources.replicas_of(machine)[0])
        self._count(machine, ids.nbytes, rows.nbytes)
        pending = None
        for replica, own in enumerate(pulled):
            n = len(own.unique.ids)
            pending = self.tables[machine].aggregate(ids[replica, :n], rows[replica, :n], pending)
        assert pending is not None  # there is a replica
        return pending

    def _count(self, machine: int, ids: int, rows: int) -> None:
        """A ring AllGather: each replica sends and receives all entries but one; inside a machine nothing travels."""
        n, own = len(self._resources.homes), len(self._resources.replicas_of(machine))
        if own == n:
            return
        for end in ("sent", "received"):
            self._wire.count(end, machine, self._path, rows * (n - 1) // n)
            self._wire.count("ids", machine, self._path, ids * (n - 1) // n)


def row_bytes(table: Table) -> int:
    """Bytes of one row's parameters."""
    return int(np.prod(table.shape[1:], dtype=np.int64)) * table.dtype.itemsize
