"""Random draws in a loss function: the sources of their keys, and the same program without randomness.

Knows jaxprs; nothing of replicas, tables or training.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Literal
from jax.extend.core import primitives as prim

from ampjax.errors import SettingsError
from ampjax.jaxprs import primitives
from ampjax.sparse.detection.findings import NOTHING, Draw, EquationPlace, Value
from ampjax.sparse.detection.loss_jaxpr import TracedLoss
from ampjax.sparse.detection.table_flow import TableFlow

DRAWN_NUMBER = 0.1
"""The number in [0, 1) that stands for every draw. It is low, so that dropout keeps what it would keep nine times out of ten. It is not
the middle, where a normal draw is zero and hides what it is multiplied with."""


def draws_of(traced: TracedLoss) -> list[Draw]:
    """Finds the random draws of a loss function.

    Returns:
      The draws in their order, each with the numbers of the batch's leaves from which its key follows.
    """
    flow = TableFlow()
    n_params = len(traced.leaves)
    batch: list[Value] = []
    for i in range(len(traced.jaxpr.invars) - n_params):
        batch.append(frozenset({i}))
    flow.run(
        traced.jaxpr,
        [*[NOTHING] * n_params, *batch],
        EquationPlace(),
    )
    return [draw for _, draw in sorted(flow.draws.items())]


def without_randomness(traced: TracedLoss) -> TracedLoss:
    """The loss function with one number in the place of every random draw, and without prints.

    It treats all examples alike, so that its loss can be compared where batches are cut.

    Raises:
      SettingsError: If it draws in a `while` loop, which may wait for other numbers; if it draws in a way that is not known; or if it
        calls the host.
    """
    jaxpr = _deterministic(traced.jaxpr)
    if jaxpr is traced.jaxpr:
        return traced
    return dataclasses.replace(traced, jaxpr=jaxpr)


def _deterministic(jaxpr: Any) -> Any:
    """Removes chance from a jaxpr, or from a parameter that holds jaxprs: the same object where there was none."""
    if type(jaxpr) in (tuple, list):  # of branches, for example; named tuples are something else
        each = [_deterministic(one) for one in jaxpr]
        return jaxpr if _are_same(each, jaxpr) else type(jaxpr)(each)
    if hasattr(jaxpr, "jaxpr") and hasattr(jaxpr.jaxpr, "eqns") and jaxpr.jaxpr is not jaxpr:
        inner = _deterministic(jaxpr.jaxpr)
        return jaxpr if inner is jaxpr.jaxpr else jaxpr.replace(jaxpr=inner)
    if not hasattr(jaxpr, "eqns"):
        return jaxpr
    heard = []
    for eqn in jaxpr.eqns:
        if eqn.outvars or eqn.primitive.name not in primitives.CALLBACKS:
            heard.append(eqn)
    eqns = [_deterministic_equation(eqn) for eqn in heard]
    is_same = _are_same(eqns, jaxpr.eqns) and _silent(jaxpr.effects) == jaxpr.effects
    if is_same:
        return jaxpr
    return jaxpr.replace(eqns=eqns, effects=_silent(jaxpr.effects))


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    """Tells whether two sequences hold the same objects."""
    return len(some) == len(others) and all(map(operator.is_, some, others))


def _deterministic_equation(eqn: Any) -> Any:
    name = eqn.primitive.name
    if name == "random_bits":
        return _constant(eqn)
    if name == "random_gamma":  # its mean
        return eqn.replace(
            primitive=prim.copy_p,
            invars=eqn.invars[1:],
            params={},
        )
    if name in primitives.DRAWS or name == "io_callback":
        raise SettingsError(
            "loss_fn", "draws by `jax.random` and no `io_callback`", f"`{name}`", _FIX
        )
    if eqn.primitive is prim.while_p and _draws(eqn):
        raise SettingsError("loss_fn", "no random draws in a `while` loop", "some", _FIX)
    if not any(primitives.inner(eqn)):
        return eqn
    params = {key: _deterministic(value) for key, value in eqn.params.items()}
    if _are_same([*params.values()], [*eqn.params.values()]):
        return eqn
    return eqn.replace(params=params, effects=_silent(eqn.effects))


def _silent(effects: Any) -> Any:
    """Removes the effects of prints."""
    return frozenset(effect for effect in effects if "Debug" not in type(effect).__name__)


_FIX = "Compare losses of a program without it."


def _draws(eqn: Any) -> bool:
    """Tells whether something in an equation draws random numbers."""
    return eqn.primitive.name in primitives.DRAWS or any(
        _draws(each) for jaxpr in primitives.inner(eqn) for each in jaxpr.eqns
    )


def _constant(eqn: Any) -> Any:
    """An equation that gives `DRAWN_NUMBER`, as bits, in the place of a draw."""
    aval = eqn.outvars[0].aval
    number = np.dtype(aval.dtype).type(int(DRAWN_NUMBER * 2 ** (8 * aval.dtype.itemsize)))
    literal = Literal(number, ShapedArray((), aval.dtype))
    params = {"shape": aval.shape, "broadcast_dimensions": (), "sharding": None}
    return eqn.replace(
        primitive=prim.broadcast_in_dim_p,
        invars=[literal],
        params=params,
    )
