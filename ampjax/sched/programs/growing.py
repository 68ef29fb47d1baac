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
from ampjax.sched.tables.program_store import Parts, ProgramStore
from ampjax.sched.tables.scheduler_tables import SchedulerTables, power_of_two
from ampjax.unfold.assemble_programs import starts
from ampjax.unfold.growth import Growth, KnownLines
from ampjax.unfold.rules.message_columns import spread
from ampjax.unfold.rules.row_counts import edge_counts
from ampjax.unfold.unfolder import Unfolder
from ampjax.unfold.unfolding import Unfolding

COHORT_SIZE = 64
"""Instances that share an unfolding; its tables are forgotten when all of them have ended."""


@dataclass(eq=False)
class Cohort:
    """Instances that are unfolded together.

    Args:
      unfolding: Their unfolding.
      known: What is known of their programs.
      purpose: What they are run for.
      handles: The handle of each, by its place in the unfolding.
      alive: How many are in flight.
      parts: Lines of tables that are theirs.
    """

    unfolding: Unfolding
    known: KnownLines
    purpose: str
    handles: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    alive: int = 0
    parts: Parts = field(default_factory=list)


class GrowingPrograms:
    """The instances in flight whose programs grow.

    Args:
      tables: The tables.
      store: Where programs stand.
      unfolder: Unfolds them.
      loops: The compiled loops.
    """

    def __init__(self, tables: SchedulerTables, store: ProgramStore, unfolder: Unfolder, loops: ModuleType):
        self._tables, self._store, self._unfolder, self._loops = tables, store, unfolder, loops
        self._newest: dict[str, Cohort] = {}
        self.of: dict[int, tuple[Cohort, int]] = {}

    @property
    def unfoldings(self) -> list[Unfolding]:
        """The unfoldings of the instances in flight."""
        return [cohort.unfolding for cohort in {id(cohort): cohort for cohort, _ in self.of.values()}.values()]

    def open(self, handles: np.ndarray, ids: np.ndarray, purpose: str) -> None:
        """More instances, with these handles."""
        cohort = self._newest.get(purpose)
        if cohort is None or len(cohort.handles) + len(handles) > max(COHORT_SIZE, len(handles)):
            unfolding = self._unfolder.start([], purpose)
            cohort = self._newest[purpose] = Cohort(unfolding, KnownLines(self._unfolder.ranks), purpose)
        places = cohort.unfolding.extend(ids)
        cohort.handles = np.append(cohort.handles, handles)
        cohort.alive += len(handles)
        self.of.update((handle, (cohort, place)) for handle, place in zip(handles.tolist(), places, strict=True))
        t, own = self._store.take_places(self._tables.t, ids, cohort.parts)
        self._tables.t = t
        t.instances[handles, c.PROGRAM], t.instances[handles, c.FIRST_PICK] = own, 0

    def pump(
        self, handles: np.ndarray, batch: Mapping[str, Messages]
    ) -> tuple[np.ndarray, list[tuple[np.ndarray, ...]]]:
        """What follows from more messages becomes known.

        Returns:
          The pumped messages, instance by instance; and which messages have moved: see `loops.widen`.
        """
        cohort, _ = self.of[int(handles[0])]
        places = np.array([self.of[handle][1] for handle in handles.tolist()], np.int64)
        cohort.unfolding.pump({pump: replace(m, instance=places[m.instance]) for pump, m in batch.items()})
        growth, moved = self._install(cohort)
        self._count_edges(cohort)
        t = self._tables.t
        pumped = growth.stage < 0
        messages = t.instances[cohort.handles[growth.place[pumped]], c.FIRST_LIVE] + growth.number[pumped]
        return messages.astype(np.int32), moved

    def choose(self, dispatch: Dispatch, choices: np.ndarray | None) -> list[tuple[np.ndarray, ...]]:
        """What follows from choices becomes known; returns which messages have moved."""
        t = self._tables.t
        handles = t.live[dispatch.messages, c.HANDLE]
        numbers = dispatch.messages - t.instances[handles, c.FIRST_LIVE]
        cohorts = [self.of[handle][0] for handle in handles.tolist()]
        moved = []
        for cohort in dict.fromkeys(cohorts):
            mine = np.array([k for k, other in enumerate(cohorts) if other is cohort])
            invocations = np.array(
                [cohort.known.invocation(self.of[int(handles[k])][1], int(numbers[k])) for k in mine.tolist()]
            )
            cohort.unfolding.choose(dispatch.stage, invocations, None if choices is None else np.asarray(choices)[mine])
            moved += self._install(cohort)[1]
        return moved

    def end(self, handle: int) -> None:
        """The instance of a handle has ended."""
        cohort, _ = self.of.pop(handle)
        cohort.alive -= 1
        if cohort.alive == 0 and (len(cohort.handles) >= COHORT_SIZE or self._newest.get(cohort.purpose) is not cohort):
            self._give_up(cohort)

    def forget_all(self) -> None:
        """Nothing is in flight."""
        for cohort in {
            id(cohort): cohort for cohort in (*self._newest.values(), *(own for own, _ in self.of.values()))
        }.values():
            self._store.give(cohort.parts)
        self.of.clear()
        self._newest.clear()

    def waits_on(self, worker: int) -> bool:
        """Whether a message waits in a join or group of a worker for what is still to come."""
        stages = self._unfolder.plan.stages
        return any(
            table.waiting and stages[number].worker == worker
            for cohort in {id(cohort): cohort for cohort, _ in self.of.values()}.values()
            for number, table in (*cohort.unfolding.workspace.joins.items(), *cohort.unfolding.workspace.groups.items())
        )

    def _give_up(self, cohort: Cohort) -> None:
        self._store.give(cohort.parts)
        self._unfolder.give_up(cohort.unfolding)
        if self._newest.get(cohort.purpose) is cohort:
            del self._newest[cohort.purpose]

    def _install(self, cohort: Cohort) -> tuple[Growth, list[tuple[np.ndarray, ...]]]:
        """Writes what is new into the tables."""
        growth = cohort.unfolding.growth(cohort.known)
        if not len(growth.stage):
            self._owe(cohort, growth)
            return growth, []
        places = np.unique(growth.place)
        moved = self._widen(cohort, places)
        self._write_lines(cohort, growth)
        self._write_outputs(cohort, growth)
        self._owe(cohort, growth)
        self._need(cohort, growth)
        return growth, [moved]

    def _widen(self, cohort: Cohort, places: np.ndarray) -> tuple[np.ndarray, ...]:
        """Makes the ranges of instances long enough, of program lines, of messages and of slots."""
        handles, lengths, rows = cohort.handles[places], cohort.known.n_lines(places), cohort.known.n_rows(places)
        t = self._tables.t
        old = t.instances[handles, c.N_INVOCATIONS].copy()
        for handle, length, before in zip(handles.tolist(), lengths.tolist(), old.tolist(), strict=True):
            if before < 0 or power_of_two(length) != power_of_two(before):
                self._tables.t = t = self._store.move(
                    self._tables.t, int(t.instances[handle, c.PROGRAM]), before, power_of_two(length), cohort.parts
                )
                t.instances[handle, c.FIRST_LINE] = self._store.programs[t.instances[handle, c.PROGRAM], c.P_LINE]
        self._tables.reserve(lengths, rows)
        moved = np.empty((len(handles), 3), np.int64)
        self._loops.widen(handles, lengths, rows, moved, *self._tables.t)
        return tuple(moved.T)

    def _write_lines(self, cohort: Cohort, growth: Growth) -> None:
        store, n = self._store, len(growth.stage)
        entry, pick = (
            store.take("inputs", len(growth.in_from), cohort.parts),
            store.take("picks", len(growth.picks), cohort.parts),
        )
        self._tables.t = t = store.with_room(self._tables.t, growth.states.dtype)
        handles = cohort.handles[growth.place]
        lines = t.instances[handles, c.FIRST_LINE] + growth.number
        begin = starts(growth.fan_in)[:-1] + entry
        zero = np.zeros(n, np.int64)
        columns = growth.stage, growth.row, growth.size, growth.rows, begin, growth.fan_in, zero, zero, zero
        for column, values in enumerate(columns):
            t.lines[lines, column] = values
        store.note(lines, growth.states, t.instances[handles, c.PROGRAM])
        inputs = t.inputs[entry : entry + len(growth.in_from)]
        in_row = np.where(growth.in_row < 0, growth.in_row - pick, growth.in_row)  # `~(i + pick)`
        inputs[:, c.PRODUCER], inputs[:, c.FIRST_ROW], inputs[:, c.LENGTH] = growth.in_from, in_row, growth.in_size
        t.picks[pick : pick + len(growth.picks)] = growth.picks
        messages = t.instances[handles, c.FIRST_LIVE] + growth.number
        t.live[messages, c.HANDLE], t.live[messages, c.INVOCATION] = handles, lines
        t.live[messages, c.N_OWED], t.live[messages, c.N_MISSING] = 0, 0
        counted = t.stages[growth.stage, c.KIND] != c.ENDS
        np.add.at(t.instances[:, c.N_ALIVE], handles[counted], 1)

    def _write_outputs(self, cohort: Cohort, growth: Growth) -> None:
        """Adds consumptions to those that messages have already: each line's stand together, by rank."""
        t = self._tables.t
        handles = cohort.handles[growth.owner_place]
        lines = t.instances[handles, c.FIRST_LINE] + growth.owner
        different, own = np.unique(lines, return_inverse=True)
        before = t.lines[different, c.N_OUT].astype(np.int64)
        old = spread(t.lines[different, c.FIRST_OUTPUT].astype(np.int64), before)
        of = np.concatenate([np.repeat(np.arange(len(different)), before), own])
        to = np.concatenate([t.outputs[old, c.CONSUMER], growth.out_to])
        ranks = np.concatenate([t.outputs[old, c.RANK], growth.out_rank])
        order = np.lexsort((ranks, of))
        at = self._store.take("outputs", len(to), cohort.parts)
        self._tables.t = t = self._store.with_room(t, growth.states.dtype)
        t.outputs[at : at + len(to), c.CONSUMER], t.outputs[at : at + len(to), c.RANK] = to[order], ranks[order]
        counts = np.bincount(of, minlength=len(different))
        t.lines[different, c.FIRST_OUTPUT], t.lines[different, c.N_OUT] = at + starts(counts)[:-1], counts

    def _owe(self, cohort: Cohort, growth: Growth) -> None:
        """Messages are owed more gradients."""
        t, handles = self._tables.t, cohort.handles[growth.owed_place]
        alive = self._still_there(cohort, growth.owed_place)
        handles, number, more = handles[alive], growth.owed_number[alive], growth.owed_more[alive]
        t.lines[t.instances[handles, c.FIRST_LINE] + number, c.OWED] += more.astype(np.int32)
        t.live[t.instances[handles, c.FIRST_LIVE] + number, c.N_OWED] += more.astype(np.int32)

    def _need(self, cohort: Cohort, growth: Growth) -> None:
        """New messages need those of their inputs that have not travelled on yet."""
        t = self._tables.t
        handles = cohort.handles[growth.place]
        messages = t.instances[handles, c.FIRST_LIVE] + growth.number
        consumer = np.repeat(np.arange(len(messages)), growth.fan_in)
        owners = t.instances[handles[consumer], c.FIRST_LIVE] + growth.in_from
        missing = t.live[owners, c.N_MISSING] >= 0
        t.live[messages, c.N_MISSING] = np.bincount(consumer[missing], minlength=len(messages))

    def _still_there(self, cohort: Cohort, places: np.ndarray) -> np.ndarray:
        """Which of these instances are in flight."""
        there = np.zeros(len(cohort.handles), bool)
        there[[place for other, place in self.of.values() if other is cohort]] = True
        return there[places]

    def _count_edges(self, cohort: Cohort) -> None:
        """The edges of the instances' chains, by the topologies that have been pumped."""
        t = self._tables.t
        chains = [stage for stage in self._unfolder.plan.stages if stage.chain is not None]
        if not chains:
            return
        maps, k = cohort.unfolding.workspace.topologies, len(cohort.handles)
        counts = np.concatenate([edge_counts(stage, maps, k) for stage in chains], axis=1)
        there = self._still_there(cohort, np.arange(k))
        t.edges[t.instances[cohort.handles[there], c.PROGRAM]] = counts[there]
