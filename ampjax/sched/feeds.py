"""Feeds: in which slots of host memory the payloads lie that have been pumped, and whether they fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.instances import Messages
from ampjax.sched.columns import Tables
from ampjax.sched.plan import Plan
from ampjax.sched.stages import HOST, ArenaKey
from ampjax.unfold.messages import spread


@dataclass(frozen=True)
class Feed:
    """Where pumped payloads go: arena and how many rows it has, slots `[r]`, and the payload rows; and the pump's name."""

    pump: str
    arena: ArenaKey
    slots: np.ndarray
    payload: np.ndarray
    capacity: int


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


def check_payload(feed: Feed) -> None:
    """Checks what has been pumped.

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
        rows = payload.shape[1:] if payload.shape[:1] == (len(feed.slots),) else payload.shape
        raise MessageError(
            where,
            f"rows of shape {tuple(shape)}, as the pump was declared, one for each message",
            f"{rows} in one message" if rows != payload.shape else f"{rows} for {len(feed.slots)} messages",
            "Give payloads of the pump's shape.",
        )
