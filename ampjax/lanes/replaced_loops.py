"""Runs of a jaxpr with other computations in place of while loops: at the top, in calls, scans, choices and other loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import numpy as np
from jax import lax

from ampjax.jaxprs.primitives import (
    CALLS,
    REMATERIALIZED,
    bind,
    called,
    evaluate,
    inner,
    opened,
    scan_parts,
    while_parts,
)

Values = list[Any]
"""Values of several atoms."""


class WhileLoop(NamedTuple):
    """A while loop of a jaxpr, as functions of values.

    Args:
      eqn: Its equation.
      test: From the test's constants and the carry to whether there is another trip.
      body: From the body's constants and the carry to the next carry.
    """

    eqn: Any
    test: Callable[[Sequence[Any], Sequence[Any]], Any]
    body: Callable[[Sequence[Any], Sequence[Any]], Values]

    def plain(
        self,
        asked: Sequence[Any],
        closed: Sequence[Any],
        carry: Sequence[Any],
    ) -> Values:
        """Runs the loop as JAX does.

        Args:
          asked: The test's constants.
          closed: The body's constants.
          carry: The first carry.
        """
        return lax.while_loop(
            lambda carry: self.test(asked, carry),
            lambda carry: self.body(closed, carry),
            list(carry),
        )


Replacement = Callable[
    [WhileLoop, Values, Values, Values],
    Sequence[Any],
]
"""From a loop, the constants of its test and of its body, and its first carry to its last carry."""


def has_while(jaxpr: Any) -> bool:
    """Tells whether a jaxpr holds a while loop, at any depth.

    Args:
      jaxpr: An open jaxpr.
    """
    return any(_holds_while(eqn) for eqn in jaxpr.eqns)


def _holds_while(eqn: Any) -> bool:
    if eqn.primitive.name == "while":
        return True
    return any(has_while(each) for each in inner(eqn))


def with_loops(
    jaxpr: Any,
    constants: Sequence[Any],
    args: Sequence[Any],
    replacement: Replacement,
) -> Values:
    """Runs an open jaxpr with all while loops replaced, but not inside functions with a derivative of the user's own.

    Args:
      jaxpr: The jaxpr.
      constants: Values of its constants.
      args: Values of its inputs.
      replacement: What computes a loop.

    Returns:
      Values of its outputs.
    """

    def results(eqn: Any, values: list[Any]) -> Values:
        rule = _RULES.get(eqn.primitive.name)
        if rule is None or not _holds_while(eqn):
            return bind(eqn, values)
        typed = _typed(values, eqn.invars)
        return rule(eqn, typed, replacement)

    outputs = evaluate(jaxpr, constants, args, results)
    return _typed(outputs, jaxpr.outvars)


def _typed(values: Values, atoms: Sequence[Any]) -> Values:
    """Returns values of atoms, of literals with the dtype."""
    found = []
    for value, atom in zip(values, atoms, strict=True):
        if isinstance(atom, jex.Literal):
            aval: Any = atom.aval
            value = np.asarray(value, aval.dtype)
        found.append(value)
    return found


def _run(jaxpr: Any, args: Values, replacement: Replacement) -> Values:
    """Runs a jaxpr of an equation."""
    body, constants = opened(jaxpr)
    return with_loops(body, constants, args, replacement)


def _while(eqn: Any, args: Values, replacement: Replacement) -> Values:
    tested = eqn.params["cond_jaxpr"]
    repeated = eqn.params["body_jaxpr"]

    def test(asked: Sequence[Any], carry: Sequence[Any]) -> Any:
        found = _run(tested, [*asked, *carry], replacement)
        return found[0]

    def body(closed: Sequence[Any], carry: Sequence[Any]) -> Values:
        return _run(repeated, [*closed, *carry], replacement)

    loop = WhileLoop(eqn, test, body)
    asked, closed, carry = while_parts(eqn, args)
    return list(replacement(loop, asked, closed, carry))


def _scan(eqn: Any, args: Values, replacement: Replacement) -> Values:
    closed, init, rows = scan_parts(eqn, args)
    repeated = eqn.params["jaxpr"]
    n = len(init)

    def step(carry: Any, row: Any) -> Any:
        given = [*closed, *carry, *row]
        found = _run(repeated, given, replacement)
        return found[:n], found[n:]

    carry, stacked = lax.scan(
        step,
        init,
        rows,
        length=eqn.params["length"],
        reverse=eqn.params["reverse"],
        unroll=eqn.params["unroll"],
    )
    return [*carry, *stacked]


def _cond(eqn: Any, args: Values, replacement: Replacement) -> Values:
    branches = []
    for branch in eqn.params["branches"]:
        branches.append(partial(_jaxpr, branch, replacement))
    which, *operands = args
    return lax.switch(which, branches, *operands)


def _jaxpr(jaxpr: Any, replacement: Replacement, *args: Any) -> Values:
    return _run(jaxpr, list(args), replacement)


def _call(eqn: Any, args: Values, replacement: Replacement) -> Values:
    return _run(called(eqn), args, replacement)


def _of_vmap(eqn: Any, args: Values, replacement: Replacement) -> Values:
    return _run(eqn.params["call"], args, replacement)


def _rematerialized(eqn: Any, args: Values, replacement: Replacement) -> Values:
    run = jax.checkpoint(
        partial(_jaxpr, called(eqn), replacement),
        prevent_cse=eqn.params["prevent_cse"],
        policy=eqn.params["policy"],
    )
    return run(*args)


_RULES = {
    "while": _while,
    "scan": _scan,
    "cond": _cond,
    "custom_vmap_call": _of_vmap,
    **dict.fromkeys(CALLS, _call),
    **dict.fromkeys(REMATERIALIZED, _rematerialized),
}
