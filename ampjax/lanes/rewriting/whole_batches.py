"""Equations that look at a whole batch of `jax.vmap`, replaced by their results for one element alone.

Equinox has them, and with it diffrax, optimistix and lineax: loops that go on until the last element is done, checks that raise once for all. Elements in lanes stand
at different places, and so are no batch in that sense.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from ampjax.jaxprs.primitives import CUSTOM_CALLS, bind, inner, opened
from ampjax.lanes.rewriting.replaced_equations import Run, Values, holds, in_place, with_replaced

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
    kept = set(_choices_of_host(jaxpr))

    def rule(eqn: Any, values: Values, run: Run) -> Sequence[Any]:
        if eqn.outvars[0] in kept:
            return bind(eqn, values)

        def compute(*operands: Any) -> Values:
            found = eqn.primitive.impl(*operands, **eqn.params)
            return list(found) if eqn.primitive.multiple_results else [found]

        # what the primitive does without `jax.vmap` may hold more of such equations
        inside = jax.make_jaxpr(compute)(*values)
        kept.update(_choices_of_host(opened(inside)[0]))
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
    types = []
    for var in (*jaxpr.constvars, *jaxpr.invars):
        aval = var.aval
        types.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type))
    return jax.make_jaxpr(lambda *args: run_alone(jaxpr, args[:n], args[n:]))(*types)


def calls_host_once(eqn: Any) -> bool:
    """Tells whether an equation is, or holds, a call of the host that can't be made for several elements.

    Args:
      eqn: The equation.
    """
    if eqn.primitive.name == "pure_callback" and eqn.params["vmap_method"] is None:
        return True
    return any(calls_host_once(each) for body in inner(eqn) for each in body.eqns)


def _choices_of_host(jaxpr: Any) -> Iterator[Any]:
    """Yields variables of looks that choose whether the host is called for all: variables that only such calls read."""
    for look in jaxpr.eqns:
        if look.primitive.name in LOOKS:
            readers = list(_readers(jaxpr, look.outvars[0]))
            if readers and all(calls_host_once(eqn) for eqn in readers):
                yield look.outvars[0]
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
