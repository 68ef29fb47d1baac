"""Loops in steps of a few row counts: of rows each of which waits for some others. States lie in one array, each step's one after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jax.extend.core import Literal

from ampjax.frontend.batches.inverse_reads import inverse
from ampjax.frontend.batches.programs_of_rows import Room, Rows, Slot, View
from ampjax.frontend.batches.room_bodies import Body, is_static
from ampjax.frontend.batches.row_lowering import Loop, Recall, RowLowering, Value
from ampjax.frontend.batches.row_tables import RowTables, by_batch
from ampjax.frontend.batches.step_bodies import StepLoop
from ampjax.frontend.batches.step_frames import Before, StepFrame
from ampjax.frontend.combinators.sequences import TAKE
from ampjax.frontend.combinators.tracing import COMBINATOR, Traced
from ampjax.frontend.deduction.equations import calls
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.row_origins import Origin
from ampjax.frontend.draft.values import Elements
from ampjax.frontend.loops.loop_forms import form_of_loops
from ampjax.jaxprs.primitives import is_inexact, variables

START = 2_000_000
"""Operations in whose time a step of a loop starts: some 20 operations of XLA, a microsecond or two each."""

OF_ELEMENT = 16
"""Operations in whose time a number is computed one by one."""


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
      given: What the function is given: of all its variables, or of those that are no states.
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
        and _is_row_by_row(function, given)
    )


def _is_row_by_row(
    function: Traced,
    given: Sequence[Value],
) -> bool:
    """Whether a function is computed row by row: the elements of sequences that are read have numbers that follow from the example."""
    jaxpr = function.jaxpr
    if len(given) == len(function.variables):
        values = dict(zip(function.variables, given, strict=True))
    else:
        values = dict[Any, Value]()
    sequences = {v for v, value in values.items() if isinstance(value, Elements)}
    if not sequences and any(isinstance(value, Elements) for value in given):
        return False
    known = {v for v, value in values.items() if is_static(value)}
    reads = set[int]()
    for equation in jaxpr.eqns:
        read = variables(equation.invars)
        if _reads_known_elements(equation, known, values):
            reads.add(id(equation.params["call"]))
        elif not sequences.isdisjoint(read):
            return False
        elif equation.primitive is not COMBINATOR and read <= known:
            known.update(equation.outvars)
    if not sequences.isdisjoint(variables(jaxpr.outvars)):
        return False
    return all(call.kind.row_by_row or id(call) in reads for call in calls(jaxpr))


def _reads_known_elements(
    equation: Any,
    known: set[Any],
    values: Mapping[Any, Value],
) -> bool:
    """Whether an equation takes an element of each of some sequences of arrays, by a number that follows from the example."""
    if equation.primitive is not COMBINATOR or equation.params["call"].kind != TAKE:
        return False
    number, *xs = equation.invars
    if not isinstance(number, Literal) and number not in known:
        return False
    found = [None if isinstance(x, Literal) else values.get(x) for x in xs]
    return all(isinstance(x, Elements) and not isinstance(x.element, Elements) for x in found)


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
    # the body of a step: from the states that it reads to the states of its rows
    inside_room = low.room(frame, space)
    loop = Loop(frame, [Rows(kind, inside_room) for kind in types])
    loop.block.outer = body.block
    low.loops[frame] = loop
    new, outputs, seen = build(
        Body(low, loop.block, inside_room),
        loop,
    )
    # the arrays of the batch: where the states lie that a step reads, the steps, where the wanted states lie
    recalls = []
    for recall in loop.recalls.values():
        slot = _recall_slot(low, frame, space, recall)
        recalls.append((recall, slot))
    host = _step_slots(low, frame, space, [*loop.recalls.values()])
    result = _wanted_slots(low, frame, wanted)
    # all steps are one operation of the block around the loop
    room, _, _ = wanted
    states = [Rows(kind, room) for kind in types]
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
    body.block.add([*states, *seen], steps)
    return [View(rows, room.space) for rows in states]


def _step_slots(
    low: RowLowering,
    frame: StepFrame,
    space: IndexSpace,
    recalls: Sequence[Recall],
) -> tuple[Slot, Slot, Slot, Slot]:
    """The arrays of the batch that say how steps go on: their rows, their sizes, their number, and who reads each state."""

    def readers(tables: RowTables) -> np.ndarray:
        reads = []
        for recall in recalls:
            at = _find_states(tables, frame, space, recall)
            reads.append(by_batch(at))
        return frame.readers(tables, reads)

    root = frame.outer
    assert root is not None
    return (
        low.slot(("lanes", frame), root, frame.lanes),
        low.slot(("steps", frame), root, frame.steps),
        low.slot(("rounds", frame), root, frame.rounds),
        low.slot(("readers", frame), root, readers),
    )


def _wanted_slots(
    low: RowLowering,
    frame: StepFrame,
    wanted: tuple[Room, Origin, Origin | None],
) -> tuple[Slot, Slot]:
    """The arrays of the batch that say where the wanted states lie, and which row wants each state."""
    room, row, at_start = wanted
    root = frame.outer
    assert root is not None

    def states(tables: RowTables) -> np.ndarray:
        return tables.once(
            (frame, room.space, "wanted"),
            lambda: frame.read(tables, room.place, row, at_start),
        )

    def wanted_by(tables: RowTables) -> np.ndarray:
        is_there = tables.is_there(*room.place)
        at = np.where(is_there, states(tables), -1)
        return inverse(
            at,
            frame.n_states(tables),
            tables,
            (frame, "wanted by"),
        )

    return (
        low.slot(
            ("states", frame, room.space),
            root,
            lambda tables: _at_least_0(states(tables)),
        ),
        low.slot(
            ("wanted by", frame, room.space),
            root,
            wanted_by,
        ),
    )


def _recall_slot(
    low: RowLowering,
    frame: StepFrame,
    space: IndexSpace,
    recall: Recall,
) -> Slot:
    """The array of the batch that says where the states lie that a body reads."""
    return low.slot(
        ("recall", recall),
        frame,
        lambda tables: _at_least_0(_find_states(tables, frame, space, recall)),
    )


def _find_states(
    tables: RowTables,
    frame: StepFrame,
    space: IndexSpace,
    recall: Recall,
) -> np.ndarray:
    """Finds where the states lie that each row reads; -1 for a row that reads none."""
    return tables.once(
        (recall, "lies"),
        lambda: frame.read(
            tables,
            (frame, space),
            recall.awaited,
            recall.at_start,
        ),
    )


def _at_least_0(at: np.ndarray) -> np.ndarray:
    """Numbers of rows, any where there is none."""
    return np.maximum(
        at,
        0,
    ).astype(np.int32)


def cost_of_start(function: Traced) -> float:
    """Estimates the cost of starting a step, in rows of a function that could be computed meanwhile.

    Args:
      function: What is computed of a row.
    """
    work = 0
    for equation in function.jaxpr.eqns:
        size = 0
        for result in equation.outvars:
            size += _known_size(result.aval.shape)
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            work += 2 * size * _known_size([shape[axis] for axis in contracted])
        else:
            work += OF_ELEMENT * size
    return min(max(START / max(work, 1), 1.0), 64.0)


def _known_size(shape: Sequence[Any]) -> int:
    """The product of the sizes that are numbers, each sequence counted as one element."""
    return math.prod(n for n in shape if isinstance(n, int))


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
    frame = StepFrame(
        inner.room.frame,
        space,
        levels,
        own,
        there,
        start,
    )

    def build(inside: Body, loop: Loop) -> Any:
        results = step(inside, [View(x, space) for x in loop.states or ()])
        new = []
        for value, kind in zip(results, types, strict=True):
            new.append(inside.rows(value, kind))
        return new, [], []

    found: list[Value] = [
        *step_loop(
            inner,
            frame,
            space,
            types,
            rows,
            build,
            (inner.room, own, None),
        )
    ]
    return [Elements(space, view) for view in found]
