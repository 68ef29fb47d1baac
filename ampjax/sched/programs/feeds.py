"""Feeds: the slots in host memory for pumped payloads, and the check that payloads fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.instances import Messages
from ampjax.plan.planner import Plan
from ampjax.plan.stages import ArenaKey
from ampjax.sched.tables.scheduler_tables import SchedulerTables


@dataclass(frozen=True)
class Feed:
    """A destination of pumped payloads: the arena and its number of rows, slots `[r]`, the payload rows, and the pump's name."""

    pump: str
    arena: ArenaKey
    slots: np.ndarray
    payload: np.ndarray
    capacity: int


class Feeds:
    """Finds the slots of pumped payloads.

    Args:
      plan: The plan.
      tables: The tables, for the arenas' sizes.
    """

    def __init__(self, plan: Plan, tables: SchedulerTables):
        self._tables = tables
        arenas = tables.arenas
        pumps = zip(
            plan.graph.pumps.items(),
            arenas.of_pump,
            strict=True,
        )
        result = {}
        for (name, node), arena in pumps:
            if not node.op.type.topology:
                result[name] = (
                    node.op.type.ragged,
                    arena,
                    arenas.keys[arena],
                )
        self._pumps = result

    def of(
        self,
        batch: Mapping[str, Messages],
        slots: np.ndarray,
    ) -> list[Feed]:
        """Gives the slots for payloads, pump by pump.

        Args:
          batch: The messages.
          slots: What loops have written.

        Returns:
          A feed for each pump whose payloads go to an arena.
        """
        feeds: list[Feed] = []
        start = 0
        for name, messages in batch.items():
            if name not in self._pumps or not len(messages.instance):
                continue
            ragged, arena, key = self._pumps[name]
            stop = start + (
                int(np.asarray(messages.sizes).sum()) if ragged else len(messages.instance)
            )
            capacity = int(self._tables.capacities[arena]) + 1
            feeds.append(Feed(name, key, slots[start:stop], messages.payload, capacity))
            start = stop
        return feeds


def check_payload(feed: Feed) -> None:
    """Checks a pumped payload.

    Raises:
      MessageError: If a payload has another shape than its pump, or a dtype that does not fit.
    """
    _, shape, dtype = feed.arena
    payload = np.asarray(feed.payload)
    where = f"pump `{feed.pump}`, payload"
    if payload.size and not np.can_cast(payload.dtype, dtype, "same_kind"):
        raise MessageError(
            where,
            f"{dtype}",
            f"{payload.dtype}",
            f"Convert the payload to {dtype}, or declare the pump with its dtype.",
        )
    if payload.shape != (len(feed.slots), *shape):
        if payload.shape[:1] == (len(feed.slots),):
            rows = payload.shape[1:]
        else:
            rows = payload.shape
        raise MessageError(
            where,
            f"rows of shape {tuple(shape)}, as the pump was declared, one for each message",
            f"{rows} in one message"
            if rows != payload.shape
            else f"{rows} for {len(feed.slots)} messages",
            "Give payloads of the pump's shape.",
        )
