"""Loops in steps of a few row counts: of rows each of which waits for some others. States lie in one array, each step's one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from ampjax.frontend.batches.inverse_reads import inverse, read
from ampjax.frontend.batches.level_bodies import LevelBody, Parts, traced
from ampjax.frontend.batches.loop_forms import form_of_loops
from ampjax.frontend.batches.programs_of_rows import Room, Rows, Run, Slot, View, as_typed, taken
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import Loop, Recall, RowLowering, Value
from ampjax.frontend.batches.row_tables import Origin, RowTables
from ampjax.frontend.batches.step_arrays import Packed, StepArrays, StepTables
from ampjax.frontend.batches.step_frames import Before, StepFrame, sizes_of
from ampjax.frontend.batches.traced_rows import TracedRows
from ampjax.frontend.combinators.tracing import Traced
from ampjax.frontend.deduction.equations import calls
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.values import Elements
from ampjax.jaxprs.primitives import is_inexact

START = 2_000_000
"""Operations in whose time a step of a loop starts: some 20 operations of XLA, a microsecond or two each."""

OF_ELEMENT = 16
"""Operations in whose time a number is computed one by one."""

ROW_BY_ROW = ("recall", "stochastic", "read", "length", "node")
"""Combinators that are computed row by row."""


def in_steps(
    body: Body,
    function: Traced,
    given: Sequence[Value],
    types: Sequence[Any],
) -> bool:
    """Whether a loop can go on in steps: in no other loop, its body computed row by row, of states of one dtype.

    Args:
      body: Where the loop is.
      function: What is computed of a row.
      given: What the function is given beside states.
      types: The types of states.
    """
    if form_of_loops() != "steps" or not types:
        return False
    room = body.room
    dtypes = {kind.dtype for kind in types}
    return (
        room.mask is None
        and room.frame is body.low.root
        and len(dtypes) == 1
        and is_inexact(types[0].dtype)
        and not any(isinstance(value, Elements) for value in given)
        and all(call.kind in ROW_BY_ROW for call in calls(function.jaxpr))
    )


@dataclass(frozen=True, eq=False)
class StepLoop:
    """A loop in steps, when it runs.

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
            arena, outputs = _Body(self, run).run(arena, layout)
        at, readers = (run.slots[slot] for slot in self.result)
        found = layout.unpack(read(arena, at, readers))
        return [*found, *outputs]

    def _before(self, run: Run, layout: Packed) -> Any:
        """The states before, `[states, numbers]`."""
        kinds = [rows.aval for rows in self.new]
        if not self.before:
            return jnp.zeros((0, layout.width), kinds[0].dtype)
        values = []
        for rows, kind in zip(self.before, kinds, strict=True):
            values.append(as_typed(run.get(rows), kind))
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
        self._n_rows = run.slots[steps.there].size
        self._early: list[tuple[Rows, Any]] = []
        self._late: list[tuple[Rows, Rows, Slot]] = []
        for out, source, slot, readers in steps.loop.reads:
            values = run.get(source)
            if readers is not None and self._n_rows <= 2 * len(values):
                own = read(values, self._slots[slot], run.slots[readers])
                self._early.append((out, own))
            else:
                self._late.append((out, source, slot))

    def run(self, before: Any, layout: Packed) -> tuple[Any, list[Any]]:
        """The arena after the loop, and outputs of all rows."""
        steps = self._steps
        n_reads = len(self._read)
        lanes, firsts, rounds, readers = (self._run.slots[slot] for slot in steps.host)
        sizes = sizes_of(lanes)
        rows = [*self._slots.values(), *(values for _, values in self._early)]
        every, constants = self._traced(self._n_rows, rows)
        of_sizes = {size: self._traced(size, rows)[0] for size in sizes}
        of_sizes[self._n_rows] = every
        n_constants = len(constants)
        own_rows = every.inputs[n_constants + n_reads :]
        reads = every.inputs[n_constants : n_constants + n_reads]
        known = dict(
            zip(
                [*every.inputs[:n_constants], *own_rows],
                [*constants, *rows],
                strict=True,
            )
        )
        early = every.early(own_rows, reads)
        known |= zip(early, every.compute(known, early), strict=True)
        states = every.outputs[: len(steps.new)]
        _, used = every.needed(states, {*known, *reads})
        used = [v for v in known if v in used]  # in order
        groups = _grouped(used, set(every.inputs[:n_constants]))
        parts = Parts(
            len(groups[0]), len(groups[1]), n_reads, len(groups[2]), len(groups[3]), len(states)
        )
        body = _level_body(every, of_sizes, groups, reads, parts)
        tables = StepTables(
            sizes,
            firsts,
            rounds,
            [self._run.slots[slot][0] for _, slot in steps.recalls],
            readers,
        )
        loop = StepArrays(
            body,
            self._read,
            [each.aval for each in steps.new],
            before.shape[0],
            self._n_rows,
            tables,
        )
        moving, fixed, moving_rows, fixed_rows = ([known[v] for v in group] for group in groups)
        arena = loop(moving, moving_rows, before, fixed, fixed_rows)
        if not steps.outputs:
            return arena, []
        own = layout.unpack(arena[before.shape[0] :])
        for variable, value in zip(states, own, strict=True):
            if not isinstance(variable, Literal):
                known.setdefault(variable, value)
        for variable, (i, s) in zip(reads, self._read, strict=True):
            known.setdefault(variable, layout.unpack(taken(arena, tables.reads[i]))[s])
        return arena, every.compute(known, every.outputs[len(states) :])

    def _traced(self, size: int, rows: Sequence[Any]) -> tuple[TracedRows, Sequence[Any]]:
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
                each.put([out], [taken(self._run.get(source), each.slots[slot])])
            steps.loop.block.run(each)
            results = [as_typed(each.get(x), x.aval) for x in steps.new]
            return [*results, *(each.get(x) for x in steps.outputs)]

        kinds = []
        for x in self._read_rows:
            kinds.append(jax.ShapeDtypeStruct((size, *x.aval.shape), x.aval.dtype))
        for x in rows:
            kinds.append(jax.ShapeDtypeStruct((size, *x.shape[1:]), x.dtype))
        return traced(level, kinds, size)


def _grouped(used: Sequence[Any], constants: set[Any]) -> list[list[Any]]:
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
    parts: Parts,
) -> LevelBody:
    """What a loop computes in its steps, for each number of rows."""
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
    """A body's states as a function of what they need."""

    def states(*args: Any) -> list[Any]:
        known = dict(zip(inputs, args, strict=True))
        return own.compute(known, own.outputs[:n_states])

    return states


def step_loop(
    body: Body,
    frame: StepFrame,
    space: IndexSpace,
    types: Sequence[Any],
    before: Sequence[Rows],
    build: Callable[[Body, Loop], tuple[list[Rows], list[Rows], list[Rows]]],
    wanted: tuple[Room, Origin, Origin | None],
) -> list[View]:
    """Adds a loop in steps.

    Args:
      body: Where.
      frame: Its frame.
      space: The space whose rows it computes.
      types: The types of states.
      before: States before it.
      build: Adds the steps of a body to a block: to new states, to what else it gives, and what that is called behind the loop.
      wanted: The room that wants states, for each of its rows the row whose states they are, and where there is none, the row whose states before
        the loop they are.

    Returns:
      The states that are wanted.
    """
    low = body.low
    inside_room = low.room(frame, space)
    loop = Loop(frame, [Rows(kind, inside_room) for kind in types])
    loop.block.outer = body.block
    low.loops[frame] = loop
    new, outputs, seen = build(Body(low, loop.block, inside_room), loop)
    recalls = [
        (recall, _recall_slot(low, frame, space, recall)) for recall in loop.recalls.values()
    ]

    def readers(tables: RowTables) -> np.ndarray:
        reads = []
        for recall, _ in recalls:
            found = frame.read(tables, (frame, space), recall.awaited, recall.at_start)
            reads.append(found.ravel())
        return frame.readers(tables, reads)

    root = frame.outer
    assert root is not None
    host = (
        low.slot(("lanes", frame), root, frame.lanes),
        low.slot(("steps", frame), root, frame.steps),
        low.slot(("rounds", frame), root, frame.rounds),
        low.slot(("readers", frame), root, readers),
    )
    room, row, at_start = wanted

    def states(tables: RowTables) -> np.ndarray:
        return frame.read(tables, room.place, row, at_start)

    def wanted_by(tables: RowTables) -> np.ndarray:
        at = np.where(tables.is_there(*room.place), states(tables), -1)
        return inverse(at, frame.n_states(tables), tables, (frame, "wanted by"))

    result = (
        low.slot(("states", frame, room.space), root, lambda tables: _at_least_0(states(tables))),
        low.slot(("wanted by", frame, room.space), root, wanted_by),
    )
    found = [Rows(kind, room) for kind in types]
    steps = StepLoop(
        frame,
        loop,
        inside_room.there,
        host,
        recalls,
        before,
        new,
        outputs,
        result,
    )
    body.block.add([*found, *seen], steps)
    return [View(rows, room.space) for rows in found]


def _recall_slot(
    low: RowLowering,
    frame: StepFrame,
    space: IndexSpace,
    recall: Recall,
) -> Slot:
    """The array of the batch that says where the states lie that a body reads."""

    def make(tables: RowTables) -> np.ndarray:
        return _at_least_0(
            frame.read(
                tables,
                (frame, space),
                recall.awaited,
                recall.at_start,
            )
        )

    return low.slot(("recall", recall), frame, make)


def _at_least_0(at: np.ndarray) -> np.ndarray:
    """Numbers of rows, any where there is none."""
    return np.maximum(at, 0).astype(np.int32)


def cost_of_start(function: Traced) -> float:
    """What it costs to start a step, in rows of a function that could be computed meanwhile.

    Args:
      function: What is computed of a row.
    """
    work = 0
    for equation in function.jaxpr.eqns:
        size = sum(math.prod(v.aval.shape) for v in equation.outvars)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            work += 2 * size * math.prod(shape[axis] for axis in contracted)
        else:
            work += OF_ELEMENT * size
    return min(max(START / max(work, 1), 1.0), 64.0)


def waiting_steps(
    inner: Body,
    function: Traced,
    levels: Callable[[Any], np.ndarray],
    before: tuple[Sequence[Rows], Before | None],
    types: Sequence[Any],
    step: Callable[[Body, list[Value]], list[Value]],
) -> list[Value]:
    """Adds a loop over rows each of which waits for some others.

    Args:
      inner: The rows.
      function: What is computed of a row.
      levels: From the data to the level of each; below 0 where it is not computed.
      before: States that are there before it.
      types: The types of states.
      step: Adds a step's computation: from where and the states to the new ones.

    Returns:
      The states of all rows, as sequences.
    """
    space = inner.space
    own = lambda data: np.arange(space.n_rows(data))
    rows, there = before
    start = cost_of_start(function)
    frame = StepFrame(inner.room.frame, space, levels, own, there, start)

    def build(inside: Body, loop: Loop) -> Any:
        results = step(inside, [View(x, space) for x in loop.states or ()])
        new = []
        for value, kind in zip(results, types, strict=True):
            new.append(inside.rows(value, kind))
        return new, [], []

    found = step_loop(inner, frame, space, types, rows, build, (inner.room, own, None))
    return [Elements(space, view) for view in found]
