"""A loop in steps at run time: its body is traced for each row count and for all rows, and cut into parts before, in and behind the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.errors import InvariantError
from ampjax.frontend.batches.inverse_reads import read
from ampjax.frontend.batches.programs_of_rows import (
    Rows,
    Run,
    Slot,
    as_typed,
    derived_if,
    taken,
)
from ampjax.frontend.batches.row_lowering import Loop, Recall
from ampjax.frontend.batches.step_frames import StepFrame, sizes_of
from ampjax.frontend.loops.level_bodies import BodyParts, LevelBody, traced
from ampjax.frontend.loops.packed_rows import Packed
from ampjax.frontend.loops.step_arrays import StepArrays
from ampjax.frontend.loops.step_tables import StepTables
from ampjax.frontend.loops.table_products import products_of_tables
from ampjax.frontend.loops.traced_rows import TracedRows, is_read_early
from ampjax.jaxprs.primitives import is_inexact


@dataclass(frozen=True, eq=False)
class StepLoop:
    """A loop in steps, at run time.

    Args:
      frame: Its frame.
      loop: What its body reads.
      there: The array of the batch that says which rows are no copies.
      host: The arrays of the batch that say how it goes on: as `StepFrame.lanes`, `steps`, `rounds` and `readers` give them.
      recalls: What its body reads of states, with the array of the batch that says where that lies.
      before: States before it; none if there are none.
      new: The states that the body computes.
      outputs: What it gives beside.
      result: The arrays of the batch that say which states are wanted behind the loop, and for each state by which rows.
    """

    frame: StepFrame
    loop: Loop
    there: Slot
    host: tuple[Slot, Slot, Slot, Slot]
    recalls: Sequence[tuple[Recall, Slot]]
    before: Sequence[Rows]
    new: Sequence[Rows]
    outputs: Sequence[Rows]
    result: tuple[Slot, Slot]

    def __call__(self, run: Run) -> list[Any]:
        """States that are wanted, and outputs of all rows."""
        layout = Packed(tuple(rows.aval.shape for rows in self.new))
        arena = self._before(run, layout)
        outputs = [run.zeros(rows) for rows in self.outputs]
        if run.slots[self.there].size:
            arena, outputs = _Body(self, run).run(
                arena,
                layout,
            )
        at, readers = (run.slots[slot] for slot in self.result)
        found = layout.unpack(read(arena, at, readers))
        return [*found, *outputs]

    def _before(
        self,
        run: Run,
        layout: Packed,
    ) -> Any:
        """The states before, `[states, numbers]`."""
        kinds = [rows.aval for rows in self.new]
        if not self.before:
            return jnp.zeros(
                (0, layout.width),
                kinds[0].dtype,
            )
        values = []
        for rows, kind in zip(self.before, kinds, strict=True):
            values.append(
                as_typed(
                    run.get(rows),
                    kind,
                )
            )
        return layout.pack(values)


class _Body:
    """The body of a loop in one run: traced for each row count, and for all rows.

    Args:
      steps: The loop.
      run: The run of the block around.
    """

    def __init__(self, steps: StepLoop, run: Run):
        self._steps = steps
        self._run = run
        self._read: list[tuple[int, int]] = []
        self._read_rows: list[Rows] = []
        for i, (recall, _) in enumerate(steps.recalls):
            for s, rows in recall.rows.items():
                self._read.append((i, s))
                self._read_rows.append(rows)
        self._slots: dict[Slot, Any] = {}
        for slot, value in run.slots.items():
            if steps.frame in slot.frame.around():
                self._slots[slot] = value[0]
        self._there = run.slots[steps.there]
        self._n_rows = self._there.size
        self._early: list[tuple[Rows, Any]] = []
        self._late: list[tuple[Rows, Rows, Slot]] = []
        for out, source, slot, readers in steps.loop.reads:
            values = run.get(source)
            if readers is not None and is_read_early(self._n_rows, len(values)):
                own = read(
                    values,
                    self._slots[slot],
                    run.slots[readers],
                )
                self._early.append((out, derived_if(self._there, own)))
            else:
                self._late.append((out, source, slot))

    def run(
        self,
        before: Any,
        layout: Packed,
    ) -> tuple[Any, list[Any]]:
        """The arena after the loop, and outputs of all rows."""
        steps = self._steps
        rows = [*self._slots.values()]
        rows += [values for _, values in self._early]
        every, constants = self._trace_body(self._n_rows, rows)
        constants = [derived_if(self._there, value) for value in constants]
        n_constants = len(constants)
        n_reads = len(self._read)
        reads = every.inputs[n_constants : n_constants + n_reads]
        own_rows = every.inputs[n_constants + n_reads :]
        known = dict(zip(every.inputs[:n_constants], constants, strict=True))
        known |= zip(own_rows, rows, strict=True)
        # What heavy operations make of rows alone is computed before the loop, for all rows at once.
        of_sizes = self._of_sizes(every, rows)
        early = every.early(own_rows, reads, of_sizes[min(of_sizes)])
        known |= products_of_tables(every, known, own_rows, early)
        known |= zip(
            early,
            every.compute(
                known,
                early,
            ),
            strict=True,
        )
        states = every.outputs[: len(steps.new)]
        _, used = every.needed(
            states,
            {*known, *reads},
        )
        of_states = set(used)
        groups = _group_variables(
            [v for v in known if v in of_states],
            set(every.inputs[:n_constants]),
        )
        loop = self._loop(
            every,
            of_sizes,
            groups,
            reads,
            before.shape[0],
        )
        values = []
        for group in groups:
            values.append([known[v] for v in group])
        moving, fixed, moving_rows, fixed_rows = values
        arena = loop(moving, moving_rows, before, fixed, fixed_rows)
        # What the body gives beside states is computed behind the loop, for all rows at once.
        own = layout.unpack(arena[before.shape[0] :])
        known |= zip(states, own, strict=True)
        for variable, (i, s) in zip(reads, self._read, strict=True):
            given = derived_if(self._there, taken(arena, loop.tables.reads[i]))
            known.setdefault(
                variable,
                layout.unpack(given)[s],
            )
        outputs = every.outputs[len(states) :]
        return arena, every.compute(known, outputs)

    def _of_sizes(
        self,
        every: TracedRows,
        rows: Sequence[Any],
    ) -> dict[int, TracedRows]:
        """The body for each number of rows of a step, and for all rows."""
        of_sizes = {}
        for size in sizes_of(self._run.slots[self._steps.host[0]]):
            of_sizes[size], _ = self._trace_body(size, rows)
            if len(of_sizes[size].inputs) != len(every.inputs):
                raise InvariantError(
                    "batch, loop",
                    f"the same constants for {self._n_rows} rows and for {size}",
                    "other ones",
                    "Report the model.",
                )
        of_sizes[self._n_rows] = every
        return of_sizes

    def _loop(
        self,
        every: TracedRows,
        of_sizes: dict[int, TracedRows],
        groups: Sequence[Sequence[Any]],
        reads: Sequence[Any],
        n_before: int,
    ) -> StepArrays:
        """The loop as a function of arrays."""
        steps = self._steps
        lanes, firsts, rounds, readers = (self._run.slots[slot] for slot in steps.host)
        sizes = sizes_of(lanes)
        parts = BodyParts(
            len(groups[0]),
            len(groups[1]),
            len(reads),
            len(groups[2]),
            len(groups[3]),
            len(steps.new),
        )
        at = [self._run.slots[slot][0] for _, slot in steps.recalls]
        return StepArrays(
            _level_body(every, of_sizes, groups, reads, parts),
            self._read,
            [each.aval for each in steps.new],
            n_before,
            self._n_rows,
            StepTables(sizes, firsts, rounds, at, readers),
        )

    def _trace_body(
        self,
        size: int,
        rows: Sequence[Any],
    ) -> tuple[TracedRows, Sequence[Any]]:
        """The body for so many rows: from constants, states that are read, and rows, to states and outputs."""
        steps = self._steps
        n_reads = len(self._read)
        n_slots = len(self._slots)

        def level(*args: Any) -> list[Any]:
            own = args[n_reads : n_reads + n_slots]
            each = self._run.inner(dict(zip(self._slots, own, strict=True)))
            each.put(self._read_rows, args[:n_reads])
            each.put([out for out, _ in self._early], args[n_reads + n_slots :])
            for out, source, slot in self._late:
                each.put(
                    [out],
                    [
                        taken(
                            self._run.get(source),
                            each.slots[slot],
                        )
                    ],
                )
            steps.loop.block.run(each)
            results = [as_typed(each.get(x), x.aval) for x in steps.new]
            return [*results, *(each.get(x) for x in steps.outputs)]

        kinds = []
        for x in self._read_rows:
            kinds.append(
                jax.ShapeDtypeStruct(
                    (size, *x.aval.shape),
                    x.aval.dtype,
                )
            )
        for x in rows:
            kinds.append(
                jax.ShapeDtypeStruct(
                    (size, *x.shape[1:]),
                    x.dtype,
                )
            )
        return traced(level, kinds, size)


def _group_variables(used: Sequence[Any], constants: set[Any]) -> list[list[Any]]:
    """Variables in groups: constants with and without a gradient, rows with and without one."""
    groups: list[list[Any]] = [[], [], [], []]
    for variable in used:
        is_row = variable not in constants
        is_fixed = not is_inexact(variable.aval.dtype)
        groups[2 * is_row + is_fixed].append(variable)
    return groups


def _level_body(
    every: TracedRows,
    of_sizes: dict[int, TracedRows],
    groups: Sequence[Sequence[Any]],
    reads: Sequence[Any],
    parts: BodyParts,
) -> LevelBody:
    """Makes the body of a loop's steps, for each number of rows."""
    places = every.places()
    moving, fixed, rows, fixed_rows = groups
    order = [places[v] for v in [*moving, *fixed, *reads, *rows, *fixed_rows]]
    bodies = {}
    types = {}
    for size, own in of_sizes.items():
        inputs = [own.at(place) for place in order]
        types[size] = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in inputs]
        bodies[size] = _states_of(own, inputs, parts.n_states)
    return LevelBody(bodies, parts, types)


def _states_of(
    own: TracedRows,
    inputs: Sequence[Any],
    n_states: int,
) -> Callable[..., list[Any]]:
    """Makes a function that computes a body's states from the inputs of the body."""

    def states(*args: Any) -> list[Any]:
        known = dict(zip(inputs, args, strict=True))
        return own.compute(known, own.outputs[:n_states])

    return states
