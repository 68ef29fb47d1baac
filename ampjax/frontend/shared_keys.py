"""Random numbers that a model draws with keys of its own: which are the same for all examples, and which can't be drawn together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from jax.extend import core as jex

from ampjax.errors import GraphError
from ampjax.frontend.combinators.tracing import COMBINATOR, Call, Traced, bodies, has_primitive
from ampjax.frontend.draft.payload_types import implementation, is_key
from ampjax.jaxprs.primitives import CALLS, DRAWS, REMATERIALIZED, called, opened, source_line


def refuse_other_generators(jaxpr: Any, line: str) -> None:
    """Checks that all keys are Threefry's: keys of other generators give other numbers when many are drawn in one call.

    Args:
      jaxpr: The model's open jaxpr, or one in it.
      line: The user's line, where no other is known.

    Raises:
      GraphError: If one is not; names the user's line.
    """
    for equation in jaxpr.eqns:
        here = source_line(equation) or line
        for atom in (*equation.invars, *equation.outvars):
            if is_key(atom.aval) and (name := implementation(atom.aval.dtype)) != "threefry2x32":
                fix = 'Make them with `jax.random.key(seed, impl="threefry2x32")`.'
                raise GraphError(
                    here,
                    "keys that give the same numbers alone and together: Threefry's",
                    f"`{name}`",
                    fix,
                )
        for body in bodies(equation):
            refuse_other_generators(body, here)


def lines_of_shared_draws(model: Traced, differs: Sequence[bool]) -> list[str]:
    """The user's lines that draw random numbers with keys that depend on no example: all examples get the same numbers.

    Args:
      model: The model.
      differs: For each of its variables, whether it is a part of the example.
    """
    lines: list[str] = []
    _follow(model.jaxpr, differs, model.line, lines)
    return list(dict.fromkeys(lines))


def _follow(
    jaxpr: Any,
    differs: Sequence[bool],
    line: str,
    problems: list[str],
) -> list[bool]:
    """Tells for each result of an open jaxpr whether it depends on the example; `found` gets the lines that draw with keys that do not."""
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], differs, strict=True))

    def of(atom: Any) -> bool:
        return not isinstance(atom, jex.Literal) and known[atom]

    for equation in jaxpr.eqns:
        operands = [of(atom) for atom in equation.invars]
        here = source_line(equation) or line
        if equation.primitive is COMBINATOR:
            results = _of_combinator(equation.params["call"], operands, problems)
        elif equation.primitive.name in (*CALLS, *REMATERIALIZED):
            body, constants = opened(called(equation))
            results = _follow(
                body,
                [False] * len(constants) + operands,
                here,
                problems,
            )
        else:
            results = [any(operands)] * len(equation.outvars)
            keys = []
            for own, atom in zip(operands, equation.invars, strict=True):
                if is_key(atom.aval):
                    keys.append(own)
            is_draw = equation.primitive.name in DRAWS or any(
                has_primitive(body, DRAWS) for body in bodies(equation)
            )
            if is_draw and not any(keys or operands):
                problems.append(here)
        known |= zip(equation.outvars, results, strict=True)
    return [of(atom) for atom in jaxpr.outvars]


def _of_combinator(
    call: Call,
    operands: Sequence[bool],
    problems: list[str],
) -> list[bool]:
    """Tells for each result of a combinator whether it depends on the example."""
    ends = np.cumsum([0, *call.n_closed]).tolist()
    closed = [operands[a:b] for a, b in pairwise(ends)]
    differs = list(operands[ends[-1] :])
    n = len(call.results)
    combinator = call.kind
    if combinator.by_example is not None:
        return [combinator.by_example] * n
    turn = combinator.turn
    if turn is not None:
        return _of_loop(call.functions[turn], closed[turn], differs, call.n_carry, problems)[:n]
    results = [any(differs)] * n
    for function, values in zip(call.functions, closed, strict=True):
        is_exact = combinator.keeps is not None
        if is_exact:
            args = differs[combinator.keeps :]
        else:
            args = [any(differs)] * len(function.jaxpr.invars)
        after = _follow(
            function.jaxpr,
            [*values, *args],
            function.line,
            problems,
        )
        results = [
            a or b for a, b in zip(results, after if is_exact else [any(after)] * n, strict=True)
        ]
    return results


def _of_loop(
    body: Traced,
    closed: Sequence[bool],
    differs: list[bool],
    n_carry: int,
    problems: list[str],
) -> list[bool]:
    """Tells for each result of a loop whether it depends on the example: for a carried value, in any round."""
    while True:
        lines: list[str] = []
        after = _follow(
            body.jaxpr,
            [*closed, *differs],
            body.line,
            lines,
        )
        carry = []
        for a, b in zip(differs[:n_carry], after, strict=False):
            carry.append(a or b)
        if carry == differs[:n_carry]:
            problems += lines
            return [*carry, *after[n_carry:]]
        differs = [*carry, *differs[n_carry:]]
