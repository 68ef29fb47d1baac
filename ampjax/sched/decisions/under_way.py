"""The dispatches that have been issued and are not done."""

from __future__ import annotations

import numpy as np

from ampjax.sched.decisions.dispatch import Dispatch


class UnderWay(dict[int, Dispatch]):
    """The dispatches that are under way, by number."""

    def follow(self, moved: np.ndarray) -> None:
        """Notes that messages have moved to other lines of `Tables.live`.

        Args:
          moved: `[n, 3]`: for each range its first line before, its length, and its first line now, in the order of the moves.
        """
        for before, n, now in moved.tolist():
            if before == now or n == 0:
                continue
            for dispatch in self.values():
                messages = dispatch.messages
                messages[(messages >= before) & (messages < before + n)] += now - before
