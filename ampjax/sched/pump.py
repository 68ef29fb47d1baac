"""Pumping: messages of instances that have been admitted, from the controller's columns to cells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ampjax.errors import MessageError
from ampjax.ir.instances import Messages
from ampjax.ir.state import INSTANCE, SLOT
from ampjax.ir.wires import WireType
from ampjax.sched.plan import Plan
from ampjax.sched.route import Batch
from ampjax.sched.slots import SlotPool
from ampjax.sched.stages import HOST, ArenaKey
from ampjax.sched.traffic import Traffic


@dataclass(frozen=True)
class Feed:
    """Where pumped payloads go: arena and how many rows it has, slots `[r]`, and the payload rows; and the pump's name."""

    pump: str
    arena: ArenaKey
    slots: np.ndarray
    payload: np.ndarray
    capacity: int


class Pumps:
    """The graph's pumps.

    Args:
      plan: The plan.
      pool: The slots of an arena.
    """

    def __init__(self, plan: Plan, pool: Callable[[ArenaKey], SlotPool]):
        self._plan, self._pool = plan, pool
        types = {name: node.op.type for name, node in plan.graph.pumps.items()}
        self._pumps = {
            name: (-1 - number, wire, frozenset(wire.fields)) for number, (name, wire) in enumerate(types.items())
        }

    def pump(self, traffic: Traffic, slots: np.ndarray, batch: Mapping[str, Messages]) -> list[Feed]:
        """Emits messages; returns where the driver must put their payloads.

        Args:
          traffic: Where they go.
          slots: The slots of their instances `[n]`; `Messages.instance` counts positions in it.
          batch: The messages, by pump.

        Raises:
          MessageError: If a pump is unknown, or a state field is missing or not known.
        """
        for name in batch:
            self._require_known(name)
        feeds: list[Feed] = []
        emitted: list[tuple[str, Batch]] = []
        for name, messages in batch.items():
            producer, wire, fields = self._pumps[name]
            if wire.topology:
                maps = traffic.inflight.topologies.setdefault(name, {})
                maps.update(zip(slots[messages.instance].tolist(), messages.payload, strict=True))
            elif len(messages.instance):
                require_fields(name, wire, fields, messages)
                own, feed = self._take(traffic, name, producer, wire, slots[messages.instance], messages)
                emitted.append((name, own))
                feeds.append(feed)
        for name, own in emitted:
            traffic.emit([self._plan.pumps[name]], [own], self._uses(self._pumps[name][0], own.train))
        return feeds

    def _take(
        self, traffic: Traffic, name: str, producer: int, wire: WireType, of: np.ndarray, messages: Messages
    ) -> tuple[Batch, Feed]:
        """Cells and host slots for one pump's messages of the instances in the slots `of` `[m]`."""
        cells, inflight, layout = traffic.cells, traffic.inflight, self._plan.layout
        train = inflight.is_train(int(of[0]))
        uses = self._uses(producer, train)
        states = np.zeros((len(of), layout.width), np.int64)
        states[:, SLOT] = of
        states[:, INSTANCE] = inflight.ids[of]
        for field, values in messages.fields.items():
            states[:, layout.column(field)] = values
        sizes = np.asarray(messages.sizes) if wire.ragged else None
        arena = (HOST, wire.shape, wire.dtype.name)
        pool = self._pool(arena)
        rows = pool.take(len(of) if sizes is None else int(sizes.sum()))
        new = cells.take(len(of), producer, rows if sizes is None else None, 1 if uses is None else uses)
        cells.instance[new] = of
        if sizes is not None:
            cells.set_rows(new, rows, sizes)
        inflight.hold(of)
        return Batch(states, new, train, uses is not None), Feed(name, arena, rows, messages.payload, pool.capacity)

    def _uses(self, producer: int, train: bool) -> int | None:
        return self._plan.pump_uses[producer] if train else None

    def _require_known(self, name: str) -> None:
        if name not in self._pumps:
            raise MessageError(
                f"pump `{name}`",
                f"one of the graph's pumps {sorted(self._pumps)}",
                "an unknown name",
                "Name the pumps of the graph in the instance.",
            )


def require_fields(name: str, wire: WireType, fields: frozenset[str], messages: Messages) -> None:
    """Checks that messages have their pump's state fields, `fields` as a set, and sizes where it is ragged.

    Raises:
      MessageError: If a state field is missing or not known, or a ragged pump's sizes are missing.
    """
    if messages.fields.keys() != fields:
        raise MessageError(
            f"pump `{name}`",
            f"messages with the state fields {sorted(wire.fields)}",
            f"{sorted(messages.fields)}",
            "Pump each declared field, and no other.",
        )
    if wire.ragged and messages.sizes is None:
        raise MessageError(
            f"pump `{name}`", "sizes, the rows of each message of a ragged pump", "none", "Give `Messages.sizes`."
        )


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
