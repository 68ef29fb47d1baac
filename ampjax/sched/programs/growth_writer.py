"""Writes new lines of growing programs into the tables."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from ampjax.plan.planner import Plan
from ampjax.sched.decisions.under_way import UnderWay
from ampjax.sched.layout import columns as c
from ampjax.sched.programs.cohort import Cohort
from ampjax.sched.tables.program_store import ProgramStore
from ampjax.sched.tables.scheduler_tables import SchedulerTables, power_of_two
from ampjax.unfold.assemble_programs import starts
from ampjax.unfold.growth import Growth
from ampjax.unfold.rules.message_columns import spread
from ampjax.unfold.rules.row_counts import edge_counts


class GrowthWriter:
    """Writes new lines of programs into the tables of instances in flight.

    Args:
      plan: The plan.
      tables: The tables.
      store: The places of programs in the tables.
      under_way: The dispatches under way, whose messages may move.
      loops: The compiled loops.
    """

    def __init__(
        self,
        plan: Plan,
        tables: SchedulerTables,
        store: ProgramStore,
        under_way: UnderWay,
        loops: ModuleType,
    ):
        self._tables = tables
        self._store = store
        self._under_way = under_way
        self._loops = loops
        self._chains = [stage for stage in plan.stages if stage.chain is not None]

    def write(self, cohort: Cohort) -> Growth:
        """Writes the lines that a cohort's unfolding has found since the last call.

        Returns:
          What was new.
        """
        growth = cohort.unfolding.growth(cohort.known)
        if not len(growth.stage):
            self._owe(cohort, growth)
            return growth
        moved = self._widen(cohort, np.unique(growth.place))
        self._write_lines(cohort, growth)
        self._write_outputs(cohort, growth)
        self._owe(cohort, growth)
        self._count_missing(cohort, growth)
        self._under_way.follow(moved)
        return growth

    def count_edges(self, cohort: Cohort) -> None:
        """Counts the edges of a cohort's chains anew, by the topologies that have been pumped."""
        if not self._chains:
            return
        t = self._tables.t
        k = len(cohort.handles)
        maps = cohort.unfolding.workspace.topologies
        counts = np.concatenate(
            [edge_counts(stage, maps, k) for stage in self._chains],
            axis=1,
        )
        in_flight = cohort.is_in_flight(np.arange(k))
        t.edges[t.instances[cohort.handles[in_flight], c.PROGRAM]] = counts[in_flight]

    def _widen(self, cohort: Cohort, places: np.ndarray) -> np.ndarray:
        """Makes the ranges of instances in program lines, messages and slots long enough; gives the moves that `loops.widen` reports."""
        handles = cohort.handles[places]
        lengths = cohort.known.n_lines(places)
        rows = cohort.known.n_rows(places)
        t = self._tables.t
        old = t.instances[handles, c.N_INVOCATIONS].copy()
        for handle, length, before in zip(
            handles.tolist(), lengths.tolist(), old.tolist(), strict=True
        ):
            if before < 0 or power_of_two(length) != power_of_two(before):
                self._tables.t = t = self._store.move(
                    self._tables.t,
                    int(t.instances[handle, c.PROGRAM]),
                    before,
                    power_of_two(length),
                    cohort.parts,
                )
                t.instances[handle, c.FIRST_LINE] = self._store.programs[
                    t.instances[handle, c.PROGRAM], c.P_LINE
                ]
        self._tables.reserve(lengths, rows)
        moved = np.empty((len(handles), 3), np.int64)
        self._loops.widen(
            handles,
            lengths,
            rows,
            moved,
            *self._tables.t,
        )
        return moved

    def _write_lines(self, cohort: Cohort, growth: Growth) -> None:
        store = self._store
        n = len(growth.stage)
        entry = store.take("inputs", len(growth.in_from), cohort.parts)
        pick = store.take("picks", len(growth.picks), cohort.parts)
        self._tables.t = t = store.with_room(
            self._tables.t,
            growth.states.dtype,
        )
        handles = cohort.handles[growth.place]
        lines = t.instances[handles, c.FIRST_LINE] + growth.number
        begin = starts(growth.fan_in)[:-1] + entry
        zero = np.zeros(n, np.int64)
        columns = (
            growth.stage,
            growth.row,
            growth.size,
            growth.rows,
            begin,
            growth.fan_in,
            zero,
            zero,
            zero,
        )
        for column, values in enumerate(columns):
            t.lines[lines, column] = values
        store.note(
            lines,
            growth.states,
            t.instances[handles, c.PROGRAM],
        )
        inputs = t.inputs[entry : entry + len(growth.in_from)]
        in_row = np.where(
            growth.in_row < 0,
            growth.in_row - pick,
            growth.in_row,
        )  # `~(i + pick)`
        inputs[:, c.PRODUCER] = growth.in_from
        inputs[:, c.FIRST_ROW] = in_row
        inputs[:, c.LENGTH] = growth.in_size
        t.picks[pick : pick + len(growth.picks)] = growth.picks
        messages = t.instances[handles, c.FIRST_LIVE] + growth.number
        t.live[messages, c.HANDLE] = handles
        t.live[messages, c.INVOCATION] = lines
        t.live[messages, c.N_OWED] = 0
        t.live[messages, c.N_MISSING] = 0
        counted = t.stages[growth.stage, c.KIND] != c.ENDS
        np.add.at(
            t.instances[:, c.N_ALIVE],
            handles[counted],
            1,
        )

    def _write_outputs(self, cohort: Cohort, growth: Growth) -> None:
        """Adds consumptions to the ones that messages have already, so that each line's consumptions stand together, by rank."""
        t = self._tables.t
        handles = cohort.handles[growth.owner_place]
        lines = t.instances[handles, c.FIRST_LINE] + growth.owner
        different, of_line = np.unique(lines, return_inverse=True)
        before = t.lines[different, c.N_OUT].astype(np.int64)
        old = spread(
            t.lines[different, c.FIRST_OUTPUT].astype(np.int64),
            before,
        )
        of = np.concatenate(
            [
                np.repeat(
                    np.arange(len(different)),
                    before,
                ),
                of_line,
            ]
        )
        to = np.concatenate([t.outputs[old, c.CONSUMER], growth.out_to])
        ranks = np.concatenate([t.outputs[old, c.RANK], growth.out_rank])
        order = np.lexsort((ranks, of))
        at = self._store.take("outputs", len(to), cohort.parts)
        self._tables.t = t = self._store.with_room(
            t,
            growth.states.dtype,
        )
        t.outputs[at : at + len(to), c.CONSUMER] = to[order]
        t.outputs[at : at + len(to), c.RANK] = ranks[order]
        counts = np.bincount(of, minlength=len(different))
        t.lines[different, c.FIRST_OUTPUT] = at + starts(counts)[:-1]
        t.lines[different, c.N_OUT] = counts

    def _owe(self, cohort: Cohort, growth: Growth) -> None:
        """Notes that messages are owed more gradients."""
        t = self._tables.t
        handles = cohort.handles[growth.owed_place]
        alive = cohort.is_in_flight(growth.owed_place)
        handles = handles[alive]
        number = growth.owed_number[alive]
        more = growth.owed_more[alive]
        t.lines[t.instances[handles, c.FIRST_LINE] + number, c.OWED] += more.astype(np.int32)
        t.live[t.instances[handles, c.FIRST_LIVE] + number, c.N_OWED] += more.astype(np.int32)

    def _count_missing(self, cohort: Cohort, growth: Growth) -> None:
        """Counts the inputs of new messages that have not travelled on yet."""
        t = self._tables.t
        handles = cohort.handles[growth.place]
        messages = t.instances[handles, c.FIRST_LIVE] + growth.number
        consumer = np.repeat(np.arange(len(messages)), growth.fan_in)
        owners = t.instances[handles[consumer], c.FIRST_LIVE] + growth.in_from
        missing = t.live[owners, c.N_MISSING] >= 0
        t.live[messages, c.N_MISSING] = np.bincount(
            consumer[missing],
            minlength=len(messages),
        )
