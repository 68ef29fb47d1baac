"""Instances whose programs grow while they are in flight: a user-written controller pumps later, or a payload decides.

Some of them are unfolded together, in one unfolding that waits for what comes; nothing of their programs is shared or kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType

import numpy as np

from ampjax.ir.instances import Messages
from ampjax.sched import columns as c
from ampjax.sched.decisions.dispatch import Dispatch
from ampjax.sched.tables.program_store import Parts, Store
from ampjax.sched.tables.space import Space, power_of_two
from ampjax.unfold.assemble_programs import starts
from ampjax.unfold.growth import Growth, KnownLines
from ampjax.unfold.rules.message_columns import spread
from ampjax.unfold.rules.row_counts import edge_counts
from ampjax.unfold.unfolder import Unfolder
from ampjax.unfold.unfolding import Unfolding

TOGETHER = 64
"""Instances that share an unfolding; its tables are forgotten when all of them have ended."""


@dataclass(eq=False)
class Family:
    """Instances that are unfolded together.

    Args:
      unfolding: Their unfolding.
      known: What is known of their programs.
      purpose: What they are run for.
      slots: The slot of each, by its place in the unfolding.
      alive: How many are in flight.
      parts: Lines of tables that are theirs.
    """

    unfolding: Unfolding
    known: KnownLines
    purpose: str
    slots: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    alive: int = 0
    parts: Parts = field(default_factory=list)


class Growing:
    """The instances in flight whose programs grow.

    Args:
      space: The tables.
      store: Where programs stand.
      unfolder: Unfolds them.
      loops: The compiled loops.
    """

    def __init__(self, space: Space, store: Store, unfolder: Unfolder, loops: ModuleType):
        self._space, self._store, self._unfolder, self._loops = space, store, unfolder, loops
        self._newest: dict[str, Family] = {}
        self.of: dict[int, tuple[Family, int]] = {}

    @property
    def unfoldings(self) -> list[Unfolding]:
        """The unfoldings of the instances in flight."""
        return [family.unfolding for family in {id(family): family for family, _ in self.of.values()}.values()]

    def open(self, slots: np.ndarray, ids: np.ndarray, purpose: str) -> None:
        """More instances, in these slots."""
        family = self._newest.get(purpose)
        if family is None or len(family.slots) + len(slots) > max(TOGETHER, len(slots)):
            unfolding = self._unfolder.start([], purpose)
            family = self._newest[purpose] = Family(unfolding, KnownLines(self._unfolder.ranks), purpose)
        places = family.unfolding.extend(ids)
        family.slots = np.append(family.slots, slots)
        family.alive += len(slots)
        self.of.update((slot, (family, place)) for slot, place in zip(slots.tolist(), places, strict=True))
        t, own = self._store.take_places(self._space.t, ids, family.parts)
        self._space.t = t
        t.instances[slots, c.PLACE], t.instances[slots, c.PICK] = own, 0

    def pump(self, slots: np.ndarray, batch: Mapping[str, Messages]) -> tuple[np.ndarray, list[tuple[np.ndarray, ...]]]:
        """What follows from more messages becomes known.

        Returns:
          The pumped messages, instance by instance; and which messages have moved: see `loops.widen`.
        """
        family, _ = self.of[int(slots[0])]
        places = np.array([self.of[slot][1] for slot in slots.tolist()], np.int64)
        family.unfolding.pump({pump: replace(m, instance=places[m.instance]) for pump, m in batch.items()})
        growth, moved = self._install(family)
        self._count_edges(family)
        t = self._space.t
        pumped = growth.stage < 0
        messages = t.instances[family.slots[growth.place[pumped]], c.LIVE] + growth.number[pumped]
        return messages.astype(np.int32), moved

    def choose(self, dispatch: Dispatch, choices: np.ndarray | None) -> list[tuple[np.ndarray, ...]]:
        """What follows from choices becomes known; returns which messages have moved."""
        t = self._space.t
        slots = t.live[dispatch.messages, c.SLOT]
        numbers = dispatch.messages - t.instances[slots, c.LIVE]
        families = [self.of[slot][0] for slot in slots.tolist()]
        moved = []
        for family in dict.fromkeys(families):
            mine = np.array([k for k, other in enumerate(families) if other is family])
            invocations = np.array(
                [family.known.invocation(self.of[int(slots[k])][1], int(numbers[k])) for k in mine.tolist()]
            )
            family.unfolding.choose(dispatch.stage, invocations, None if choices is None else np.asarray(choices)[mine])
            moved += self._install(family)[1]
        return moved

    def end(self, slot: int) -> None:
        """The instance in a slot has ended."""
        family, _ = self.of.pop(slot)
        family.alive -= 1
        if family.alive == 0 and (len(family.slots) >= TOGETHER or self._newest.get(family.purpose) is not family):
            self._give_up(family)

    def forget_all(self) -> None:
        """Nothing is in flight."""
        for family in {
            id(family): family for family in (*self._newest.values(), *(own for own, _ in self.of.values()))
        }.values():
            self._store.give(family.parts)
        self.of.clear()
        self._newest.clear()

    def waits_on(self, worker: int) -> bool:
        """Whether a message waits in a join or group of a worker for what is still to come."""
        stages = self._unfolder.plan.stages
        return any(
            table.waiting and stages[number].worker == worker
            for family in {id(family): family for family, _ in self.of.values()}.values()
            for number, table in (*family.unfolding.space.joins.items(), *family.unfolding.space.groups.items())
        )

    def _give_up(self, family: Family) -> None:
        self._store.give(family.parts)
        self._unfolder.give_up(family.unfolding)
        if self._newest.get(family.purpose) is family:
            del self._newest[family.purpose]

    def _install(self, family: Family) -> tuple[Growth, list[tuple[np.ndarray, ...]]]:
        """Writes what is new into the tables."""
        growth = family.unfolding.growth(family.known)
        if not len(growth.stage):
            self._owe(family, growth)
            return growth, []
        places = np.unique(growth.place)
        moved = self._widen(family, places)
        self._write_lines(family, growth)
        self._write_outputs(family, growth)
        self._owe(family, growth)
        self._need(family, growth)
        return growth, [moved]

    def _widen(self, family: Family, places: np.ndarray) -> tuple[np.ndarray, ...]:
        """Makes the ranges of instances long enough, of program lines, of messages and of slots."""
        slots, lengths, rows = family.slots[places], family.known.n_lines(places), family.known.n_rows(places)
        t = self._space.t
        old = t.instances[slots, c.LENGTH_OF].copy()
        for slot, length, before in zip(slots.tolist(), lengths.tolist(), old.tolist(), strict=True):
            if before < 0 or power_of_two(length) != power_of_two(before):
                self._space.t = t = self._store.move(
                    self._space.t, int(t.instances[slot, c.PLACE]), before, power_of_two(length), family.parts
                )
                t.instances[slot, c.LINE] = self._store.programs[t.instances[slot, c.PLACE], c.P_LINE]
        self._space.reserve(lengths, rows)
        moved = np.empty((len(slots), 3), np.int64)
        self._loops.widen(slots, lengths, rows, moved, *self._space.t)
        return tuple(moved.T)

    def _write_lines(self, family: Family, growth: Growth) -> None:
        store, n = self._store, len(growth.stage)
        entry, pick = (
            store.take("inputs", len(growth.in_from), family.parts),
            store.take("picks", len(growth.picks), family.parts),
        )
        self._space.t = t = store.with_room(self._space.t, growth.states.dtype)
        slots = family.slots[growth.place]
        lines = t.instances[slots, c.LINE] + growth.number
        begin = starts(growth.fan_in)[:-1] + entry
        zero = np.zeros(n, np.int64)
        columns = growth.stage, growth.row, growth.size, growth.rows, begin, growth.fan_in, zero, zero, zero
        for column, values in enumerate(columns):
            t.lines[lines, column] = values
        store.note(lines, growth.states, t.instances[slots, c.PLACE])
        inputs = t.inputs[entry : entry + len(growth.in_from)]
        in_row = np.where(growth.in_row < 0, growth.in_row - pick, growth.in_row)  # `~(i + pick)`
        inputs[:, c.FROM], inputs[:, c.FIRST], inputs[:, c.LENGTH] = growth.in_from, in_row, growth.in_size
        t.picks[pick : pick + len(growth.picks)] = growth.picks
        messages = t.instances[slots, c.LIVE] + growth.number
        t.live[messages, c.SLOT], t.live[messages, c.INVOCATION] = slots, lines
        t.live[messages, c.LEFT], t.live[messages, c.NEED] = 0, 0
        counted = t.stages[growth.stage, c.KIND] != c.ENDS
        np.add.at(t.instances[:, c.ALIVE], slots[counted], 1)

    def _write_outputs(self, family: Family, growth: Growth) -> None:
        """Adds consumptions to those that messages have already: each line's stand together, by rank."""
        t = self._space.t
        slots = family.slots[growth.owner_place]
        lines = t.instances[slots, c.LINE] + growth.owner
        different, own = np.unique(lines, return_inverse=True)
        before = t.lines[different, c.N_OUT].astype(np.int64)
        old = spread(t.lines[different, c.OUT].astype(np.int64), before)
        of = np.concatenate([np.repeat(np.arange(len(different)), before), own])
        to = np.concatenate([t.outputs[old, c.TO], growth.out_to])
        ranks = np.concatenate([t.outputs[old, c.RANK], growth.out_rank])
        order = np.lexsort((ranks, of))
        at = self._store.take("outputs", len(to), family.parts)
        self._space.t = t = self._store.with_room(t, growth.states.dtype)
        t.outputs[at : at + len(to), c.TO], t.outputs[at : at + len(to), c.RANK] = to[order], ranks[order]
        counts = np.bincount(of, minlength=len(different))
        t.lines[different, c.OUT], t.lines[different, c.N_OUT] = at + starts(counts)[:-1], counts

    def _owe(self, family: Family, growth: Growth) -> None:
        """Messages are owed more gradients."""
        t, slots = self._space.t, family.slots[growth.owed_place]
        alive = self._still_there(family, growth.owed_place)
        slots, number, more = slots[alive], growth.owed_number[alive], growth.owed_more[alive]
        t.lines[t.instances[slots, c.LINE] + number, c.OWED] += more.astype(np.int32)
        t.live[t.instances[slots, c.LIVE] + number, c.LEFT] += more.astype(np.int32)

    def _need(self, family: Family, growth: Growth) -> None:
        """New messages need those of their inputs that have not travelled on yet."""
        t = self._space.t
        slots = family.slots[growth.place]
        messages = t.instances[slots, c.LIVE] + growth.number
        consumer = np.repeat(np.arange(len(messages)), growth.fan_in)
        owners = t.instances[slots[consumer], c.LIVE] + growth.in_from
        missing = t.live[owners, c.NEED] >= 0
        t.live[messages, c.NEED] = np.bincount(consumer[missing], minlength=len(messages))

    def _still_there(self, family: Family, places: np.ndarray) -> np.ndarray:
        """Which of these instances are in flight."""
        there = np.zeros(len(family.slots), bool)
        there[[place for other, place in self.of.values() if other is family]] = True
        return there[places]

    def _count_edges(self, family: Family) -> None:
        """The edges of the instances' chains, by the topologies that have been pumped."""
        t = self._space.t
        chains = [stage for stage in self._unfolder.plan.stages if stage.chain is not None]
        if not chains:
            return
        maps, k = family.unfolding.space.topologies, len(family.slots)
        counts = np.concatenate([edge_counts(stage, maps, k) for stage in chains], axis=1)
        there = self._still_there(family, np.arange(k))
        t.edges[t.instances[family.slots[there], c.PLACE]] = counts[there]
