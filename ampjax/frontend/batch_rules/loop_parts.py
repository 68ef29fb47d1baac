"""Loop fission: what of a loop's body waits for no carry is computed before the loop, and what no carry waits for behind it, for all elements at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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


@dataclass(frozen=True)
class PartBehind:
    """The function of a loop in two parts.

    Args:
      carried: From what is closed over, the carry and the elements to the next carry, then to what `behind` needs of the loop.
      behind: From what is closed over, what it needs of the loop and the elements to what the loop gives for each element.
    """

    carried: Traced
    behind: Traced


def early_part(step: Traced, n_carry: int) -> EarlyPart | None:
    """Splits the function of a loop in what comes before the loop and the rest; None where that gains nothing, or an order must be kept.

    Args:
      step: From what is closed over, the carry and the elements to the next carry and what the loop gives.
      n_carry: How many arrays are carried.
    """
    jaxpr = step.jaxpr
    if _keeps_order(jaxpr):
        return None
    of_carry = _reached(jaxpr, jaxpr.invars[:n_carry])
    of_elements = _reached(jaxpr, jaxpr.invars[n_carry:]) - of_carry
    roots = []
    for equation in jaxpr.eqns:
        is_read = equation.primitive.name in READS
        if of_elements.issuperset(equation.outvars) and (is_read or _is_heavy(equation)):
            roots += equation.outvars
    early = _needed(jaxpr, roots, ())
    made = of_elements.intersection(_made_by(early))
    late = _needed(jaxpr, jaxpr.outvars, made)
    wanted = _read_by(late, jaxpr.outvars)
    crossing = [v for v in _made_by(early) if v in made & wanted]
    if not crossing or any(is_sequence(v.aval) for v in crossing):
        return None
    elements = jaxpr.invars[n_carry:]
    return EarlyPart(
        _part(step, elements, early, crossing),
        _part(step, [*jaxpr.invars, *crossing], late, jaxpr.outvars),
    )


def part_behind(step: Traced, n_carry: int) -> PartBehind | None:
    """Splits the function of a loop in what is carried and what comes behind the loop; None where that gains nothing, or an order must be kept.

    Args:
      step: From what is closed over, the carry and the elements to the next carry and what the loop gives.
      n_carry: How many arrays are carried.
    """
    jaxpr = step.jaxpr
    if _keeps_order(jaxpr):
        return None
    next_carry = jaxpr.outvars[:n_carry]
    given = jaxpr.outvars[n_carry:]
    carried = _needed(jaxpr, next_carry, ())
    made = _made_by(carried)
    behind = _needed(jaxpr, given, made)
    if not any(map(_is_heavy, behind)):
        return None
    # what the second part reads of the first one, or of the carry before it
    wanted = _read_by(behind, given)
    crossing = [v for v in [*jaxpr.invars[:n_carry], *made] if v in wanted]
    if any(is_sequence(v.aval) for v in crossing):
        return None
    elements = jaxpr.invars[n_carry:]
    return PartBehind(
        _part(step, jaxpr.invars, carried, [*next_carry, *crossing]),
        _part(step, [*crossing, *elements], behind, given),
    )


def _keeps_order(jaxpr: Any) -> bool:
    """Tells whether a function draws random numbers or reports something: both are numbered in the order of its lines."""
    return any(call.kind in ("stochastic", "metric", "output") for call in calls(jaxpr))


def _part(
    step: Traced,
    inputs: Sequence[Any],
    equations: Sequence[Any],
    results: Sequence[Any],
) -> Traced:
    """Some equations of a function as a function."""
    jaxpr = step.jaxpr.replace(
        invars=[*inputs],
        eqns=[*equations],
        outvars=[*results],
        debug_info=step.jaxpr.debug_info.with_unknown_names(),
    )
    return replace(step, jaxpr=jaxpr)


def _needed(
    jaxpr: Any,
    wanted: Sequence[Any],
    given: Collection[Any],
) -> list[Any]:
    """The equations that some variables need beside what is given, in order."""
    known = set(given)
    alive = _variables(wanted) - known
    found = []
    for equation in reversed(jaxpr.eqns):
        if not alive.isdisjoint(equation.outvars):
            found.append(equation)
            alive |= _variables(equation.invars) - known
    return found[::-1]


def _reached(jaxpr: Any, given: Sequence[Any]) -> set[Any]:
    """Finds the variables that depend on some of a function's variables, and these."""
    found = {*given}
    for equation in jaxpr.eqns:
        if not found.isdisjoint(_variables(equation.invars)):
            found.update(equation.outvars)
    return found


def _made_by(equations: Sequence[Any]) -> list[Any]:
    """The variables that some equations compute."""
    return [v for equation in equations for v in equation.outvars]


def _read_by(equations: Sequence[Any], results: Sequence[Any]) -> set[Any]:
    """The variables that some equations read, and those among some results."""
    found = _variables(results)
    for equation in equations:
        found |= _variables(equation.invars)
    return found


def _variables(atoms: Sequence[Any]) -> set[Any]:
    return {v for v in atoms if not isinstance(v, Literal)}


def _is_heavy(equation: Any) -> bool:
    """Tells whether an equation is better computed for many rows at once: a product of matrices, or a combinator."""
    return equation.primitive is COMBINATOR or equation.primitive.name in HEAVY
