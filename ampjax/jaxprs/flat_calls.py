"""A function's jaxpr in which no equation only calls another jaxpr. Equations keep the user's source lines.

`flat_program` also makes selections of branches, and is for functions whose lines nobody asks for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from ampjax.jaxprs import primitives

CALLS = (
    *primitives.CALLS,
    *primitives.REMATERIALIZED,
    "custom_jvp_call",
    "custom_vjp_call",
    "composite",
)
"""Equations that only call what they hold."""

Program = tuple[Any, Sequence[Any]]
"""An open jaxpr, and the values of its constants."""


def without_calls(
    jaxpr: Any,
    constants: Sequence[Any],
    mapped: Sequence[tuple[str, int]] = (),
    n_results: int | None = None,
) -> Program:
    """Opens the calls in a jaxpr.

    Args:
      jaxpr: An open jaxpr.
      constants: The values of its constants.
      mapped: Names and sizes of the axes over which it is mapped.
      n_results: How many of its results are wanted; None for all.

    Returns:
      The program, without equations that none of these results needs.
    """
    if not any(
        eqn.primitive.name in CALLS for eqn in jaxpr.eqns
    ):  # a trace of hundreds of tables takes long
        return primitives.drop_unneeded(jaxpr, n_results), constants

    def function(*args: Any) -> list[Any]:
        return _evaluate(jaxpr, constants, args, None)[:n_results]

    avals = [v.aval for v in jaxpr.invars]
    flat, values = primitives.opened(
        jax.make_jaxpr(
            function,
            axis_env=list(mapped),
        )(*avals)
    )
    return primitives.drop_unneeded(flat), values


def _evaluate(
    jaxpr: Any,
    constants: Sequence[Any],
    args: Sequence[Any],
    around: Any,
) -> list[Any]:
    """A jaxpr's results. Equations of library functions, which have no line of the user's, get that of the call."""

    def results(eqn: Any, operands: list[Any]) -> list[Any]:
        line = eqn.source_info.traceback if primitives.source_line(eqn) else around
        if eqn.primitive.name in CALLS:
            return _evaluate(*primitives.opened(primitives.called(eqn)), operands, line)
        return primitives.bind(eqn, operands, line)

    return primitives.evaluate(jaxpr, constants, args, results)
