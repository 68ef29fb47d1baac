"""Calls of combinators that become one: choices that differ only in their number, and reductions of sequences of one length.

Written out, each choice of a mixture of experts would read its number by itself, and each function would be a node at every place, with fewer rows to
a dispatch. Each reduction would be a group of its own: a message for each element, a stage, and a message for the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ampjax.frontend.combinators.branches import SWITCH
from ampjax.frontend.combinators.tracing import COMBINATOR, Call, Combinator
from ampjax.frontend.deduction.equations import Atom, Equation, Known, Name
from ampjax.jaxprs.content import content

REDUCTIONS = Combinator("reductions")
"""Several reductions as one: the call names the reduction of each operand."""

SWITCHES = Combinator("switches")
"""Several choices as one, among the same functions of the same values."""


@dataclass(frozen=True, eq=False)
class _Joined:
    """The equation of a joined call, in the place of one of JAX's."""

    params: dict[str, Call]
    primitive: Any = COMBINATOR


def join_calls(
    equations: Sequence[Equation],
    is_computed: Callable[[Atom], bool],
) -> list[Equation]:
    """The equations, with one call for all that can be one.

    Args:
      equations: The equations, in order.
      is_computed: Whether a value is known only when the model runs: choices by the instance's values stay as they are, and so do those
        whose functions tell metrics or outputs.

    Returns:
      The equations, in order; a joined call comes in the place of its last one.
    """
    left = list(equations)
    for can, is_alike, as_one in (
        (lambda each: _can_join(each, is_computed), _is_alike, _as_one_choice),
        (_is_reduction, _is_of_same_length, _as_one_reduction),
    ):
        for equation in equations:
            if equation not in left or not can(equation):
                continue
            alike = [other for other in left if can(other) and is_alike(equation, other)]
            group = _independent(alike, left)
            if len(group) > 1:
                left = _in_one_place(left, group, as_one(group))
    return left


def _is_reduction(equation: Equation) -> bool:
    return equation.call is not None and equation.call.kind.reduces


def _is_of_same_length(one: Equation, other: Equation) -> bool:
    """Tells whether two reductions are of sequences of one length."""
    lengths = []
    for each in (one, other):
        for atom in each.inputs:
            if isinstance(atom, Name):
                lengths.append(atom.aval.shape[0])
    return len(lengths) == len(one.inputs) + len(other.inputs) and all(
        n == lengths[0] for n in lengths
    )


def _as_one_reduction(group: Sequence[Equation]) -> Equation:
    """Joins reductions to one: the call names the kind of reduction for each operand."""
    calls = [each.call for each in group if each.call is not None]
    kinds: list[Combinator] = []
    for call, each in zip(calls, group, strict=True):
        for _ in each.inputs:
            kinds.append(call.kind)
    whole = replace(
        calls[0],
        kind=REDUCTIONS,
        results=[kind for call in calls for kind in call.results],
        options={"kinds": kinds, "word": calls[0].kind.name},
    )
    return replace(
        group[0],
        source=_Joined({"call": whole}),
        inputs=tuple(atom for each in group for atom in each.inputs),
        outputs=tuple(name for each in group for name in each.outputs),
    )


def _can_join(
    equation: Equation,
    is_computed: Callable[[Atom], bool],
) -> bool:
    call = equation.call
    if call is None or call.kind != SWITCH or equation.tells:
        return False
    return is_computed(equation.inputs[sum(call.n_closed)])


def _is_alike(one: Equation, other: Equation) -> bool:
    """Tells whether two choices are between the same functions of the same values."""
    first = one.call
    second = other.call
    assert first is not None and second is not None
    at = sum(first.n_closed)
    if first.n_closed != second.n_closed or len(one.inputs) != len(other.inputs):
        return False
    number = one.inputs[at]
    another = other.inputs[at]
    if (
        not isinstance(number, Name)
        or not isinstance(another, Name)
        or number.aval.dtype != another.aval.dtype
    ):
        return False
    pairs = []
    for i, pair in enumerate(zip(one.inputs, other.inputs, strict=True)):
        if i != at:
            pairs.append(pair)
    return all(_is_same(*pair) for pair in pairs) and [
        content(f.content()) for f in first.functions
    ] == [content(f.content()) for f in second.functions]


def _is_same(one: Atom, other: Atom) -> bool:
    if isinstance(one, Known) and isinstance(other, Known):
        return one.value is other.value or np.array_equal(one.value, other.value)
    return one is other


def _independent(
    group: Sequence[Equation],
    equations: Sequence[Equation],
) -> list[Equation]:
    """Selects equations that are independent of one another, beginning with the first."""
    independent = [group[0]]
    for equation in group[1:]:
        if equation not in _find_readers(independent, equations):
            independent.append(equation)
    return independent


def _find_readers(
    group: Sequence[Equation],
    equations: Sequence[Equation],
) -> list[Equation]:
    """Finds the equations that need the results of some equations."""
    names = set()
    for equation in group:
        for name in equation.outputs:
            names.add(name)
    readers = []
    for equation in equations:
        if any(atom in names for atom in equation.inputs):
            names |= set(equation.outputs)
            readers.append(equation)
    return readers


def _in_one_place(
    equations: Sequence[Equation], group: Sequence[Equation], one: Equation
) -> list[Equation]:
    """Replaces a group of equations by one call; equations that need its results follow after it."""
    later = _find_readers(group, equations)
    last = max(map(equations.index, group))
    before = []
    for each in equations[:last]:
        if each not in later and each not in group:
            before.append(each)
    return [
        *before,
        one,
        *(each for each in equations if each not in before and each not in group),
    ]


def _as_one_choice(group: Sequence[Equation]) -> Equation:
    """Joins choices to one: its operands are the closed-over values, the numbers that choose, and the functions' arguments."""
    first = group[0]
    call = first.call
    assert call is not None
    at = sum(call.n_closed)
    inputs = (
        *first.inputs[:at],
        *(each.inputs[at] for each in group),
        *first.inputs[at + 1 :],
    )
    results = []
    for each in group:
        if each.call is not None:
            for kind in each.call.results:
                results.append(kind)
    places = [each.call.place for each in group if each.call is not None]
    options = {**call.options, "n": len(group), "places": places}
    whole = replace(call, kind=SWITCHES, results=results, options=options)
    return replace(
        first,
        source=_Joined({"call": whole}),
        inputs=inputs,
        outputs=tuple(n for each in group for n in each.outputs),
    )


def numbers_of(equation: Equation) -> Sequence[Atom]:
    """Lists the numbers that choose in a joined choice; none for any other equation."""
    call = equation.call
    if call is None or call.kind != SWITCHES:
        return ()
    at = sum(call.n_closed)
    return equation.inputs[at : at + call.options["n"]]
