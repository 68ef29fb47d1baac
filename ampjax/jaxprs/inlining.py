"""Small calls in a jaxpr, replaced by their bodies: `jnp.take` and `jnp.where` are functions under `jit` to JAX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np

from ampjax.jaxprs.primitives import called, opened, source_line

MOST_EQUATIONS = 16
"""Equations of a call that is inlined. Larger ones are lowered once, however often they are called."""


def inline_calls(jaxpr: Any) -> Any:
    """An open jaxpr without small calls.

    Returns:
      An equal one; the equations that stay are the same objects.
    """
    if not any(_is_small_call(eqn) for eqn in jaxpr.eqns):
        return jaxpr
    eqns: list[Any] = []
    outs = _add(jaxpr, {}, eqns, None)
    return jaxpr.replace(eqns=eqns, outvars=outs)


def _add(
    jaxpr: Any,
    env: dict[Any, Any],
    eqns: list[Any],
    caller: Any,
) -> list[Any]:
    """Adds the equations of a jaxpr, whose variables may have other names; returns the atoms of its outputs."""

    def name_results(atoms: Sequence[Any]) -> list[Any]:
        result = []
        for atom in atoms:
            result.append(atom if isinstance(atom, jex.Literal) else env.get(atom, atom))
        return result

    for eqn in jaxpr.eqns:
        if _is_small_call(eqn):
            body, _ = opened(called(eqn))
            inside = dict(zip(body.invars, name_results(eqn.invars), strict=True))
            env.update(
                zip(
                    eqn.outvars,
                    _add(
                        body,
                        inside,
                        eqns,
                        caller or eqn,
                    ),
                    strict=True,
                )
            )
        elif caller is None:
            eqns.append(eqn if not env else eqn.replace(invars=name_results(eqn.invars)))
        elif (number := _cast_number(eqn, name_results(eqn.invars))) is not None:
            env[eqn.outvars[0]] = number
        else:  # a body may be called again
            env.update({var: jex.Var(var.aval) for var in eqn.outvars})
            line = eqn.source_info if source_line(eqn) else caller.source_info
            eqns.append(
                eqn.replace(
                    invars=name_results(eqn.invars),
                    outvars=name_results(eqn.outvars),
                    source_info=line,
                )
            )
    return name_results(jaxpr.outvars)


def _cast_number(eqn: Any, atoms: Sequence[Any]) -> Any:
    """Casts a number, if the equation does nothing else, as JAX does during a trace; else None."""
    if eqn.primitive.name != "convert_element_type" or not isinstance(atoms[0], jex.Literal):
        return None
    aval = eqn.outvars[0].aval
    value = np.asarray(atoms[0].val)
    is_real = all(
        jnp.isdtype(kind, ("bool", "real floating", "integral"))
        for kind in (aval.dtype, value.dtype)
    )
    if is_real and not aval.shape:
        return jex.Literal(value.astype(aval.dtype), aval)
    return None


def _is_small_call(eqn: Any) -> bool:
    if eqn.primitive.name not in ("jit", "pjit"):
        return False
    body, constants = opened(called(eqn))
    asked = (*eqn.params["in_shardings"], *eqn.params["out_shardings"])
    says_where = any(type(sharding).__name__ != "UnspecifiedValue" for sharding in asked)
    is_closed = not constants and not body.constvars
    return is_closed and len(body.eqns) <= MOST_EQUATIONS and not eqn.effects and not says_where
