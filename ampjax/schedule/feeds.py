"""Feeds: in which slots of host memory the payloads lie that have been pumped."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ampjax.ir.instances import Messages
from ampjax.sched.plan import Plan
from ampjax.sched.pump import Feed
from ampjax.sched.stages import HOST
from ampjax.schedule.columns import Tables
from ampjax.unfold.assemble import starts
from ampjax.unfold.messages import spread


def feeds_of(plan: Plan, t: Tables, batch: Mapping[str, Messages], rows_at: np.ndarray) -> list[Feed]:
    """Where the driver must put payloads, pump by pump.

    Args:
      plan: The plan.
      t: The tables.
      batch: The messages.
      rows_at: `[k]`: where in `slots` the rows of each instance's messages begin: pump by pump in the batch's order, message by message.
    """
    feeds, rows_at = [], rows_at.copy()
    for name, messages in batch.items():
        wire, of = plan.graph.pumps[name].op.type, messages.instance
        if wire.topology or not len(of):
            continue
        rows = np.asarray(messages.sizes) if wire.ragged else np.ones(len(of), np.int64)
        order = np.argsort(of, kind="stable")
        per_instance = np.bincount(of, rows, len(rows_at)).astype(np.int64)
        before = starts(rows[order])[:-1]  # rows of this pump's messages before each, instance by instance
        first = np.empty(len(of), np.int64)
        first[order] = rows_at[of[order]] + before - starts(per_instance)[of[order]]
        slots = t.slots[spread(first, rows)].astype(np.int64)
        feeds.append(Feed(name, (HOST, wire.shape, wire.dtype.name), slots, messages.payload))
        rows_at += per_instance
    return feeds
