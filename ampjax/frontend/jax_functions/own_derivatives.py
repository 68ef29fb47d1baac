"""Functions with a derivative of the user's own, `jax.custom_jvp`, `jax.custom_vjp` and linear solves, of one element of each sequence. Knows no rows.

Both the function and its derivative have to do the same to each element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.draft.long_axes import is_sequence, long_axis, without_axis
from ampjax.jaxprs.primitives import (
    bind,
    called,
    drop_unneeded,
    evaluate,
    inputs_read,
    is_anywhere,
    is_inexact,
    jvp_rule,
    opened,
    variables,
)

Results = Callable[[Any, list[Any]], list[Any]]
"""From an equation of a function of sequences, and the values of its operands for one element, to its results for this element."""


_IS_CHECKED: ContextVar[bool] = ContextVar("derivatives_are_checked", default=True)


class NotByElementError(Exception):
    """An operation that looks at more than one element."""


def with_jvp(
    equation: Any,
    operands: Sequence[Any],
    inside: Results,
) -> list[Any]:
    """The results of a `jax.custom_jvp`, with its derivative.

    Args:
      equation: The call.
      operands: For each operand an element, or its value if it is no sequence.
      inside: The results of its equations.
    """
    n = equation.params["num_consts"]
    jaxpr, constants = opened(called(equation))
    rule, rule_constants, are_zero = jvp_rule(equation)
    closed = list(operands[:n])

    @jax.custom_jvp
    def function(*inputs: Any) -> list[Any]:
        return evaluate(
            jaxpr,
            constants,
            [*closed, *inputs],
            inside,
        )

    def derivative(
        primals: Sequence[Any],
        tangents: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:
        moving = []
        for primal, tangent in zip(
            primals,
            tangents,
            strict=True,
        ):
            if is_inexact(primal.dtype):
                moving.append(tangent)
        results = evaluate(
            rule,
            rule_constants,
            [*primals, *moving],
            inside,
        )
        outputs = results[: len(are_zero)]
        changes = iter(results[len(are_zero) :])
        return outputs, [
            jnp.zeros_like(value) if is_zero else next(changes)
            for value, is_zero in zip(
                outputs,
                are_zero,
                strict=True,
            )
        ]

    function.defjvp(derivative)
    _check(derivative, operands[n:], operands[n:])
    return function(*operands[n:])


def with_vjp(
    equation: Any,
    operands: Sequence[Any],
    inside: Results,
) -> list[Any]:
    """The results of a `jax.custom_vjp`, with its derivative; the backward pass repeats the forward pass.

    Args:
      equation: The call.
      operands: For each operand an element, or its value if it is no sequence.
      inside: The results of its equations.
    """
    types = []
    moving = []
    for number, atom in enumerate(equation.invars):
        types.append(_type_of(atom))
        if is_inexact(atom.aval.dtype):
            moving.append(number)
    has_change = [is_inexact(atom.aval.dtype) for atom in equation.outvars]

    def differentiated(inputs: Sequence[Any], wanted: Sequence[bool]) -> tuple[Any, Any]:
        def of_moving(*values: Any) -> list[Any]:
            given = dict(zip(moving, values, strict=True))
            results = bind(
                equation,
                [given.get(i, value) for i, value in enumerate(inputs)],
            )
            return [each for each, is_wanted in zip(results, wanted, strict=True) if is_wanted]

        return jax.vjp(of_moving, *[inputs[i] for i in moving])

    def forward(*inputs: Any) -> Any:
        return differentiated(inputs, [True] * len(has_change))[0]

    def backward(inputs: Sequence[Any], changes: Sequence[Any]) -> Any:
        return differentiated(inputs, has_change)[1](changes)

    changed = [_type_of(atom) for atom in equation.outvars if is_inexact(atom.aval.dtype)]
    jaxpr, constants = opened(called(equation))

    @jax.custom_vjp
    def function(*inputs: Any) -> list[Any]:
        return evaluate(jaxpr, constants, inputs, inside)

    def go_ahead(*inputs: Any) -> tuple[list[Any], Sequence[Any]]:
        ahead, ahead_constants = opened(jax.make_jaxpr(forward)(*types))
        return evaluate(ahead, ahead_constants, inputs, inside), inputs

    def go_back(inputs: Sequence[Any], changes: Sequence[Any]) -> tuple[Any, ...]:
        given = [each for each, is_given in zip(changes, has_change, strict=True) if is_given]
        found = _by_element(
            backward,
            (types, changed),
            [types[i] for i in moving],
            inside,
            [*inputs, *given],
        )
        by_number = dict(zip(moving, found, strict=True))
        return tuple(by_number.get(i) for i in range(len(inputs)))

    function.defvjp(go_ahead, go_back)
    _check(
        lambda *inputs: go_back(inputs, go_ahead(*inputs)[0]),
        *operands,
    )
    return function(*operands)


def solved(
    equation: Any,
    operands: Sequence[Any],
    inside: Results,
) -> list[Any]:
    """The results of `jax.lax.custom_linear_solve`, the part of `jnp.linalg.solve` with a derivative.

    Args:
      equation: The call.
      operands: For each operand an element, or its value if it is no sequence.
      inside: The results of its equations.
    """
    jaxprs = equation.params["jaxprs"]
    closed: dict[str, list[Any]] = {}
    right = list(operands)
    for name, n in zip(jaxprs._fields, equation.params["const_lengths"], strict=True):
        closed[name] = right[:n]
        right = right[n:]

    def solving(name: str) -> Callable[..., Any]:
        jaxpr, constants = opened(getattr(jaxprs, name))
        return lambda *values: evaluate(
            jaxpr,
            constants,
            [*closed[name], *values[-1]],
            inside,
        )

    return jax.lax.custom_linear_solve(
        solving("matvec"),
        right,
        solving("solve"),
        None if jaxprs.transpose_solve is None else solving("transpose_solve"),
    )


def _check(derivative: Callable[..., Any], *operands: Any) -> None:
    """Checks that a derivative does the same to each element: JAX would look at the derivative in `jax.grad`, too late to name the user's line.

    Raises:
      NotByElementError: If it does not.
    """
    if not _IS_CHECKED.get():
        return
    # a rule calls its own function, which has the rule
    token = _IS_CHECKED.set(False)
    try:
        jaxpr, _ = opened(jax.make_jaxpr(derivative)(*operands))
    finally:
        _IS_CHECKED.reset(token)
    if is_anywhere(jaxpr, lambda equation: equation.primitive.name == "dim_as_value"):
        raise NotByElementError("dim_as_value")


def _type_of(atom: Any) -> Any:
    return jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype)


def _by_element(
    backward: Callable[..., Any],
    given: Sequence[Any],
    types: Sequence[Any],
    inside: Results,
    values: Sequence[Any],
) -> list[Any]:
    """The results of a backward pass for one element; a sum over the elements gives the element's summand.

    Args:
      backward: The backward pass of whole sequences.
      given: The types of its arguments.
      types: The types of its results.
      inside: The results of its equations.
      values: The arguments for one element.
    """
    jaxpr, constants = opened(jax.make_jaxpr(backward)(*given))
    makers = {}
    read: set[Any] = set()
    for equation in jaxpr.eqns:
        makers |= dict.fromkeys(equation.outvars, equation)
        read |= variables(equation.invars)
    sums = []
    for number, (atom, kind) in enumerate(zip(jaxpr.outvars, types, strict=True)):
        if is_sequence(kind):
            continue
        alone = jax.make_jaxpr(lambda *every, number=number: backward(*every)[number])
        if _is_zero(alone(*given)):
            continue
        maker = makers.get(atom)
        if maker is None or atom in read or not _adds_elements(maker):
            raise NotByElementError("custom_vjp_call")
        sums.append(maker)

    def results(equation: Any, operands: list[Any]) -> list[Any]:
        if not any(equation is each for each in sums):
            return inside(equation, operands)
        long = long_axis(equation.invars[0].aval)
        assert long is not None
        axes = without_axis(equation.params["axes"], long)
        return [jnp.sum(operands[0], axes)]

    return evaluate(jaxpr, constants, values, results)


def _adds_elements(equation: Any) -> bool:
    """Whether an equation sums over the elements of a sequence."""
    if equation.primitive.name != "reduce_sum":
        return False
    return long_axis(equation.invars[0].aval) in equation.params["axes"]


def _is_zero(function: Any) -> bool:
    """Whether a function gives zeros for all operands.

    Args:
      function: Its jaxpr, of one result.
    """
    jaxpr, constants = opened(function)
    if any(inputs_read(jaxpr)):
        return False
    needed = drop_unneeded(jaxpr)
    with jax.ensure_compile_time_eval():
        blanks = [None] * len(needed.invars)
        (found,) = evaluate(needed, constants, blanks, bind)
    return not np.any(found)


OWN_DERIVATIVES: Mapping[str, Callable[[Any, Sequence[Any], Results], list[Any]]] = {
    "custom_jvp_call": with_jvp,
    "custom_vjp_call": with_vjp,
    "custom_linear_solve": solved,
}
"""By the name of JAX's call, from the call, its operands for one element and the results of its equations to its results."""
