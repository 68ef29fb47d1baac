"""Stashed weights: which versions of a stage's parameters messages in flight will still need on their way back."""

from __future__ import annotations

from ampjax.sched.decisions.dispatch import DIRECTIONS, Dispatch
from ampjax.sched.layout import columns as c
from ampjax.sched.layout.columns import Tables


class WeightStashes:
    """Counts the messages that have gone forth with each combination of versions."""

    def __init__(self) -> None:
        self._held: dict[tuple[int, tuple[int, ...]], int] = {}

    def clear(self) -> None:
        """Forgets all messages."""
        self._held.clear()

    def with_versions(self, t: Tables, d: Dispatch) -> Dispatch:
        """Adds to a dispatch its parameter versions, and the versions that can be dropped after the dispatch.

        Args:
          t: The tables.
          d: A dispatch of a stage with stashed weights.

        Returns:
          The dispatch; in inference as it is.
        """
        seen = t.live[d.messages[0], c.SEEN : c.SEEN + t.stages[d.stage, c.N_PARAMS]]
        if d.direction == DIRECTIONS[c.INFER]:
            return d
        versions = tuple(seen.tolist())
        key = d.stage, versions
        if d.direction == DIRECTIONS[c.FORWARD]:
            self._held[key] = self._held.get(key, 0) + d.n_messages
            return d._replace(versions=versions)
        self._held[key] -= d.n_messages
        if self._held[key]:
            return d._replace(versions=versions)
        del self._held[key]
        return d._replace(versions=versions, drop=(versions,))
