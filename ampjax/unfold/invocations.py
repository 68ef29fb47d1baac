"""The invocations of an unfolding, numbered in the order of unfolding."""

from __future__ import annotations

import numpy as np

from ampjax.unfold.rules.invocation_chunks import Chunk
from ampjax.unfold.rules.message_columns import MessageTable


class Invocations:
    """Numbers invocations and their output rows, over all instances that are unfolded together.

    Args:
      table: The messages; an invocation adds one for each of its outputs.

    Attributes:
      chunks: All invocations, in the order in which they were added.
    """

    def __init__(self, table: MessageTable):
        self._table = table
        self.chunks = list[Chunk]()
        self._n = self._n_rows = 0

    def add(
        self,
        chunk: Chunk,
        n_outputs: int,
    ) -> list[np.ndarray]:
        """Adds invocations.

        Args:
          chunk: The invocations; the numbers of their output rows are written to it.
          n_outputs: How many outputs each of them has.

        Returns:
          For each output the new messages `[n]`, by their numbers in the table.
        """
        n = len(chunk.states)
        sizes = chunk.sizes
        if sizes is None:
            end = self._n_rows + n * n_outputs
            if n_outputs:
                chunk.row = np.arange(self._n_rows, end, n_outputs)
            else:
                chunk.row = np.zeros(n, np.int64)
        else:
            end = self._n_rows + n_outputs * int(sizes.sum())
            chunk.row = self._n_rows + n_outputs * (np.cumsum(sizes) - sizes)
        self._n_rows = end
        self.chunks.append(chunk)
        owners = np.arange(self._n, self._n + n)
        self._n += n
        each: np.ndarray | int = 1 if sizes is None else sizes
        result = []
        for j in range(n_outputs):
            result.append(self._table.emit(owners, chunk.row + j * each, each))
        return result

    def producers(self, messages: np.ndarray) -> np.ndarray:
        """Finds the producers of some messages.

        Args:
          messages: `[n]`: their numbers in the table.

        Returns:
          `[n]` int64: the numbers of stages, `-1 - p` for pump `p`.
        """
        first = np.cumsum([0, *(len(chunk.states) for chunk in self.chunks)])
        places = np.searchsorted(first, self._table.owner[messages], side="right") - 1
        return np.array(
            [self.chunks[place].stage for place in places],
            np.int64,
        )
