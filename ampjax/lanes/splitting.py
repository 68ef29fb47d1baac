"""The equations that become blocks: loops and costly choices that depend on the element, and equations that hold such a loop or choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.extend.core as jex

from ampjax.jaxprs.primitives import (
    CALLS,
    CUSTOM_CALLS,
    REMATERIALIZED,
    called,
    inner,
    opened,
    scan_parts,
    while_parts,
)
from ampjax.lanes.rewriting.whole_batches import LOOKS, calls_host_once

INLINED = (*CALLS, *REMATERIALIZED, *CUSTOM_CALLS)
"""Calls that compute what the jaxpr that they call computes."""

DEAR = 1000
"""Numbers that the branches of a choice compute, from which on it is worth a block of its own; with fewer, both branches are computed."""

_PER_RESULT = {
    "random_bits": 100,
    "threefry2x32": 100,
    "erf_inv": 20,
    "sort": 20,
}
_WHOLE = ("cholesky", "lu", "qr", "eigh", "svd", "triangular_solve", "schur")


def sees_all(eqn: Any) -> bool:
    """Tells whether an equation sees all lanes at once: a call of the host, or one of equinox's looks at a whole batch of `jax.vmap`.

    Args:
      eqn: The equation.
    """
    name = eqn.primitive.name
    if name.endswith("callback") or name in LOOKS:
        return True
    inside = [each for body in inner(eqn) for each in body.eqns]
    return any(map(sees_all, inside))


def splits(eqn: Any, varies: Sequence[bool]) -> bool:
    """Tells whether an equation becomes blocks.

    Args:
      eqn: The equation.
      varies: By operand, whether elements have different values of it.
    """
    return _study(eqn, varies)[1]


def _study(
    eqn: Any,
    varies: Sequence[bool],
) -> tuple[list[bool], bool]:
    """Finds whether each result varies from element to element, and whether the equation becomes blocks."""
    name = eqn.primitive.name
    if name == "while":
        return _study_while(eqn, varies)
    if name == "scan":
        return _study_scan(eqn, varies)
    if name == "cond":
        return _study_cond(eqn, varies)
    if name in INLINED:
        return _study_jaxpr(called(eqn), varies)
    return [any(varies)] * len(eqn.outvars), False


def _study_jaxpr(
    jaxpr: Any,
    varies: Sequence[bool],
) -> tuple[list[bool], bool]:
    """As `_study`, for a jaxpr."""
    body, _ = opened(jaxpr)
    known = dict(zip(body.invars, varies, strict=True))

    def read(atom: Any) -> bool:
        return not isinstance(atom, jex.Literal) and known.get(atom, False)

    is_split = False
    for eqn in body.eqns:
        operands = [read(atom) for atom in eqn.invars]
        results, here = _study(eqn, operands)
        known.update(zip(eqn.outvars, results, strict=True))
        is_split |= here
    return [read(atom) for atom in body.outvars], is_split


def _study_while(
    eqn: Any,
    varies: Sequence[bool],
) -> tuple[list[bool], bool]:
    """Goes round until no more of the carry varies."""
    asked, closed, carry = while_parts(eqn, varies)
    tested = eqn.params["cond_jaxpr"]
    repeated = eqn.params["body_jaxpr"]
    while True:
        test, in_test = _study_jaxpr(tested, [*asked, *carry])
        after, in_body = _study_jaxpr(repeated, [*closed, *carry])
        joined = _either(carry, after)
        if test[0]:
            return [True] * len(carry), True
        if joined == carry:
            return carry, in_test or in_body
        carry = joined


def _study_scan(
    eqn: Any,
    varies: Sequence[bool],
) -> tuple[list[bool], bool]:
    """Goes round until no more of the carry varies."""
    closed, carry, rows = scan_parts(eqn, varies)
    repeated = eqn.params["jaxpr"]
    n = len(carry)
    while True:
        after, is_split = _study_jaxpr(repeated, [*closed, *carry, *rows])
        joined = _either(carry, after[:n])
        if joined == carry:
            runs = eqn.params["length"] > 0
            return [*carry, *after[n:]], is_split and runs
        carry = joined


def _study_cond(
    eqn: Any,
    varies: Sequence[bool],
) -> tuple[list[bool], bool]:
    """Joins the findings of all branches."""
    results = [varies[0]] * len(eqn.outvars)
    is_split = False
    cost = 0.0
    for branch in eqn.params["branches"]:
        found, here = _study_jaxpr(branch, varies[1:])
        results = _either(results, found)
        is_split |= here
        cost += work(opened(branch)[0])
    # one look at all elements chooses whether the host is called once for all
    is_dear = cost >= DEAR and not calls_host_once(eqn)
    return results, is_split or (varies[0] and is_dear)


def _either(
    one: Sequence[bool],
    other: Sequence[bool],
) -> list[bool]:
    """Joins two findings: a value varies if one of the findings says so."""
    return [a or b for a, b in zip(one, other, strict=True)]


def work(jaxpr: Any) -> float:
    """A rough count of the numbers that a jaxpr computes for one element.

    Args:
      jaxpr: An open jaxpr.
    """
    total = 0.0
    for eqn in jaxpr.eqns:
        size = 0
        for var in eqn.outvars:
            shape = getattr(var.aval, "shape", ())
            size += math.prod(shape)
        name = eqn.primitive.name
        trips = eqn.params["length"] if name == "scan" else 1
        inside = list(inner(eqn))
        if inside:
            total += trips * sum(map(work, inside))
        elif name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            shape = eqn.invars[0].aval.shape
            n_terms = math.prod(shape[axis] for axis in contracted)
            total += size * n_terms / 4
        elif name in _WHOLE:
            shape = eqn.invars[0].aval.shape
            total += math.prod(shape) ** 1.5
        else:
            each = _PER_RESULT.get(name, 1)
            total += size * each
    return total
