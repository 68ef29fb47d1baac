"""The part of a loop's body that waits for no carry: products and reads of elements, which are computed before the loop for all of them at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.extend.core import Literal

from ampjax.frontend.batches.room_bodies import is_sequence
from ampjax.frontend.combinators.tracing import COMBINATOR, Traced
from ampjax.frontend.deduction.equations import calls
from ampjax.frontend.loops.traced_rows import HEAVY

READS = ("gather", "dynamic_slice")
"""Operations whose transpose adds to a whole table: at each level of a loop, if they are in the loop."""


@dataclass(frozen=True)
class EarlyPart:
    """The function of a loop in two parts.

    Args:
      early: From what is closed over and the elements to what `late` needs of it.
      late: From what is closed over, the carry, the elements and what `early` gives to what the function gives.
    """

    early: Traced
    late: Traced


def early_part(step: Traced, n_carry: int) -> EarlyPart | None:
    """Splits the function of a loop; None where nothing is gained, or where an order must be kept, of random numbers and reports.

    Args:
      step: From what is closed over, the carry and the elements to the next carry and what the loop gives.
      n_carry: How many arrays are carried.
    """
    jaxpr = step.jaxpr
    if any(call.kind in ("stochastic", "metric", "output") for call in calls(jaxpr)):
        return None
    of_carry = _reached(jaxpr, jaxpr.invars[:n_carry])
    of_elements = _reached(jaxpr, jaxpr.invars[n_carry:]) - of_carry
    roots = []
    for equation in jaxpr.eqns:
        if of_elements.issuperset(equation.outvars) and _is_better_early(equation):
            roots += equation.outvars
    early = _needed(jaxpr, roots, set())
    made = {v for equation in early for v in equation.outvars} & of_elements
    late = _needed(jaxpr, jaxpr.outvars, made)
    wanted = {*_variables(jaxpr.outvars)}
    for equation in late:
        wanted.update(_variables(equation.invars))
    crossing = [v for equation in early for v in equation.outvars if v in made & wanted]
    if not crossing or any(is_sequence(v.aval) for v in crossing):
        return None
    names = jaxpr.debug_info.with_unknown_names()
    first = jaxpr.replace(
        invars=jaxpr.invars[n_carry:],
        eqns=early,
        outvars=crossing,
        debug_info=names,
    )
    second = jaxpr.replace(
        invars=[*jaxpr.invars, *crossing],
        eqns=late,
        debug_info=names,
    )
    return EarlyPart(
        replace(step, jaxpr=first),
        replace(step, jaxpr=second),
    )


def _reached(jaxpr: Any, given: Sequence[Any]) -> set[Any]:
    """The variables that depend on some of a function's variables, and these."""
    found = {*given}
    for equation in jaxpr.eqns:
        if not found.isdisjoint(_variables(equation.invars)):
            found.update(equation.outvars)
    return found


def _needed(jaxpr: Any, wanted: Sequence[Any], given: set[Any]) -> list[Any]:
    """The equations that some variables need beside what is given, in order."""
    alive = {*_variables(wanted)} - given
    found = []
    for equation in reversed(jaxpr.eqns):
        if not alive.isdisjoint(equation.outvars):
            found.append(equation)
            alive |= {*_variables(equation.invars)} - given
    return found[::-1]


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [v for v in atoms if not isinstance(v, Literal)]


def _is_better_early(equation: Any) -> bool:
    """Tells whether an equation is better computed for all elements at once: a product, a read of a table, or a combinator."""
    name = equation.primitive.name
    return equation.primitive is COMBINATOR or name in HEAVY or name in READS
