"""Loop fission: the equations of a body that need no carry move before the loop, and the ones that no carry needs move behind the loop."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.extend.core import Literal

from ampjax.frontend.batches.programs_of_rows import Block, ReadsByNumber, Rows, View
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.combinators.tracing import COMBINATOR, Traced
from ampjax.frontend.deduction.equations import calls
from ampjax.frontend.draft.long_axes import is_sequence
from ampjax.frontend.draft.payload_types import is_key
from ampjax.frontend.draft.values import Constant
from ampjax.frontend.loops.split_products import with_split_products
from ampjax.frontend.loops.traced_rows import HEAVY
from ampjax.jaxprs.primitives import depending, is_inexact, needed_equations, variables_read

READS = ("gather", "dynamic_slice")
"""Operations whose transpose adds to a whole table: at each level of a loop, if they are in the loop."""


def reads_by_number(
    body: Body,
    part: NumberedPart,
    closed: Sequence[Value],
) -> ReadsByNumber:
    """Adds reads by number in front of a loop.

    Args:
      body: Where the loop is.
      part: The reads.
      closed: What the loop's function closes over.
    """
    function = part.first
    block = Block(body.block)
    numbers = [Rows(variable.aval, None) for variable in function.jaxpr.invars]
    block.give(numbers)
    there = Body(body.low, block, body.room)
    values = there.run(
        function,
        [*closed, *(View(rows, body.space) for rows in numbers)],
    )
    found = []
    inside = []
    for value, variable in zip(values, function.jaxpr.outvars, strict=True):
        assert isinstance(value, View)
        found.append(value.rows)
        inside.append(Rows(variable.aval, None))
    return ReadsByNumber(block, numbers, found, inside, part.most_rounds)


MOVES = (
    *READS,
    "squeeze",
    "reshape",
    "transpose",
    "broadcast_in_dim",
    "slice",
    "convert_element_type",
)
"""Operations without arithmetic: finite operands give finite results."""


@dataclass(frozen=True)
class SplitFunction:
    """The function of a loop in two parts.

    Args:
      first: What is computed first.
      second: The rest, which also gets what it needs of the first part.
    """

    first: Traced
    second: Traced


def with_early_products(step: Traced, late: Collection[Any]) -> Traced:
    """The function of a loop, with products of early values apart from products of late ones.

    Args:
      step: The function.
      late: Its variables that wait.
    """
    return replace(step, jaxpr=with_split_products(step.jaxpr, late))


@dataclass(frozen=True)
class KnownPart:
    """A loop's function without the parts of its carry known from the elements alone.

    Args:
      places: Which parts of the carry.
      function: From what is closed over and an element to these parts after it.
      rest: The loop's function, without these parts in the carry; it gets their values before an element behind the elements.
    """

    places: Sequence[int]
    function: Traced
    rest: Traced


def known_part(step: Traced, n_carry: int) -> KnownPart | None:
    """Splits off the parts of a carry known without the element before; None where there are none.

    Args:
      step: From what is closed over, the carry and the elements to the next carry and what the loop gives.
      n_carry: How many arrays are carried.
    """
    jaxpr = step.jaxpr
    carry = jaxpr.invars[:n_carry]
    elements = jaxpr.invars[n_carry:]
    following = jaxpr.outvars[:n_carry]
    of_carry = depending(jaxpr.eqns, carry)
    places = []
    for place, variable in enumerate(following):
        waits = not isinstance(variable, Literal) and variable in of_carry
        if not waits and not is_sequence(variable.aval) and not is_key(variable.aval):
            places.append(place)
    results = [following[place] for place in places]
    equations = needed_equations(jaxpr.eqns, results, ())
    if not places or _holds(jaxpr, equations, "is_ordered"):
        return None
    left = [place for place in range(n_carry) if place not in places]
    inputs = [carry[place] for place in left]
    inputs += [*elements, *(carry[place] for place in places)]
    outputs = [following[place] for place in left]
    return KnownPart(
        places,
        _part(step, elements, equations, results),
        _part(
            step,
            inputs,
            jaxpr.eqns,
            [*outputs, *jaxpr.outvars[n_carry:]],
        ),
    )


def early_part(step: Traced, n_carry: int) -> SplitFunction | None:
    """Splits the function of a loop into a part before the loop and the rest; None where nothing is gained, or an order must be kept.

    Args:
      step: From what is closed over, the carry and the elements to the next carry and what the loop gives.
      n_carry: How many arrays are carried.

    Returns:
      From what is closed over and the elements to what the loop needs of it; and the loop's function, which gets that behind the elements.
    """
    jaxpr = step.jaxpr
    if _holds(jaxpr, jaxpr.eqns, "is_ordered"):
        return None
    of_carry = depending(jaxpr.eqns, jaxpr.invars[:n_carry])
    of_elements = depending(jaxpr.eqns, jaxpr.invars[n_carry:]) - of_carry
    roots = []
    for equation in jaxpr.eqns:
        is_read = equation.primitive.name in READS
        if of_elements.issuperset(equation.outvars) and (is_read or _is_heavy(equation)):
            roots += equation.outvars
    early = needed_equations(jaxpr.eqns, roots, ())
    made = of_elements.intersection(_outputs_of(early))
    late = needed_equations(jaxpr.eqns, jaxpr.outvars, made)
    wanted = variables_read(late, jaxpr.outvars)
    crossing = [v for v in _outputs_of(early) if v in made & wanted]
    if not crossing or any(is_sequence(v.aval) for v in crossing):
        return None
    elements = jaxpr.invars[n_carry:]
    return SplitFunction(
        _part(step, elements, early, crossing),
        _part(step, [*jaxpr.invars, *crossing], late, jaxpr.outvars),
    )


@dataclass(frozen=True)
class NumberedPart(SplitFunction):
    """The reads of a loop's function by a round's number, and the rest, a function of its arguments and the reads.

    Args:
      most_rounds: For so many rounds all reads together are about as large as the arrays that are read.
    """

    most_rounds: int


def numbered_part(
    turn: Traced,
    numbers: Collection[Any],
    closed: Sequence[Value],
) -> NumberedPart | None:
    """Splits off the reads by a round's number from arrays alike for all rows; None where there are none.

    Reads alone are split off, with integers that say where: anything else might not be finite in a round that no row needs.

    Args:
      turn: The loop's function.
      numbers: Its variables that have the same number for all rows of a round.
      closed: What it closes over.
    """
    jaxpr = turn.jaxpr
    shared = _variables_for_all_rows(jaxpr, closed)
    numbered = depending(jaxpr.eqns, numbers) - _of_rows(jaxpr, {*shared, *numbers})
    roots = []
    limits = []
    for equation in jaxpr.eqns:
        if equation.primitive.name not in READS or not numbered.issuperset(equation.outvars):
            continue
        (result,) = equation.outvars
        source, *places = equation.invars
        if source in shared and _are_integers(jaxpr, places):
            roots.append(result)
            limits.append(2 * source.aval.size // max(result.aval.size, 1))
    # all others stay: what is told in a round has no result
    late = [each for each in jaxpr.eqns if not each.outvars or each.outvars[0] not in roots]
    wanted = variables_read(late, jaxpr.outvars)
    crossing = [v for v in roots if v in wanted]
    if not crossing:
        return None
    early = needed_equations(jaxpr.eqns, crossing, ())
    return NumberedPart(
        _part(turn, [*numbers], early, crossing),
        _part(turn, [*jaxpr.invars, *crossing], late, jaxpr.outvars),
        min(limits),
    )


def _variables_for_all_rows(jaxpr: Any, closed: Sequence[Value]) -> set[Any]:
    """The variables of closed-over values alike for all rows."""
    found = set()
    for variable, value in zip(jaxpr.constvars, closed, strict=True):
        is_single = isinstance(value, View) and value.rows.room is None
        if is_single or isinstance(value, Constant):
            found.add(variable)
    return found


def _of_rows(jaxpr: Any, shared: Collection[Any]) -> set[Any]:
    """The variables with a value for each row: all depend on inputs with one."""
    roots = [v for v in (*jaxpr.constvars, *jaxpr.invars) if v not in shared]
    return depending(jaxpr.eqns, roots)


def computes_shared(
    turn: Traced,
    numbers: Collection[Any],
    closed: Sequence[Value],
) -> bool:
    """Whether a loop's function computes real numbers from shared values alone, which might not be finite in an empty round.

    Args:
      turn: The loop's function.
      numbers: As `numbered_part` gets them.
      closed: As `numbered_part` gets it.
    """
    jaxpr = turn.jaxpr
    of_rows = _of_rows(jaxpr, {*_variables_for_all_rows(jaxpr, closed), *numbers})
    for equation in jaxpr.eqns:
        if equation.primitive.name in MOVES:
            continue
        for result in equation.outvars:
            is_real = is_inexact(result.aval.dtype)
            if is_real and result not in of_rows:
                return True
    return False


def _are_integers(jaxpr: Any, places: Sequence[Any]) -> bool:
    """Whether places in an array are computed from integers alone, without a combinator."""
    for equation in needed_equations(jaxpr.eqns, places, ()):
        atoms = [*equation.invars, *equation.outvars]
        if equation.primitive is COMBINATOR or any(is_inexact(v.aval.dtype) for v in atoms):
            return False
    return True


def part_behind(step: Traced, n_carry: int) -> SplitFunction | None:
    """Splits the function of a loop into the carry's part and a part behind the loop; None where nothing is gained, or an order must be kept.

    Args:
      step: From what is closed over, the carry and the elements to the next carry and what the loop gives.
      n_carry: How many arrays are carried.

    Returns:
      The loop's function, which gives the next carry, then what is needed behind the loop; and from what is closed over, that and the elements to
      what the loop gives for each element.
    """
    jaxpr = step.jaxpr
    next_carry = jaxpr.outvars[:n_carry]
    given = jaxpr.outvars[n_carry:]
    carried = needed_equations(jaxpr.eqns, next_carry, ())
    made = _outputs_of(carried)
    reports = [each for each in jaxpr.eqns if _holds(jaxpr, [each], "reports")]
    if _holds(jaxpr, jaxpr.eqns, "draws") or _holds(jaxpr, carried, "reports"):
        return None
    # all reports come behind the loop, in their order
    read = variables_read(reports, given)
    wanted = {id(each) for each in needed_equations(jaxpr.eqns, read, made)}
    wanted.update(map(id, reports))
    behind = [each for each in jaxpr.eqns if id(each) in wanted]
    if not any(map(_is_heavy, behind)):
        return None
    # what the second part reads of the first one, or of the carry before it
    read = variables_read(behind, given)
    crossing = [v for v in [*jaxpr.invars[:n_carry], *made] if v in read]
    if any(is_sequence(v.aval) for v in crossing):
        return None
    elements = jaxpr.invars[n_carry:]
    return SplitFunction(
        _part(step, jaxpr.invars, carried, [*next_carry, *crossing]),
        _part(step, [*crossing, *elements], behind, given),
    )


def _holds(jaxpr: Any, equations: Sequence[Any], trait: str) -> bool:
    """Tells whether some equations of a function hold a combinator of some trait, which may be inside of others."""
    return any(getattr(call.kind, trait) for call in calls(jaxpr.replace(eqns=[*equations])))


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


def _outputs_of(equations: Sequence[Any]) -> list[Any]:
    """The variables that some equations compute."""
    return [v for equation in equations for v in equation.outvars]


def _is_heavy(equation: Any) -> bool:
    """Tells whether an equation is better computed for many rows at once: a product of matrices, or a combinator."""
    return equation.primitive is COMBINATOR or equation.primitive.name in HEAVY
