"""`jax.lax.scan`, `map`, `fori_loop` and `cond` with whole sequences: the loops that `amp.scan` makes, and the choices of `amp.switch`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from ampjax.frontend.batch_rules.sequence_steps import scan
from ampjax.frontend.batches.room_bodies import Body, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.combinators.branches import switch
from ampjax.frontend.combinators.sequences import SCAN
from ampjax.frontend.combinators.tracing import Call, Traced, trace
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.long_axes import element_type, is_known_length, long_axis
from ampjax.frontend.draft.values import Constant, Elements
from ampjax.frontend.whole_sequences.merged_values import of_array
from ampjax.frontend.whole_sequences.numbered_reads import by_known_numbers
from ampjax.jaxprs.primitives import bind, evaluate, opened, scan_parts

MOST_STACKED = 256
"""Of a loop of so many turns at most, what its turns give is put together again."""


def scanned(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Goes through sequences, or through arrays with sequences beside, as `amp.scan` does; None where elements are columns of a matrix."""
    source = equation.source
    length = source.params["length"]
    kinds = [type_of_atom(atom) for atom in equation.inputs]
    closed, carry, xs = scan_parts(
        source,
        kinds,
    )
    if any(long_axis(kind) for kind in xs):
        return None
    n_closed = len(closed)
    k = len(carry)
    given = [*values]
    # what is gone through, as sequences
    for number, kind in enumerate(
        xs,
        n_closed + k,
    ):
        if is_known_length(kind.shape[0]):
            given[number] = of_array(
                body,
                given[number],
                kind,
            )
    each = [element_type(kind) for kind in xs]
    if not xs:
        counted = jax.ShapeDtypeStruct(
            (length,),
            np.int32,
        )
        given.append(
            of_array(
                body,
                Constant(np.arange(length, dtype=np.int32)),
                counted,
            )
        )
        each.append(element_type(counted))
    step, constants = _step(
        equation,
        [*closed, *carry, *each],
        n_closed,
    )
    results = [name.aval for name in equation.outputs]
    call = Call(
        SCAN,
        results,
        (step,),
        (len(constants) + n_closed,),
        equation.line,
        {"n_carry": k, "reverse": source.params["reverse"]},
    )
    found = scan(
        body,
        call,
        [*map(Constant, constants), *given],
    )
    return _as_arrays(body, equation, found, k)


def _step(
    equation: Equation,
    kinds: Sequence[Any],
    n_closed: int,
) -> tuple[Traced, list[Any]]:
    """The function of a turn, which closes over constants and over all that is the same for each turn.

    Args:
      equation: JAX's `scan`.
      kinds: The types of what each turn is given.
      n_closed: How many of these, the first ones, are the same for all turns.

    Returns:
      The function, and the values of its constants.
    """
    jaxpr, constants = opened(equation.source.params["jaxpr"])
    n = len(jaxpr.invars)

    def turn(*given: Any) -> list[Any]:
        return evaluate(
            jaxpr,
            constants,
            given[:n],
            bind,
        )

    traced, found, _ = trace(
        turn,
        *kinds,
    )
    inputs = traced.jaxpr.invars
    constvars = [*traced.jaxpr.constvars, *inputs[:n_closed]]
    changes = {
        "constvars": constvars,
        "invars": [*inputs[n_closed:]],
        "debug_info": traced.jaxpr.debug_info.with_unknown_names(),
    }
    if hasattr(traced.jaxpr, "consts"):
        # a newer JAX takes as many inputs for constants as there are values
        changes["consts"] = [None] * len(constvars)
    own = traced.jaxpr.replace(**changes)
    return replace(traced, jaxpr=own), found


def _as_arrays(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
    n_carry: int,
) -> list[Value] | None:
    """The results of a loop, with arrays for the results of equally many turns in all examples; None for too many turns."""
    found = [*values[:n_carry]]
    for name, value in zip(
        equation.outputs[n_carry:],
        values[n_carry:],
        strict=True,
    ):
        n = name.aval.shape[0]
        if not is_known_length(n):
            found.append(value)
            continue
        if n > MOST_STACKED or not isinstance(
            value,
            Elements,
        ):
            return None
        one = by_known_numbers(
            body,
            value,
            lambda data, n=n: np.tile(
                np.arange(n),
                (body.space.n_rows(data), 1),
            ),
            (n,),
            name.aval,
            equation.line,
        )
        if one is None:
            return None
        found.append(one)
    return found


def branched(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value]:
    """Chooses among functions of sequences, as `amp.switch` does."""
    branches = [opened(each) for each in equation.source.params["branches"]]

    def branch(number: int) -> Callable[..., list[Any]]:
        jaxpr, constants = branches[number]
        return lambda *given: evaluate(
            jaxpr,
            constants,
            given,
            bind,
        )

    functions = [branch(number) for number in range(len(branches))]
    kinds = [type_of_atom(atom) for atom in equation.inputs]
    traced, constants, _ = trace(
        lambda index, *given: switch(
            index,
            functions,
            *given,
        ),
        *kinds,
    )
    return body.run(
        traced,
        [*map(Constant, constants), *values],
    )
