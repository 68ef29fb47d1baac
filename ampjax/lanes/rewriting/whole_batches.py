"""Equations that look at a whole batch of `jax.vmap`, replaced by their results for one element alone.

Equinox has them, and with it diffrax, optimistix and lineax: loops that go on until the last element is done, checks that raise once for all. Elements in lanes stand
at different places, and so are no batch in that sense.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from ampjax.jaxprs.primitives import CUSTOM_CALLS, bind, inner, opened
from ampjax.lanes.rewriting.replaced_equations import (
    Run,
    Values,
    holds,
    in_place,
    type_of_argument,
    with_replaced,
)

LOOKS = ("unvmap_all", "unvmap_any", "unvmap_max")
"""Primitives that join the values of all elements."""

_OTHERS = ("linear_solve", "maybe_set", "nonbatchable", "nontraceable", "select_if_vmap")
"""Primitives that compute, refuse or hide something under `jax.vmap`."""


def looks_at_batch(jaxpr: Any) -> bool:
    """Tells whether a jaxpr holds an equation that looks at a whole batch.

    Args:
      jaxpr: An open jaxpr.
    """
    return holds(jaxpr, (*LOOKS, *_OTHERS))


def run_alone(
    jaxpr: Any,
    constants: Sequence[Any],
    args: Sequence[Any],
) -> Values:
    """Runs an open jaxpr as for one element alone, inside functions with a derivative of the user's own, too.

    Args:
      jaxpr: The jaxpr.
      constants: Values of its constants.
      args: Values of its inputs.

    Returns:
      Values of its outputs.
    """
    on_host = set(_choices_of_host(jaxpr))

    def rule(
        eqn: Any,
        values: Values,
        run: Run,
    ) -> Sequence[Any]:
        if eqn.outvars[0] in on_host:
            return bind(eqn, values)

        def compute(*operands: Any) -> Values:
            results = eqn.primitive.impl(*operands, **eqn.params)
            if eqn.primitive.multiple_results:
                return list(results)
            return [results]

        # what the primitive does without `jax.vmap` may hold more of such equations
        inside = jax.make_jaxpr(compute)(*values)
        body, _ = opened(inside)
        on_host.update(_choices_of_host(body))
        return run(inside, values)

    rules = {
        **dict.fromkeys((*LOOKS, *_OTHERS), rule),
        **dict.fromkeys(CUSTOM_CALLS, in_place),
    }
    return with_replaced(jaxpr, constants, args, rules)


def alone(jaxpr: Any) -> Any:
    """The equations of `run_alone` as a jaxpr with constants, whose inputs are an open jaxpr's constants and then its inputs.

    Args:
      jaxpr: The open jaxpr.
    """
    n = len(jaxpr.constvars)
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    types = [type_of_argument(var.aval) for var in inputs]

    def run(*args: Any) -> Values:
        return run_alone(jaxpr, args[:n], args[n:])

    return jax.make_jaxpr(run)(*types)


def calls_host_once(eqn: Any) -> bool:
    """Tells whether an equation is, or holds, a call of the host that can't be made for several elements.

    Args:
      eqn: The equation.
    """
    if eqn.primitive.name == "pure_callback":
        method = eqn.params["vmap_method"]
        if method is None:
            return True
    inside = [each for body in inner(eqn) for each in body.eqns]
    return any(map(calls_host_once, inside))


def _choices_of_host(jaxpr: Any) -> Iterator[Any]:
    """Yields variables of looks that choose whether the host is called for all: variables that only such calls read."""
    for look in jaxpr.eqns:
        if look.primitive.name in LOOKS:
            (answer, *_) = look.outvars
            readers = list(_readers(jaxpr, answer))
            if readers and all(map(calls_host_once, readers)):
                yield answer
        for body in inner(look):
            yield from _choices_of_host(body)


def _readers(jaxpr: Any, var: Any) -> Iterator[Any]:
    """Yields the equations that read a variable, also by way of another dtype."""
    for eqn in jaxpr.eqns:
        if var in eqn.invars:
            if eqn.primitive.name == "convert_element_type":
                yield from _readers(jaxpr, eqn.outvars[0])
            else:
                yield eqn
