"""Feeds: in which slots of host memory the payloads lie that have been pumped."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from ampjax.ir.instances import Messages
from ampjax.sched.plan import Plan
from ampjax.sched.pump import Feed
from ampjax.sched.stages import HOST, ArenaKey
from ampjax.schedule.columns import Tables
from ampjax.unfold.messages import spread


class Feeds:
    """Finds the slots of what is pumped.

    Args:
      plan: The plan.
      capacity: The rows of an arena.
    """

    def __init__(self, plan: Plan, capacity: Callable[[ArenaKey], int]):
        self._capacity = capacity
        types = {name: node.op.type for name, node in plan.graph.pumps.items()}
        self._wires = {name: (t, (HOST, t.shape, t.dtype.name)) for name, t in types.items() if not t.topology}

    def of(self, t: Tables, batch: Mapping[str, Messages], rows_at: np.ndarray) -> list[Feed]:
        """Where the driver must put payloads, pump by pump.

        Args:
          t: The tables.
          batch: The messages.
          rows_at: `[k]`: where in `slots` the rows of each instance's messages begin: pump by pump in the batch's order, message by message.
        """
        feeds, rows_at = [], rows_at.copy()
        for name, messages in batch.items():
            of = messages.instance
            if name not in self._wires or not len(of):
                continue
            wire, arena = self._wires[name]
            rows = np.asarray(messages.sizes) if wire.ragged else np.ones(len(of), np.int64)
            order = np.argsort(of, kind="stable")
            per_instance = np.bincount(of, rows, len(rows_at)).astype(np.int64)
            of, own = of[order], rows[order]
            first = np.empty(len(of), np.int64)  # after the rows of this pump's messages before, instance by instance
            first[order] = rows_at[of] + (np.cumsum(own) - own) - (np.cumsum(per_instance) - per_instance)[of]
            places = spread(first, rows) if wire.ragged else first
            feeds.append(Feed(name, arena, t.slots[places].astype(np.int64), messages.payload, self._capacity(arena)))
            rows_at += per_instance
        return feeds
