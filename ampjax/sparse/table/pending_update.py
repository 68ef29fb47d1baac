"""One update's row gradients, from their client's side. The gradients themselves wait at the servers."""

from __future__ import annotations

import collections
import functools
import itertools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ampjax.errors import TableError
from ampjax.optim.row_rule import Values
from ampjax.sparse.rows.byte_counts import Columns, cut
from ampjax.sparse.rows.gradient_buffer import Rows
from ampjax.sparse.rows.server_part import ServerNeeds
from ampjax.sparse.table.shards import Shards
from ampjax.utils.interrupts import uninterrupted

_numbers = itertools.count()


class PendingUpdate:
    """One update's row gradients. `Table.aggregate` makes the update and adds to it, `Table.apply` uses it up.

    Its gradients can be read as long as it is referenced, also after they were applied; then the servers forget them.

    Args:
      shards: The table as it is split now: its servers keep the gradients.

    Attributes:
      number: The name of the update at the servers.
    """

    def __init__(self, shards: Shards):
        self._shards = shards
        self.number = next(_numbers)
        self._is_applied = False
        self._servers: set[int] = set()  # those that have received something
        # By server, the clients whose gradients may still be on their way.
        self._clients: collections.Counter[int] = collections.Counter()
        self._pulls: Mapping[int, int] = {}
        self._nbytes = 0
        self._ids = [np.zeros(0, np.int64)]  # noted where others share the table
        drop = functools.partial(shards.connection.servers.drop_update, shards.key)
        weakref.finalize(self, drop, self.number).atexit = False

    @property
    def nbytes(self) -> int:
        """Bytes of the gradients that this client has sent."""
        return self._nbytes

    @property
    def table(self) -> int:
        """The number of its table."""
        return self._shards.key.table

    def require_open(self) -> None:
        """Returns if the update is open: more gradients can be added, and the present ones applied.

        Raises:
          TableError: If they were applied, or the table was split anew since.
        """
        if self._is_applied:
            fix = "Aggregate anew for each update."
            raise TableError(
                "apply", "gradients that were not applied before", "a second call", fix
            )
        self._require_current_split()

    def push(
        self,
        ids: np.ndarray,
        grads: np.ndarray,
        columns: Columns,
        *,
        copy: bool = True,
    ) -> None:
        """Sends one client's row gradients to the servers.

        Args:
          ids: `[n]`, each once, int64.
          grads: `[n, *row]`, in the wire's dtype.
          columns: Which of their columns travel; the servers take the others for zero.
          copy: Whether they are copied; they must be if somebody may write into them before the update is forgotten.
        """
        self._servers |= self._shards.client.push(
            self.number,
            ids,
            grads,
            columns,
            copy=copy,
        )
        self._nbytes += cut(grads, columns).nbytes
        if self._shards.connection.shared is not None:
            self._ids.append(ids)

    def note_pushes(self, clients: Mapping[int, int]) -> None:
        """Notes that clients elsewhere have sent row gradients. Servers wait for these gradients before any use of the update.

        Args:
          clients: By server that receives something, how many clients have sent it.
        """
        self._servers |= set(clients)
        self._clients.update(clients)

    def wait_for_pulls(self, pulls: Mapping[int, int]) -> None:
        """Lets the update wait for clients elsewhere that still read the rows from before it.

        Args:
          pulls: By server, the announced pulls that must have been answered there since the table was split so.
        """
        self._pulls = dict(pulls)

    def gradients(self) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, "n ..."]]:
        """Reads the gradients gathered so far. The rows are counted as pulled.

        Returns:
          Row ids `[n]`, each once, int64, and the sums of their gradients, `[n, *row]`, in the wire's dtype.

        Raises:
          TableError: If a sum has overflowed, or the table was split anew since.
        """
        shards = self._shards
        ids = [np.zeros(0, np.int64)]
        grads = [
            np.zeros(
                (0, *shards.connection.rule.shape),
                shards.wire,
            )
        ]
        with shards.connection.lock:
            for p, (local, rows) in self._read("send", shards.wire).items():
                shards.client.count(p, local, pulled=rows)
                ids.append(shards.layout.row_ids(p, local))
                grads.append(rows)
        return np.concatenate(ids), np.concatenate(grads)

    def read_sums(self) -> Mapping[int, Rows]:
        """Reads the numbers of rows and the sums of their gradients from the servers, by partition; not counted as traffic.

        Raises:
          TableError: If a sum has overflowed, or the table was split anew since.
        """
        with self._shards.connection.lock:
            return self._read("rows")

    # ---- the update (`optim.split_update.PendingRows`) -----------------------------------------------------------------

    def partials(
        self,
        turn: int,
        shared: Values,
    ) -> list[np.ndarray]:
        """Reduces the gradients over the whole table: each server reduces its own part, and the parts are joined here.

        Args:
          turn: The round, below `Split.n_rounds`.
          shared: The values that `Split.shared` made for this table.

        Returns:
          The round's reductions, in the order of the rule's.

        Raises:
          TableError: As `prepare` does.
        """
        with self._shards.connection.lock:
            self.require_open()
            parts = self._shards.everywhere(
                "partials",
                self.number,
                turn,
                _on_host(shared),
                nbytes=self._nbytes,
                needs=self._needs,
            )
            return self._shards.connection.rule.combine(
                turn, [part for each in parts.values() for part in each]
            )

    def prepare(self, shared: Values) -> Callable[[], int]:
        """Computes new rows and changes nothing, so that several tables can be updated together, or none at all.

        Args:
          shared: The values that `Split.update` made for this table.

        Returns:
          The function that makes the update and returns the table's version after it, to be called before anything else changes the table.

        Raises:
          TableError: If the gradients were applied, a sum has overflowed, or the table was split anew since.
        """
        shards = self._shards
        with shards.connection.lock:
            self.require_open()
            shards.everywhere(
                "prepare",
                self.number,
                _on_host(shared),
                nbytes=self._nbytes,
                needs=self._needs,
            )

        def commit() -> int:
            with shards.connection.lock, uninterrupted():
                with shards.connection.writing(np.concatenate(self._ids)):
                    shards.everywhere("commit", self.number, nbytes=self._nbytes)
                self._is_applied = True
                shards.version += 1
                return shards.version

        return commit

    @property
    def _needs(self) -> dict[int, ServerNeeds]:
        """The clients for which each server waits, by server."""
        servers = self._clients.keys() | self._pulls.keys()
        result = {}
        for s in servers:
            result[s] = ServerNeeds(
                0,
                self.number,
                self._clients[s],
                self._pulls.get(s, 0),
            )
        return result

    def _require_current_split(self) -> None:
        latest = self._shards.latest
        if latest is not self._shards:
            raise TableError(
                "apply",
                f"gradients for {latest.layout}, as it is split now",
                f"those for an earlier split, {self._shards.layout}",
                "Aggregate after `resplit`, not before.",
            )

    def _read(
        self,
        method: str,
        *args: Any,
    ) -> dict[int, Rows]:
        """Asks all servers that have gradients; by rising partition."""
        self._require_current_split()
        calls = {}
        for server in sorted(self._servers):
            calls[server] = (method, self.number, *args)
        answers = self._shards.ask(calls, needs=self._needs)
        rows = {p: rows for answer in answers.values() for p, rows in answer.items()}
        return {p: rows[p] for p in sorted(rows)}


def _on_host(shared: Values) -> list[np.ndarray]:
    return [np.asarray(value) for value in shared]
