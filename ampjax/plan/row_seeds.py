"""Random numbers of rows, from which the keys of random bodies are folded, together with the node's own number.

They depend on the run's seed, the epoch, the message's state and the row's place in it only, so that no schedule changes them, and the adjoint
draws what the forward pass drew.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ampjax.ir.state import HANDLE

if TYPE_CHECKING:
    from ampjax.unfold.rules.edges import DispatchEdges


@dataclass(frozen=True)
class RowSeeds:
    """The random numbers of bodies: every epoch draws anew, and so does every pass outside of epochs.

    Args:
      seed: The run's.
      epoch: Epochs begun so far.
      accumulated: Passes so far that accumulated gradients outside of epochs.
    """

    seed: int = 0
    epoch: int = 0
    accumulated: int = field(default=0, repr=False)  # recordings know a run by the others

    def of(
        self,
        states: np.ndarray,
        sizes: np.ndarray | None,
        edges: DispatchEdges | None,
    ) -> list[np.ndarray]:
        """Makes the random numbers of some messages.

        Args:
          states: `[m, width]`: the messages.
          sizes: `[m]`: the rows of each; None for one.
          edges: For a chain, the messages' edges.

        Returns:
          uint32 `[n]`: those of their rows; for a chain, then those of each type's edges.
        """
        of_message = self._of_messages(states)
        if edges is None:
            return [_of_rows(of_message, sizes)]
        result = []
        for counts in (edges.n_rows, *edges.counts.T):
            result.append(_of_rows(of_message, counts))
        return result

    def _of_messages(self, states: np.ndarray) -> np.ndarray:
        """A number for each message, from its state but for the handle, which depends on the schedule."""
        states = np.delete(states, HANDLE, axis=1).astype(np.uint64)
        odd = np.cumprod(np.full(states.shape[1], 0x9E3779B97F4A7C15, np.uint64)) | np.uint64(1)
        of_run = (self.seed % (1 << 32)) * 0xD1342543DE82EF95 + self.epoch * 0xAF251AF3B0F025B5
        of_run += self.accumulated * 0x9FB21C651E98DF25
        return (states * odd).sum(axis=1, dtype=np.uint64) + np.uint64(of_run % (1 << 64))


def _of_rows(
    of_message: np.ndarray,
    sizes: np.ndarray | None,
) -> np.ndarray:
    """A number for each row, from its message's number and its place in the message; `sizes` are rows of each message (None: one)."""
    numbers = of_message.copy()
    if sizes is not None:
        row = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        numbers = np.repeat(numbers, sizes) + row.astype(np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    numbers ^= numbers >> np.uint64(31)
    return ((numbers * np.uint64(0x94D049BB133111EB)) >> np.uint64(32)).astype(np.uint32)
