"""Runs of a jaxpr with other computations in place of some equations: at the top, in calls, scans, choices and loops."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
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

Run = Callable[[Any, Values], Values]
"""From a jaxpr of an equation and values of its inputs to those of its outputs, with the same replacements."""

Rule = Callable[[Any, Values, Run], Sequence[Any]]
"""From an equation and values of its operands to those of its results."""


def holds(jaxpr: Any, names: Collection[str]) -> bool:
    """Tells whether a jaxpr holds an equation of some primitives, at any depth.

    Args:
      jaxpr: An open jaxpr.
      names: Names of the primitives.
    """
    return any(_is_or_holds(eqn, names) for eqn in jaxpr.eqns)


def _is_or_holds(eqn: Any, names: Collection[str]) -> bool:
    if eqn.primitive.name in names:
        return True
    return any(holds(each, names) for each in inner(eqn))


def with_replaced(
    jaxpr: Any,
    constants: Sequence[Any],
    args: Sequence[Any],
    rules: Mapping[str, Rule],
) -> Values:
    """Runs an open jaxpr with the equations of some primitives replaced, but not inside functions with a derivative of the user's own, unless a rule goes there.

    Args:
      jaxpr: The jaxpr.
      constants: Values of its constants.
      args: Values of its inputs.
      rules: By primitive, what computes it.

    Returns:
      Values of its outputs.
    """

    def run(jaxpr: Any, args: Values) -> Values:
        body, constants = opened(jaxpr)
        return with_replaced(body, constants, args, rules)

    def results(
        eqn: Any,
        values: list[Any],
    ) -> Sequence[Any]:
        name = eqn.primitive.name
        rule = rules.get(name) or _INSIDE.get(name)
        if rule is None or not _is_or_holds(eqn, rules):
            return bind(eqn, values)
        return rule(eqn, _cast_results(values, eqn.invars), run)

    outputs = evaluate(
        jaxpr,
        constants,
        args,
        lambda eqn, values: list(results(eqn, values)),
    )
    return _cast_results(outputs, jaxpr.outvars)


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


def with_loops(
    jaxpr: Any,
    constants: Sequence[Any],
    args: Sequence[Any],
    replacement: Replacement,
    others: Mapping[str, Rule] | None = None,
) -> Values:
    """Runs an open jaxpr with all while loops replaced, but not inside functions with a derivative of the user's own, unless a rule goes there.

    Args:
      jaxpr: The jaxpr.
      constants: Values of its constants.
      args: Values of its inputs.
      replacement: What computes a loop.
      others: Rules of other primitives.

    Returns:
      Values of its outputs.
    """

    def rule(
        eqn: Any,
        values: Values,
        run: Run,
    ) -> Sequence[Any]:
        return replacement(_loop(eqn, run), *while_parts(eqn, values))

    rules = {"while": rule, **(others or {})}
    return with_replaced(jaxpr, constants, args, rules)


def type_of_argument(aval: Any) -> Any:
    """The type of an argument, for `jax.make_jaxpr`.

    Args:
      aval: The argument's abstract value.
    """
    return jax.ShapeDtypeStruct(
        aval.shape,
        aval.dtype,
        weak_type=aval.weak_type,
    )


def _loop(eqn: Any, run: Run) -> WhileLoop:
    """A while loop as functions of values."""
    tested = eqn.params["cond_jaxpr"]
    repeated = eqn.params["body_jaxpr"]
    return WhileLoop(
        eqn,
        lambda asked, carry: run(tested, [*asked, *carry])[0],
        lambda closed, carry: run(repeated, [*closed, *carry]),
    )


def _cast_results(values: Values, atoms: Sequence[Any]) -> Values:
    """Returns values of atoms, of literals with the dtype."""
    typed = []
    for value, atom in zip(values, atoms, strict=True):
        if isinstance(atom, jex.Literal):
            aval: Any = atom.aval
            value = np.asarray(value, aval.dtype)
        typed.append(value)
    return typed


def _while(
    eqn: Any,
    values: Values,
    run: Run,
) -> Values:
    return _loop(eqn, run).plain(*while_parts(eqn, values))


def _scan(
    eqn: Any,
    values: Values,
    run: Run,
) -> Values:
    closed, init, rows = scan_parts(eqn, values)
    n = len(init)

    def step(carry: Any, row: Any) -> Any:
        results = run(eqn.params["jaxpr"], [*closed, *carry, *row])
        return results[:n], results[n:]

    carry, stacked = lax.scan(
        step,
        init,
        rows,
        length=eqn.params["length"],
        reverse=eqn.params["reverse"],
        unroll=eqn.params["unroll"],
    )
    return [*carry, *stacked]


def _cond(
    eqn: Any,
    values: Values,
    run: Run,
) -> Values:
    branches = [partial(_varargs, run, branch) for branch in eqn.params["branches"]]
    which, *operands = values
    return lax.switch(which, branches, *operands)


def _varargs(
    run: Run,
    jaxpr: Any,
    *args: Any,
) -> Values:
    return run(jaxpr, list(args))


def in_place(
    eqn: Any,
    values: Values,
    run: Run,
) -> Values:
    """Computes the results of a call by the equations inside.

    Args:
      eqn: The call.
      values: Values of its operands.
      run: Runs a jaxpr.
    """
    return run(called(eqn), values)


def _of_vmap(
    eqn: Any,
    values: Values,
    run: Run,
) -> Values:
    return run(eqn.params["call"], values)


def _rematerialize(
    eqn: Any,
    values: Values,
    run: Run,
) -> Values:
    again = jax.checkpoint(
        partial(_varargs, run, called(eqn)),
        prevent_cse=eqn.params["prevent_cse"],
        policy=eqn.params["policy"],
    )
    return again(*values)


_INSIDE = {
    "while": _while,
    "scan": _scan,
    "cond": _cond,
    "custom_vmap_call": _of_vmap,
    **dict.fromkeys(CALLS, in_place),
    **dict.fromkeys(REMATERIALIZED, _rematerialize),
}
"""Rules for equations that hold replaced ones."""
