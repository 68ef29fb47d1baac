"""A function, such as the update of an optax transform, as one flat list of primitive operations.

Owns the tracing. It does not know which leaves are tables: `jaxprs.dependence` finds out what that means for the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax
from jax.extend.core import Literal

from ampjax.jaxprs.inlining import inline_calls
from ampjax.jaxprs.primitives import (
    CALLS,
    REMATERIALIZED,
    bind,
    called,
    drop_unneeded,
    evaluate,
    opened,
)

Tree = Any
Var = Any  # jax.extend.core.Var, which type checkers do not take for a type
Equation = Any  # jax.extend.core.JaxprEqn, likewise

_INLINED = (*CALLS, *REMATERIALIZED, "custom_jvp_call", "custom_vjp_call")


@dataclass(frozen=True)
class FlatProgram:
    """A traced function without calls inside: every equation is a primitive operation, dead ones are gone.

    Args:
      equations: In an order in which they can be evaluated.
      inputs: One variable for each input leaf.
      outputs: One variable or literal for each output leaf.
      constants: Variables of arrays that the function closes over, with their values.
      structure: The tree structure of the result.
    """

    equations: tuple[Equation, ...]
    inputs: tuple[Var, ...]
    outputs: tuple[Any, ...]
    constants: dict[Var, Any]
    structure: Any

    @property
    def shapes(self) -> Tree:
        """The shapes and dtypes of the result."""
        avals = (atom.aval for atom in self.outputs)
        leaves = (
            jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type) for aval in avals
        )
        return jax.tree.unflatten(self.structure, leaves)


def trace(function: Callable[..., Tree], *args: Tree) -> FlatProgram:
    """Traces a pure function. Arguments may be `jax.ShapeDtypeStruct`s: nothing is allocated.

    A `cond` becomes both branches and a selection, so branches must be cheap and free of effects, as optax's are.

    Args:
      function: From pytrees to a pytree of arrays.
      args: Its arguments, or their shapes and dtypes.

    Returns:
      The program.
    """
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    flat, values = opened(closed)
    flat = inline_calls(flat)
    if any(
        eqn.primitive.name in (*_INLINED, "cond") for eqn in flat.eqns
    ):  # a trace of hundreds of tables takes long
        whole = (flat, values)
        leaves = jax.tree.leaves(args)
        flat, values = opened(jax.make_jaxpr(lambda *leaves: _evaluate(*whole, leaves))(*leaves))
    alive = drop_unneeded(flat)
    constants = dict(zip(alive.constvars, values, strict=True))
    return FlatProgram(
        tuple(alive.eqns),
        tuple(alive.invars),
        tuple(alive.outvars),
        constants,
        jax.tree.structure(shape),
    )


def trace_update(tx: optax.GradientTransformation, params: Tree, state: Tree) -> FlatProgram:
    """Traces `(grads, state, params) -> (new params, new state)`: the transform's update and its addition to the parameters.

    Args:
      tx: An optax transform.
      params: Parameters, or their shapes; gradients are taken to be like them.
      state: As `tx.init(params)` makes it, or its shapes.

    Returns:
      The program; its inputs are the leaves of gradients, state and parameters.
    """
    step = optax.with_extra_args_support(tx)

    def update(
        grads: Tree,
        state: Tree,
        params: Tree,
    ) -> tuple[Tree, Tree]:
        updates, state = step.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return trace(update, params, state, params)


def is_literal(atom: Any) -> bool:
    """Tells whether an equation's operand, or an output, is a number written into the program.

    Args:
      atom: A variable or a literal.
    """
    return isinstance(atom, Literal)


def _evaluate(
    jaxpr: Any,
    constants: Sequence[Any],
    args: Sequence[Any],
) -> list[Any]:
    """Evaluates a jaxpr, with calls and branches replaced by their bodies."""
    return evaluate(jaxpr, constants, args, _results)


def _results(equation: Equation, operands: list[Any]) -> list[Any]:
    if equation.primitive.name in _INLINED:
        return _evaluate(*opened(called(equation)), operands)
    if (
        equation.primitive.name == "cond"
    ):  # both branches and a choice, which a selection of rows can do as well
        which, *rest = operands
        cases = []
        for branch in equation.params["branches"]:
            cases.append(_evaluate(*opened(branch), rest))
        result = []
        for case in zip(*cases, strict=True):
            result.append(jax.lax.select_n(which, *case))
        return result
    return bind(equation, operands)
