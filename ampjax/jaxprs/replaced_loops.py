"""A jaxpr run with its while loops computed in another way, wherever they stand: in calls, scans, choices and other loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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


class WhileLoop(NamedTuple):
    """A while loop of a jaxpr, as functions of values.

    Args:
      eqn: Its equation.
      test: From the test's constants and the carry to whether there is another trip.
      body: From the body's constants and the carry to the next carry.
    """

    eqn: Any
    test: Callable[[Sequence[Any], Sequence[Any]], Any]
    body: Callable[[Sequence[Any], Sequence[Any]], list[Any]]

    def plain(self, asked: Sequence[Any], closed: Sequence[Any], carry: Sequence[Any]) -> list[Any]:
        """Runs the loop as JAX does.

        Args:
          asked: The test's constants.
          closed: The body's constants.
          carry: What it carries into its first trip.
        """
        return lax.while_loop(
            lambda carry: self.test(asked, carry),
            lambda carry: self.body(closed, carry),
            list(carry),
        )


Replacement = Callable[
    [WhileLoop, Sequence[Any], Sequence[Any], Sequence[Any]],
    Sequence[Any],
]
"""From a loop, the constants of its test and of its body, and its first carry to its last carry."""


def has_while(jaxpr: Any) -> bool:
    """Tells whether a jaxpr holds a while loop, at any depth.

    Args:
      jaxpr: An open jaxpr.
    """
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "while" or any(has_while(each) for each in inner(eqn)):
            return True
    return False


def with_loops(
    jaxpr: Any,
    constants: Sequence[Any],
    args: Sequence[Any],
    replacement: Replacement,
) -> list[Any]:
    """Runs an open jaxpr with its while loops replaced. Functions with a derivative of their own stay as they are.

    Args:
      jaxpr: The jaxpr.
      constants: Values of its constants.
      args: Values of its inputs.
      replacement: What computes a loop.

    Returns:
      Values of its outputs.
    """

    def results(eqn: Any, values: list[Any]) -> list[Any]:
        if eqn.primitive.name == "while":
            return _while(eqn, _typed(values, eqn.invars), replacement)
        rule = _RULES.get(eqn.primitive.name)
        if rule is None or not any(has_while(each) for each in inner(eqn)):
            return bind(eqn, values)
        return rule(eqn, _typed(values, eqn.invars), replacement)

    return _typed(evaluate(jaxpr, constants, args, results), jaxpr.outvars)


def _typed(values: Sequence[Any], atoms: Sequence[Any]) -> list[Any]:
    """Values of atoms, those of literals with their dtypes."""
    found = []
    for value, atom in zip(values, atoms, strict=True):
        aval: Any = atom.aval
        is_literal = isinstance(atom, jex.Literal)
        found.append(np.asarray(value, aval.dtype) if is_literal else value)
    return found


def _run(jaxpr: Any, args: Sequence[Any], replacement: Replacement) -> list[Any]:
    """Runs a jaxpr that an equation holds."""
    body, constants = opened(jaxpr)
    return with_loops(body, constants, args, replacement)


def _while(eqn: Any, args: Sequence[Any], replacement: Replacement) -> list[Any]:
    def test(asked: Sequence[Any], carry: Sequence[Any]) -> Any:
        return _run(eqn.params["cond_jaxpr"], [*asked, *carry], replacement)[0]

    def body(closed: Sequence[Any], carry: Sequence[Any]) -> list[Any]:
        return _run(eqn.params["body_jaxpr"], [*closed, *carry], replacement)

    return list(replacement(WhileLoop(eqn, test, body), *while_parts(eqn, args)))


def _scan(eqn: Any, args: Sequence[Any], replacement: Replacement) -> list[Any]:
    closed, init, rows = scan_parts(eqn, args)

    def step(carry: Any, row: Any) -> Any:
        found = _run(eqn.params["jaxpr"], [*closed, *carry, *row], replacement)
        return found[: len(init)], found[len(init) :]

    carry, stacked = lax.scan(
        step,
        init,
        rows,
        length=eqn.params["length"],
        reverse=eqn.params["reverse"],
        unroll=eqn.params["unroll"],
    )
    return [*carry, *stacked]


def _cond(eqn: Any, args: Sequence[Any], replacement: Replacement) -> list[Any]:
    branches = []
    for branch in eqn.params["branches"]:
        branches.append(lambda *args, branch=branch: _run(branch, args, replacement))
    return lax.switch(args[0], branches, *args[1:])


def _call(eqn: Any, args: Sequence[Any], replacement: Replacement) -> list[Any]:
    return _run(called(eqn), args, replacement)


def _of_vmap(eqn: Any, args: Sequence[Any], replacement: Replacement) -> list[Any]:
    return _run(eqn.params["call"], args, replacement)


def _rematerialized(eqn: Any, args: Sequence[Any], replacement: Replacement) -> list[Any]:
    run = jax.checkpoint(
        lambda *args: _run(called(eqn), args, replacement),
        prevent_cse=eqn.params["prevent_cse"],
        policy=eqn.params["policy"],
    )
    return run(*args)


_RULES = {
    "scan": _scan,
    "cond": _cond,
    "custom_vmap_call": _of_vmap,
    **dict.fromkeys(CALLS, _call),
    **dict.fromkeys(REMATERIALIZED, _rematerialized),
}
