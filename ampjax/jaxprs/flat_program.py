"""An optax transform as one flat list of primitive operations, with a name for every input and output.

Owns the tracing. It does not know which leaves are tables; `jaxprs.program_slices` finds out what that means for the operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax
from jax.extend.core import Literal
from jax.interpreters import partial_eval

Tree = Any
Var = Any  # jax.extend.core.Var, which type checkers do not take for a type
Equation = Any  # jax.extend.core.JaxprEqn, likewise

_INLINED = ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint", "custom_jvp_call", "custom_vjp_call")


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


def trace(function: Callable[..., Tree], *args: Tree) -> FlatProgram:
    """Traces a pure function. Arguments may be `jax.ShapeDtypeStruct`s: nothing is allocated.

    A `cond` becomes both branches and a selection, so branches must be cheap and free of effects, as optax's are.

    Args:
      function: From pytrees to a pytree of arrays.
      args: Its arguments, or their shapes and dtypes.
    """
    called, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    flat = jax.make_jaxpr(lambda *leaves: _evaluate(called.jaxpr, called.consts, leaves))(*jax.tree.leaves(args))
    alive, used = partial_eval.dce_jaxpr(flat.jaxpr, [True] * len(flat.jaxpr.outvars), instantiate=True)
    del used  # `instantiate` keeps all inputs
    constants = dict(zip(alive.constvars, flat.consts, strict=True))
    return FlatProgram(
        tuple(alive.eqns), tuple(alive.invars), tuple(alive.outvars), constants, jax.tree.structure(shape)
    )


def trace_update(tx: optax.GradientTransformation, params: Tree, state: Tree) -> FlatProgram:
    """Traces `(grads, state, params) -> (new params, new state)`: the transform's update and its addition to the parameters.

    Args:
      tx: An optax transform.
      params: Parameters, or their shapes; gradients are taken to be like them.
      state: As `tx.init(params)` makes it, or its shapes.
    """
    step = optax.with_extra_args_support(tx)

    def update(grads: Tree, state: Tree, params: Tree) -> tuple[Tree, Tree]:
        updates, state = step.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return trace(update, params, state, params)


def is_literal(atom: Any) -> bool:
    """Whether an equation's operand, or an output, is a number written into the program."""
    return isinstance(atom, Literal)


def bind(equation: Equation, values: Sequence[Any]) -> list[Any]:
    """The results of one equation on values of the shapes that it was traced with, under the settings with which it was traced."""
    with equation.ctx.manager:
        result = equation.primitive.bind(*values, **equation.primitive.get_bind_params(equation.params))
    return list(result) if equation.primitive.multiple_results else [result]


def _evaluate(jaxpr: Any, constants: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The jaxpr's outputs, with calls and branches replaced by what is in them."""
    values = dict(zip(jaxpr.constvars, constants, strict=True)) | dict(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return atom.val if is_literal(atom) else values[atom]

    for equation in jaxpr.eqns:
        results = _results(equation, [read(atom) for atom in equation.invars])
        values.update(zip(equation.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _results(equation: Equation, operands: list[Any]) -> list[Any]:
    if equation.primitive.name in _INLINED:
        inner = equation.params["jaxpr"] if "jaxpr" in equation.params else equation.params["call_jaxpr"]
        return _evaluate(*opened(inner), operands)
    if equation.primitive.name == "cond":  # both branches and a choice, which a selection of rows can do as well
        which, *rest = operands
        cases = [_evaluate(*opened(branch), rest) for branch in equation.params["branches"]]
        return [jax.lax.select_n(which, *case) for case in zip(*cases, strict=True)]
    return bind(equation, operands)


def opened(jaxpr: Any) -> tuple[Any, Sequence[Any]]:
    """A jaxpr and its constants; there are none where it is not closed."""
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else (jaxpr, ())
