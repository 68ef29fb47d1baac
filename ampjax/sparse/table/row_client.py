"""One client's pulls and pushes of a table's rows: the server of each row, and the traffic.

All that it needs to know is plain data (`SplitPlace`), so that clients can be in other processes than the one that made the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ampjax.optim.row_rule import RowTypes
from ampjax.sparse.rows.byte_counts import ByteCounts, Columns, cut
from ampjax.sparse.rows.partition_layout import PartitionLayout, SplitKey
from ampjax.sparse.rows.row_blocks import row_bytes

Ask = Callable[[Mapping[int, Any]], dict[int, Any]]
"""Asks some servers of a split: by server, a method of its `ServerPart` and the arguments; gives its answer by server."""


class SplitPlace(NamedTuple):
    """The place of a table's rows in its present split.

    Args:
      key: The split's name at the servers.
      layout: Which partition holds which row.
      placement: For each partition its server.
      types: The types of rows and of their state.
      wire: The dtype of rows and gradients between client and server.
    """

    key: SplitKey
    layout: PartitionLayout
    placement: tuple[int, ...]
    types: RowTypes
    wire: np.dtype

    def by_server(
        self,
        values: Mapping[int, Any],
    ) -> dict[int, dict[int, Any]]:
        """Groups values of partitions by server.

        Args:
          values: `{partition: value}`.

        Returns:
          `{server: {partition: value}}`.
        """
        result: dict[int, dict[int, Any]] = {}
        for p, value in values.items():
            result.setdefault(self.placement[p], {})[p] = value
        return result

    def bytes_at_servers(
        self,
        ids: np.ndarray,
        dtype: np.dtype | None = None,
        columns: Columns = None,
    ) -> dict[int, int]:
        """Counts the bytes of some rows on the wire, by server.

        Args:
          ids: `[n]`, the rows.
          dtype: In which they travel; None for the wire's.
          columns: Which of their columns travel; None for all.
        """
        if columns is None:
            shape = self.types.shape
        else:
            shape = (
                *self.types.shape[:-1],
                columns[1] - columns[0],
            )
        size = row_bytes(shape, self.wire if dtype is None else dtype)
        result: dict[int, int] = {}
        for server, n in zip(self.placement, self.layout.count(ids).tolist(), strict=True):
            if n:
                result[server] = result.get(server, 0) + n * size
        return result


class RowClient:
    """One client of a table's rows.

    Args:
      place: Where they are.
      ask: Asks their servers.
      counts: By server, the bytes that the client counts; there are as many as servers when it is used.
    """

    def __init__(
        self,
        place: SplitPlace,
        ask: Ask,
        counts: Sequence[ByteCounts] | Mapping[int, ByteCounts],
    ):
        self._place = place
        self._ask = ask
        self._counts = counts

    @property
    def place(self) -> SplitPlace:
        """The place of the rows."""
        return self._place

    def pull(
        self,
        ids: np.ndarray,
        wire_dtype: np.dtype,
        columns: Columns,
    ) -> np.ndarray:
        """Reads rows after all updates so far, in the dtype of the wire.

        Args:
          ids: `[n]`, each once, int64.
          wire_dtype: The dtype in which they travel.
          columns: Which of their columns travel; the others are zero.

        Returns:
          `[n, *row]` in the table's dtype.
        """
        calls, rows_of = self.pull_calls(ids, wire_dtype, columns)
        return rows_of(self._ask(calls))

    def pull_calls(
        self,
        ids: np.ndarray,
        wire_dtype: np.dtype,
        columns: Columns,
        *announced: bool,
    ) -> tuple[dict[int, Any], Callable[[Mapping[int, Any]], np.ndarray]]:
        """A pull in two halves, for a client that does something else until the servers have answered.

        Args:
          ids: As for `pull`.
          wire_dtype: As for `pull`.
          columns: As for `pull`.
          *announced: See `ServerPart.pull`.

        Returns:
          By server its call; and a function that makes what `pull` gives of the servers' answers.
        """
        place = self._place
        types = self._place.types
        order, spans, local = place.layout.group(ids)
        wanted = place.by_server({p: local[span] for p, span in spans})

        def rows_of(sent: Mapping[int, Any]) -> np.ndarray:
            for p, span in spans:
                self.count(
                    p,
                    local[span],
                    pulled=sent[place.placement[p]][p],
                )
            if len(spans) == 1 and columns is None:  # in order, and nothing is missing
                p = spans[0][0]
                return sent[place.placement[p]][p].astype(
                    types.dtype,
                    copy=False,
                )
            rows = (np.empty if columns is None else np.zeros)(
                (len(ids), *types.shape), types.dtype
            )
            for p, span in spans:
                pulled = sent[place.placement[p]][p]
                cut(rows, columns)[order[span]] = pulled
            return rows

        return {
            server: ("pull", parts, wire_dtype, columns, *announced)
            for server, parts in wanted.items()
        }, rows_of

    def push(
        self,
        update: int,
        ids: np.ndarray,
        grads: np.ndarray,
        columns: Columns,
        client: int | None = None,
        *,
        copy: bool = True,
    ) -> set[int]:
        """Sends row gradients to their servers, where the gradients wait for an update.

        Args:
          update: The update's number there.
          ids: `[n]`, each once, int64.
          grads: `[n, *row]`, in the wire's dtype.
          columns: Which of their columns travel; the servers take the others for zero.
          client: This client's number, where several push to one update; None for the next number.
          copy: Whether gradients are copied; they must be if somebody may write into them before a server has applied and forgotten them.

        Returns:
          The servers that have received something.
        """
        place = self._place
        order, spans, local = place.layout.group(ids)
        grads = cut(grads, columns)
        if len(spans) > 1:
            grads = grads[order]
        else:  # in order
            grads = grads.copy() if copy else np.ascontiguousarray(grads)
        by_server = place.by_server({p: (local[span], grads[span]) for p, span in spans})
        self._ask(
            {
                server: ("receive", update, rows, columns, client)
                for server, rows in by_server.items()
            }
        )
        for p, span in spans:
            self.count(p, local[span], pushed=grads[span])
        return set(by_server)

    def count(
        self,
        partition: int,
        local: np.ndarray,
        **rows: np.ndarray,
    ) -> None:
        """Counts the traffic between a partition's server and its clients.

        Args:
          partition: The partition.
          local: `[n]`, the row ids that have travelled.
          rows: `pulled`, rows that the server has sent, or `pushed`, gradients that it has received.
        """
        self._counts[self._place.placement[partition]].add(
            local,
            **rows,
        )
