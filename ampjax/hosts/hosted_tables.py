"""Tables in the memory of hosts, as the driver sees tables: each is sent when hosts start, and fetched on demand."""

from __future__ import annotations

import numpy as np

from ampjax.engine.memory.table_gradients import TableGradients
from ampjax.hosts.fleet import Fleet
from ampjax.ir.host_tables import HostTable, SentTable


class HostedTable:
    """A node's table on its host, and the gradients that wait there. It stands in the place of a `TableGradients`.

    Args:
      fleet: The hosts.
      node: The node's name.
      sent: The table in the driver's memory. Its host begins with its rows; afterwards it is as it was last brought.
    """

    def __init__(self, fleet: Fleet, node: str, sent: SentTable):
        self._fleet = fleet
        self._node = node
        self._own = sent
        # The host's version, and what the driver's table was, when both were last the same.
        self._known = -1
        self._own_contents: object = None

    def send(self) -> None:
        """Gives the host the driver's table; no gradients wait there then."""
        row = self._own.shape[1:]
        self.restore(
            np.zeros(0, np.int64),
            np.zeros((0, *row), np.float32),
            0,
        )

    @property
    def table(self) -> HostTable:
        """The driver's table, as the host's is now."""
        # Another trainer of the same graph may have brought its rows since.
        version = self._known if self._own.contents == self._own_contents else -1
        ((said, arrays),) = self._ask("table", known=version)
        if said["files"]:
            self._own.take_files(dict(zip(said["files"], arrays, strict=True)))
            self._known = said["version"]
            self._own_contents = self._own.contents
        assert self._own.table is not None, "the driver's table has its rows"
        return self._own.table

    @property
    def n_new(self) -> int:
        """As `TableGradients.n_new`."""
        ((n_new, _),) = self._ask("n waiting")
        return n_new

    def join_all(self) -> tuple[np.ndarray, np.ndarray]:
        """As `TableGradients.join_all`."""
        ((_, (ids, rows)),) = self._ask("waiting")
        return ids, rows

    def dense(self) -> np.ndarray:
        """As `TableGradients.dense`."""
        gradients = TableGradients(self._own, "sum")
        gradients.restore(*self.join_all(), 0)
        return gradients.dense()

    def restore(
        self,
        ids: np.ndarray,
        rows: np.ndarray,
        n_new: int,
    ) -> None:
        """Gives the host the driver's table, and gradients that wait for its update.

        Args:
          ids: As for `TableGradients.restore`.
          rows: Likewise.
          n_new: Likewise.
        """
        files = self._own.as_files()
        arrays = [
            np.asarray(ids),
            np.asarray(rows),
            *files.values(),
        ]
        self._ask("restore table", arrays, files=list(files), n_new=n_new)
        self._known = self._own.version
        self._own_contents = self._own.contents

    def _ask(
        self,
        name: str,
        arrays: list[np.ndarray] | None = None,
        **values: object,
    ) -> list[tuple]:
        host = self._fleet.layout.host_of_node[self._node]
        return self._fleet.ask(
            [host],
            name,
            {host: arrays or []},
            node=self._node,
            **values,
        )
