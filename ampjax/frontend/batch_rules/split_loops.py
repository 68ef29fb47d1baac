"""Loop fission: what a loop gives for each element, and its carry does not wait for, is computed behind the loop for all elements at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.extend.core import Literal

from ampjax.frontend.batches.room_bodies import is_sequence
from ampjax.frontend.combinators.tracing import COMBINATOR, Traced
from ampjax.frontend.deduction.equations import calls
from ampjax.frontend.loops.traced_rows import HEAVY


@dataclass(frozen=True)
class SplitLoop:
    """The function of a loop in two parts.

    Args:
      carried: From what is closed over, the carry and the elements to the next carry, then to what `behind` needs of the loop.
      behind: From what is closed over, what it needs of the loop and the elements to what the loop gives for each element.
    """

    carried: Traced
    behind: Traced


def split_loop(step: Traced, n_carry: int) -> SplitLoop | None:
    """Splits the function of a loop; None where that gains nothing, or where an order must be kept.

    Random numbers are drawn in an order, and reports are seen in one; a sequence would be copied for each element.

    Args:
      step: From what is closed over, the carry and the elements to the next carry and what the loop gives.
      n_carry: How many arrays are carried.
    """
    jaxpr = step.jaxpr
    if any(call.kind in ("stochastic", "metric", "output") for call in calls(jaxpr)):
        return None
    carried = _needed(jaxpr, jaxpr.outvars[:n_carry], [])
    behind = _needed(jaxpr, jaxpr.outvars[n_carry:], carried)
    if not any(_is_heavy(equation) for equation in behind):
        return None
    # what the second part reads of the first one, or of the carry before it
    made = [v for equation in carried for v in equation.outvars]
    of_loop = [*jaxpr.invars[:n_carry], *made]
    read = [v for equation in behind for v in equation.invars]
    wanted = {v for v in [*read, *jaxpr.outvars[n_carry:]] if not isinstance(v, Literal)}
    crossing = [v for v in of_loop if v in wanted]
    if any(is_sequence(v.aval) for v in crossing):
        return None
    names = jaxpr.debug_info.with_unknown_names()
    first = jaxpr.replace(
        eqns=carried,
        outvars=[*jaxpr.outvars[:n_carry], *crossing],
        debug_info=names,
    )
    second = jaxpr.replace(
        invars=[*crossing, *jaxpr.invars[n_carry:]],
        eqns=behind,
        outvars=jaxpr.outvars[n_carry:],
        debug_info=names,
    )
    return SplitLoop(
        replace(step, jaxpr=first),
        replace(step, jaxpr=second),
    )


def _needed(jaxpr: Any, wanted: Sequence[Any], done: Sequence[Any]) -> list[Any]:
    """The equations that some variables need, in order, without those that are done."""
    alive = {v for v in wanted if not isinstance(v, Literal)}
    is_done = {id(equation) for equation in done}
    found = []
    for equation in reversed(jaxpr.eqns):
        if id(equation) in is_done or alive.isdisjoint(equation.outvars):
            continue
        found.append(equation)
        alive |= {v for v in equation.invars if not isinstance(v, Literal)}
    return found[::-1]


def _is_heavy(equation: Any) -> bool:
    """Tells whether an equation is better computed for many rows at once: a product of matrices, or a combinator."""
    return equation.primitive is COMBINATOR or equation.primitive.name in HEAVY
