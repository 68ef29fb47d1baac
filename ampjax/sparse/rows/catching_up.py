"""How rows catch up: missed updates, whose gradient was zero, are made before the rows are used, or in turn.

With each update a slice of all rows catches up, so that no row is far behind and no update takes much longer than others. What catching up costs
is what an update of all rows costs, less the way to memory: a block of rows sees many updates while it is at hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ampjax.optim.row_rule import RowTypes
from ampjax.sparse.rows.partition import Partition, Selection
from ampjax.sparse.rows.row_blocks import row_bytes
from ampjax.sparse.rows.row_kernels import MIN_ROWS, RowKernels, padded_size
from ampjax.sparse.rows.shared_history import SharedHistory
from ampjax.utils.interrupts import uninterrupted

BLOCK_BYTES = 1 << 16
"""Parameters of the rows that catch up in one call: what a core has at hand."""
MOST_ROWS = 1 << 12
"""Rows that catch up in one call at most."""
READ_ROWS = 1 << 14
"""Rows of which it is asked at once how many updates they have seen."""


class CatchUp:
    """The updates that rows of a server have missed.

    Args:
      kernels: The optimizer's compiled functions.
      history: Shared values of past updates, and how many of them a row may miss.
      partitions: The server's partitions of a table.
      n_rows: Rows of the whole table. Blocks of one size serve all its servers, and give the same bits wherever a row is.
      run: Calls a function on each of some blocks of rows, in threads.
    """

    def __init__(
        self,
        kernels: RowKernels,
        history: SharedHistory,
        partitions: Sequence[Partition],
        n_rows: int,
        run: Callable[..., Any],
    ):
        self._kernels = kernels
        self._history = history
        self._partitions = partitions
        self._in_threads = run
        self._size = min(_block_rows(kernels.types), padded_size(n_rows))
        n_blocks = -(-sum(part.n_rows for part in partitions) // self._size)
        max_lag = max(history.max_lag, 1)
        blocks_in_turn = -(-n_blocks // max_lag)
        # Each row has its turn in time, and blocks are full.
        self._n_turns = -(-n_blocks // blocks_in_turn)
        self._interval = max_lag // self._n_turns
        self._n_updates = 0
        self._is_compiled = False

    def before_update(self, shared: Sequence[Any]) -> None:
        """Lets the next slice of all rows catch up, and forgets updates that no row needs any more."""
        history = self._history
        if not history.max_lag:
            return
        if (
            not self._is_compiled
        ):  # by one row, which may have missed nothing: later it would make a step late
            history.reserve(shared)
            first = self._partitions[0]
            self._run(
                Selection(((first, np.zeros(1, np.int64)),)),
                _get_seen(first)[:1],
            )
            self._is_compiled = True
        # Make room before the update appends to the history.
        if history.is_full:
            self._forget(history.version - history.max_lag)
        turn, rest = divmod(self._n_updates, self._interval)
        if not rest:
            blocks = list(self._blocks(self._slice(turn % self._n_turns)))
            if len(blocks) > 1:
                self._in_threads(self._run, *zip(*blocks, strict=True))
            else:
                self._one_by_one(blocks)
        self._n_updates += 1

    def rows(self, rows: Selection) -> None:
        """Applies the missed updates to some rows.

        Args:
          rows: The rows; those that missed nothing stay as they are.
        """
        self._one_by_one(self._blocks(rows))

    def _one_by_one(
        self,
        blocks: Iterable[tuple[Selection, np.ndarray]],
    ) -> None:
        for rows, seen in blocks:
            self._run(rows, seen)

    def _blocks(
        self,
        rows: Selection,
    ) -> Iterator[tuple[Selection, np.ndarray]]:
        """Yields the rows that have missed updates, with the number of updates seen, for one call each."""
        if (seen := rows.seen()) is None:
            return
        late = np.flatnonzero(seen < self._history.version)
        # Rows of similar lag go together: a block takes as long as its latest row.
        late = late[np.argsort(seen[late], kind="stable")]
        for start in range(0, len(late), self._size):
            some = np.sort(late[start : start + self._size])
            yield rows.at(some), seen[some]

    def settle(self) -> None:
        """Lets all rows catch up, so that no history is needed."""
        self._forget(self._history.version)
        self._n_updates = 0  # as after loading what is saved then

    def _slice(self, turn: int) -> Selection:
        """Selects the rows of each partition whose turn has come."""
        spans = []
        for part in self._partitions:
            spans.append((part, part.n_rows * turn // self._n_turns))
        ends = []
        for part in self._partitions:
            ends.append(part.n_rows * (turn + 1) // self._n_turns)
        return Selection(
            tuple(
                (part, np.arange(start, end))
                for (part, start), end in zip(spans, ends, strict=True)
                if start < end
            )
        )

    def _forget(self, version: int) -> None:
        """Forgets updates that all rows have seen. Rows have mostly had their turn since, unless they came from another split."""
        for part in self._partitions if self._history.length else ():
            # In blocks, so that a large table's counts are not compared all at once.
            for start in range(0, part.n_rows, READ_ROWS):
                late = start + np.flatnonzero(_get_seen(part)[start : start + READ_ROWS] < version)
                self.rows(Selection(((part, late),)))
        # Only now: the rows above needed these entries.
        self._history.forget(version)

    def _run(self, rows: Selection, seen: np.ndarray) -> None:
        history = self._history
        first = np.full(self._size, history.length, np.int32)
        # Padding begins at the end of the history, so it misses nothing.
        first[: len(rows)] = seen - history.base
        old, *state = rows.take(self._size)
        new = self._kernels.catch_up(
            history.values, first, history.length, history.base, old, state
        )
        # Rows and their counts change together, or an interrupt would let a row catch up twice.
        with uninterrupted():
            rows.write(new, history.version)


def _get_seen(part: Partition) -> np.ndarray:
    assert part.seen is not None  # its rows catch up
    return part.seen


def _block_rows(types: RowTypes) -> int:
    """The number of rows that catch up in one call: always the same, so that one size is compiled."""
    fitting = BLOCK_BYTES // max(1, row_bytes(types.shape, types.dtype))
    power = 1 << fitting.bit_length() >> 1
    return min(max(power, MIN_ROWS), MOST_ROWS)
