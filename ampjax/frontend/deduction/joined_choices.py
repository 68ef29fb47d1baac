"""Choices that are made several times between the same functions of the same values, such as the experts of a mixture: one choice of several numbers.

Written out, each of them would read its number by itself, and each function would be a node at every place, with fewer rows to a dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ampjax.frontend.combinators.tracing import COMBINATOR, Call
from ampjax.frontend.deduction.equations import Atom, Equation, Known, Name
from ampjax.jaxprs.content import content


@dataclass(frozen=True, eq=False)
class _Joined:
    """The equation of the joined choice, in the place of one of JAX's."""

    params: dict[str, Call]
    primitive: Any = COMBINATOR


def joined(equations: Sequence[Equation], is_computed: Callable[[Atom], bool]) -> list[Equation]:
    """The equations, with one choice for all that differ in nothing but what chooses.

    Args:
      equations: The equations, in order.
      is_computed: Whether a value is known only when the model runs: choices by the instance's values stay as they are, and so do those
        whose functions tell metrics or outputs.

    Returns:
      The equations, in order; a joined choice comes in the place of its last one.
    """
    left = list(equations)
    for equation in equations:
        if equation not in left or not _can_join(equation, is_computed):
            continue
        alike = [other for other in left if _can_join(other, is_computed) and _is_alike(equation, other)]
        group = _independent(alike, left)
        if len(group) > 1:
            left = _in_one_place(left, group)
    return left


def _can_join(equation: Equation, is_computed: Callable[[Atom], bool]) -> bool:
    call = equation.call
    if call is None or call.kind != "switch" or equation.tells:
        return False
    return is_computed(equation.inputs[sum(call.n_closed)])


def _is_alike(one: Equation, other: Equation) -> bool:
    """Whether two choices are between the same functions of the same values."""
    first, second = one.call, other.call
    assert first is not None and second is not None
    at = sum(first.n_closed)
    if first.n_closed != second.n_closed or len(one.inputs) != len(other.inputs):
        return False
    number, another = one.inputs[at], other.inputs[at]
    if not isinstance(number, Name) or not isinstance(another, Name) or number.aval.dtype != another.aval.dtype:
        return False
    pairs = [pair for i, pair in enumerate(zip(one.inputs, other.inputs, strict=True)) if i != at]
    return all(_is_same(*pair) for pair in pairs) and [content(f.jaxpr) for f in first.functions] == [
        content(f.jaxpr) for f in second.functions
    ]


def _is_same(one: Atom, other: Atom) -> bool:
    if isinstance(one, Known) and isinstance(other, Known):
        return one.value is other.value or np.array_equal(one.value, other.value)
    return one is other


def _independent(group: Sequence[Equation], equations: Sequence[Equation]) -> list[Equation]:
    """Those of some equations that need nothing of one another, with the first one."""
    found = [group[0]]
    for equation in group[1:]:
        if equation not in _after(found, equations):
            found.append(equation)
    return found


def _after(group: Sequence[Equation], equations: Sequence[Equation]) -> list[Equation]:
    """The equations that need what some give."""
    made = {name for equation in group for name in equation.outputs}
    found = []
    for equation in equations:
        if any(atom in made for atom in equation.inputs):
            made |= set(equation.outputs)
            found.append(equation)
    return found


def _in_one_place(equations: Sequence[Equation], group: Sequence[Equation]) -> list[Equation]:
    """The equations with one choice for a group; what needs its results comes after it."""
    later, last = _after(group, equations), max(map(equations.index, group))
    before = [each for each in equations[:last] if each not in later and each not in group]
    return [*before, _as_one(group), *(each for each in equations if each not in before and each not in group)]


def _as_one(group: Sequence[Equation]) -> Equation:
    """Choices as one: its operands are what the functions close over, the numbers that choose, and the functions' arguments."""
    first = group[0]
    call = first.call
    assert call is not None
    at = sum(call.n_closed)
    inputs = (*first.inputs[:at], *(each.inputs[at] for each in group), *first.inputs[at + 1 :])
    results = [kind for each in group if each.call is not None for kind in each.call.results]
    options = {**call.options, "n": len(group)}
    whole = replace(call, kind="switches", results=results, options=options)
    return replace(
        first, source=_Joined({"call": whole}), inputs=inputs, outputs=tuple(n for each in group for n in each.outputs)
    )


def numbers_of(equation: Equation) -> Sequence[Atom]:
    """What chooses in a joined choice; nothing for any other equation.

    Args:
      equation: The equation.
    """
    call = equation.call
    if call is None or call.kind != "switches":
        return ()
    at = sum(call.n_closed)
    return equation.inputs[at : at + call.options["n"]]
