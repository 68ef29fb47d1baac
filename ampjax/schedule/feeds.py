"""Feeds: in which slots of host memory the payloads lie that have been pumped."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ampjax.ir.instances import Messages
from ampjax.sched.plan import Plan
from ampjax.sched.pump import Feed
from ampjax.schedule.space import Space


class Feeds:
    """Tells where what is pumped belongs.

    Args:
      plan: The plan.
      space: The tables, for the arenas' sizes.
    """

    def __init__(self, plan: Plan, space: Space):
        self._space, arenas = space, space.arenas
        pumps = zip(plan.graph.pumps.items(), arenas.of_pump, strict=True)
        self._pumps = {
            name: (node.op.type.ragged, arena, arenas.keys[arena])
            for (name, node), arena in pumps
            if not node.op.type.topology
        }

    def of(self, batch: Mapping[str, Messages], slots: np.ndarray) -> list[Feed]:
        """Where the driver must put payloads, pump by pump.

        Args:
          batch: The messages.
          slots: What loops have written.
        """
        feeds: list[Feed] = []
        start = 0
        for name, messages in batch.items():
            if name not in self._pumps or not len(messages.instance):
                continue
            ragged, arena, key = self._pumps[name]
            stop = start + (int(np.asarray(messages.sizes).sum()) if ragged else len(messages.instance))
            capacity = int(self._space.capacities[arena]) + 1
            feeds.append(Feed(name, key, slots[start:stop], messages.payload, capacity))
            start = stop
        return feeds
