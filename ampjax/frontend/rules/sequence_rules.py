"""The rules of combinators over sequences: loops, copies for each element, groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.combinators.sequences import COUNT, LENGTH, NUMBERS, SCAN
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.deduction.lowering import MESSAGE_RULES, Lowering
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, NumberColumn, Region
from ampjax.frontend.draft.values import Computed, Constant, Elements, Static, Value, Wanted
from ampjax.frontend.rules.carry_loops import CarryLoop, group_carry
from ampjax.frontend.rules.first_rounds import begin_apart, first_round
from ampjax.frontend.rules.foresight import Foresight


@MESSAGE_RULES.of(SCAN)
def scan(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """A loop: Phi, the body, and a Cond that leaves after the last element. Without a carry only the body, one message for each element."""
    (step,) = call.functions
    (n_closed,) = call.n_closed
    k = call.options["n_carry"]
    closed = operands[:n_closed]
    init = operands[n_closed : n_closed + k]
    xs = operands[n_closed + k :]
    space = elements_space(xs, call.line)
    inner = region.within(space)
    name = space.dimension
    if space.is_ragged:
        used = step.used
        _check_nodes(
            [value for value, v in zip(closed, step.variables, strict=False) if v in used],
            k,
            call,
        )
    (closed,) = low.closures(
        call,
        operands,
        region,
        [space],
        name,
    )
    rows = [x.element for x in xs if isinstance(x, Elements)]
    if not k:
        needs = Wanted(set(wanted.values), wanted.losses, wanted.groups)
        results = low.run(step, [*closed, *rows], inner, needs)
        return _of_elements(low, results, inner, call)
    # The first round is apart where the carry begins with constants, with which the body needs no parameters.
    if (first := first_round(step, closed, init, rows, region, wanted)) is not None:
        return begin_apart(
            low,
            call,
            [*closed, *init, *rows],
            first,
            region,
            space,
            wanted,
        )
    return _in_rounds(low, call, closed, init, rows, region, inner, wanted)


def _in_rounds(
    low: Lowering,
    call: Call,
    closed: Sequence[Value],
    init: Sequence[Value],
    rows: Sequence[Value],
    region: Region,
    inner: Region,
    wanted: Wanted,
) -> list[Any]:
    """A loop with a carry.

    Args:
      low: The lowering.
      call: The loop.
      closed: What the body closes over, in the space of the elements.
      init: The carry at the beginning.
      rows: What each round gets of the sequences.
      region: Where the loop is.
      inner: Where the body is.
      wanted: What of the results is needed.
    """
    (step,) = call.functions
    k = len(init)
    space = inner.space
    # Each part of the carry goes round in a loop of its own: Phi before the body.
    types = [variable.aval for variable in step.jaxpr.outvars[:k]]
    ahead = Foresight(region.space, space, call.options["reverse"])
    loops = []
    for group in group_carry(init, types):
        loops.append(CarryLoop(low, group, region, space, call, ahead))
    carry: dict[int, Value] = {}
    for loop in loops:
        carry |= loop.carry
    # The body. Results that go on in one wire are computed by one node, if they can be; their order stays.
    packed = [loop.own.members for loop in loops if loop.own.nodes is None]
    values = set(range(k)) | set(wanted.values)
    needs = Wanted(values, wanted.losses, packed)
    carried = [carry[i] for i in range(k)]
    results = low.run(step, [*closed, *carried, *rows], inner, needs)
    # A Cond behind the body closes each loop, and lets the last carry out.
    final: dict[int, Value] = {}
    for loop in loops:
        last = loop.close(results)
        if any(i in wanted.values for i in loop.own.members):
            final |= last
    out = _of_elements(low, results, inner, call)
    return [*(final.get(i) for i in range(k)), *out[k:]]


def _of_elements(
    low: Lowering,
    results: Sequence[Any],
    inner: Region,
    call: Call,
) -> list[Any]:
    """The results of a loop's body as sequences; None where no result is wanted."""
    (step,) = call.functions
    sequences = []
    for value, variable in zip(results, step.jaxpr.outvars, strict=True):
        sequences.append(as_elements(low, value, variable, inner, call))
    return sequences


@MESSAGE_RULES.of(COUNT)
def count(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """The numbers of so many elements: a space of its own."""
    n = operands[0]
    dimension = call.options["dimension"]
    if not isinstance(n, Static | Constant):
        fix = "Use `amp.while_loop` with `amp.read`, and say how many rounds there can be."
        raise GraphError(
            call.line,
            "a number that follows from the instance",
            "one that depends on parameters",
            fix,
        )
    sizes = low.column(
        n,
        region,
        jax.ShapeDtypeStruct((), np.int32),
    )
    space = region.space.along(dimension, sizes)
    low.lengths[dimension] = sizes
    return [_numbers_in(space)]


@MESSAGE_RULES.of(NUMBERS)
def numbers(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """The numbers of the elements of a sequence, in the space of its elements."""
    return [_numbers_in(elements_space(operands, call.line))]


def _numbers_in(space: IndexSpace) -> Elements:
    return Elements(space, Static(NumberColumn(space)))


@MESSAGE_RULES.of(LENGTH)
def length(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """Counts the elements of each row: known from the instance."""
    (xs,) = operands
    if isinstance(xs, Elements):
        sizes = xs.space.sizes
    else:
        sizes = low.length_of(call.options["dimension"], call.line)
    if sizes is None:
        raise GraphError(
            call.line,
            "a length that follows from the instance",
            "one that the run tells",
            "Carry a counter through the loop, and add 1 in each round.",
        )
    return [
        Static(
            Column(
                sizes.space,
                lambda data: np.maximum(sizes.of(data), 0).astype(np.int32),
            )
        )
    ]


def elements_space(xs: Sequence[Value], line: str) -> IndexSpace:
    """The space of the elements of sequences that are gone through together.

    Raises:
      GraphError: If one is no sequence, or they are of different spaces.
    """
    spaces = [x.space if isinstance(x, Elements) else None for x in xs]
    if spaces[0] is None or any(space is not spaces[0] for space in spaces):
        fix = "Go through the instance's sequences, or what `map`, `scan` or `fold_tree` gave."
        raise GraphError(
            line, "sequences with the same elements", f"{', '.join(map(str, spaces))}", fix
        )
    return spaces[0]


def as_elements(
    low: Lowering,
    value: Any,
    variable: Any,
    inner: Region,
    call: Call,
) -> Any:
    """Makes the sequence of the body's results for each element; None where no result is wanted."""
    if value is None:
        return None
    if not isinstance(value, Static | Computed | Elements):
        value = low.pack_values([value], [variable.aval], inner, inner.space.dimension, call.line)[
            0
        ]
    return Elements(inner.space, value)


def _check_nodes(
    closed: Sequence[Value],
    n_carry: int,
    call: Call,
) -> None:
    """Refuses computations for each node of a graph that run one after the other, or use a sequence from outside."""
    if n_carry:
        fix = "Use `amp.map`, `amp.propagate`, `amp.sum`; nodes have no order unless an edge leads from each to the next."
        raise GraphError(
            call.line,
            "a sequence whose elements come one after the other",
            "the nodes of a graph",
            fix,
        )
    if any(isinstance(value, Elements) for value in closed):
        fix = "Reduce or take from it outside; a sequence over the same nodes is an argument of the `map`."
        raise GraphError(
            call.line, "arrays beside a node of a graph", "a whole sequence from outside", fix
        )
