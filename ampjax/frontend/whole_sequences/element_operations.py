"""Operations of JAX on whole sequences that do the same to each element: the operation on one element. Knows JAX's primitives, and no rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from ampjax.jaxprs.primitives import CALLS, bind, called, evaluate, jvp_rule, opened
from ampjax.jaxprs.rowwise import ELEMENTWISE

Params = dict[str, Any]

Shifted = Callable[[Any], "Params | None"]
"""From an equation to the parameters of the same operation on one element; None where that is another operation."""


class NotByElementError(Exception):
    """An operation that looks at more than one element."""


def on_elements(
    equation: Any,
    operands: Sequence[Any],
) -> list[Any]:
    """The results of an equation for one element of each sequence.

    Args:
      equation: JAX's equation, some of whose types have a symbolic first axis.
      operands: For each such operand an element, for any other its value.

    Raises:
      NotByElementError: If the operation is none that does the same to each element.
    """
    if not any(
        map(
            is_long,
            (*equation.invars, *equation.outvars),
        )
    ):
        return bind(equation, operands)
    name = equation.primitive.name
    if name in CALLS:
        jaxpr, constants = opened(called(equation))
        return evaluate(jaxpr, constants, operands, on_elements)
    if name == "custom_jvp_call":
        return _with_rule(equation, operands)
    shifted = _SHIFTED.get(name)
    params = (
        shifted(equation)
        if shifted
        and all(
            map(
                is_long,
                equation.outvars,
            )
        )
        else None
    )
    if params is None:
        raise NotByElementError(name)
    given = []
    for variable, value in zip(equation.invars, operands, strict=True):
        given.append(_aligned(equation, variable, value))
    return bind(equation.replace(params=params), given)


def is_long(variable: Any) -> bool:
    """Whether a variable is a sequence whose length is each example's own."""
    shape = variable.aval.shape
    return bool(shape) and not isinstance(shape[0], int)


def _aligned(equation: Any, variable: Any, value: Any) -> Any:
    """Returns an operand of the element's operation: leaves out an axis of length one that stands beside the elements."""
    shape = variable.aval.shape
    same_rank = len(shape) == len(equation.outvars[0].aval.shape)
    is_beside = equation.primitive.name in ELEMENTWISE and same_rank
    if is_long(variable) or not shape or not is_beside:
        return value
    return value[0]


def _with_rule(
    equation: Any,
    operands: Sequence[Any],
) -> list[Any]:
    """The results of a function that has a derivative of its own, with that derivative."""
    n = equation.params["num_consts"]
    jaxpr, constants = opened(called(equation))
    rule, rule_constants, are_zero = jvp_rule(equation)
    closed = list(operands[:n])

    @jax.custom_jvp
    def function(*inputs: Any) -> list[Any]:
        return evaluate(jaxpr, constants, [*closed, *inputs], on_elements)

    def derivative(
        primals: Sequence[Any],
        tangents: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:
        moving = []
        for primal, tangent in zip(primals, tangents, strict=True):
            if jax.numpy.issubdtype(primal.dtype, jax.numpy.inexact):
                moving.append(tangent)
        results = evaluate(rule, rule_constants, [*primals, *moving], on_elements)
        outputs = results[: len(are_zero)]
        changes = iter(results[len(are_zero) :])
        return outputs, [
            jax.numpy.zeros_like(value) if is_zero else next(changes)
            for value, is_zero in zip(outputs, are_zero, strict=True)
        ]

    function.defjvp(derivative)
    return function(*operands[n:])


# -- parameters of the same operation on one element


def _as_it_is(equation: Any) -> Params:
    return equation.params


def _axis(name: str) -> Shifted:
    """Parameters with a single axis, which is not the elements'."""

    def shifted(equation: Any) -> Params | None:
        axis = equation.params[name]
        if axis == 0:
            return None
        return {**equation.params, name: axis - 1}

    return shifted


def _axes(name: str) -> Shifted:
    """Parameters with several axes, of which none is the elements'."""

    def shifted(equation: Any) -> Params | None:
        axes = tuple(equation.params[name])
        if 0 in axes:
            return None
        return {**equation.params, name: _less(axes)}

    return shifted


def _less(axes: Sequence[int]) -> tuple[int, ...]:
    return tuple(axis - 1 for axis in axes)


def _broadcast(equation: Any) -> Params | None:
    axes = equation.params["broadcast_dimensions"]
    variable = equation.invars[0]
    if is_long(variable) != (0 in axes):
        return None
    kept = tuple(axis for axis in axes if axis)
    shape = equation.params["shape"][1:]
    return {**equation.params, "shape": shape, "broadcast_dimensions": _less(kept)}


def _reshape(equation: Any) -> Params | None:
    sizes = equation.params["new_sizes"]
    shape = equation.invars[0].aval.shape
    if not is_long(equation.invars[0]) or sizes[0] != shape[0]:
        return None
    return {**equation.params, "new_sizes": sizes[1:]}


def _transpose(equation: Any) -> Params | None:
    first, *others = equation.params["permutation"]
    if first:
        return None
    return {**equation.params, "permutation": _less(others)}


def _iota(equation: Any) -> Params | None:
    shifted = _axis("dimension")(equation)
    return shifted and {**shifted, "shape": shifted["shape"][1:]}


def _slice(equation: Any) -> Params | None:
    params = equation.params
    start, *starts = params["start_indices"]
    limit, *limits = params["limit_indices"]
    step, *steps = params["strides"] or [1] * (1 + len(starts))
    if start or step != 1 or limit != equation.invars[0].aval.shape[0]:
        return None
    return {
        "start_indices": tuple(starts),
        "limit_indices": tuple(limits),
        "strides": tuple(steps),
    }


def _pad(equation: Any) -> Params | None:
    first, *others = equation.params["padding_config"]
    if any(first):
        return None
    return {"padding_config": tuple(others)}


def _product(equation: Any) -> Params | None:
    params = equation.params
    contracted, batched = params["dimension_numbers"]
    left, right = map(tuple, contracted)
    left_batch, right_batch = map(tuple, batched)
    first, second = map(is_long, equation.invars)
    if left_batch:
        if not (first and second) or left_batch[0] or right_batch[0]:
            return None
        left_batch = _less(left_batch[1:])
        right_batch = _less(right_batch[1:])
        left = _less(left)
        right = _less(right)
    elif first:  # a second sequence is one from outside, as a whole
        if 0 in left:
            return None
        left = _less(left)
    else:
        if 0 in right or len(left) != len(equation.invars[0].aval.shape):
            return None
        right = _less(right)
    return {
        **params,
        "dimension_numbers": ((left, right), (left_batch, right_batch)),
    }


def _gather(equation: Any) -> Params | None:
    params = equation.params
    numbers = params["dimension_numbers"]
    operand, indices = map(is_long, equation.invars)
    if operand and indices:
        return _gather_in_each(params)
    if numbers.operand_batching_dims or not (operand or indices):
        return None
    if indices:  # rows of an array, by the numbers that a sequence holds
        if 0 in numbers.offset_dims:
            return None
        shifted = replace_numbers(numbers, offset_dims=_less(numbers.offset_dims))
        return {**params, "dimension_numbers": shifted}
    is_apart = 0 in numbers.start_index_map or 0 in numbers.collapsed_slice_dims
    if is_apart or not numbers.offset_dims or numbers.offset_dims[0]:
        return None
    shifted = replace_numbers(
        numbers,
        offset_dims=_less(numbers.offset_dims[1:]),
        collapsed_slice_dims=_less(numbers.collapsed_slice_dims),
        start_index_map=_less(numbers.start_index_map),
    )
    return {
        **params,
        "dimension_numbers": shifted,
        "slice_sizes": params["slice_sizes"][1:],
    }


def _gather_in_each(params: Params) -> Params | None:
    """Reads in each element of a sequence, by numbers from the same element of another one: `jnp.take_along_axis`."""
    numbers = params["dimension_numbers"]
    pairs = zip(
        numbers.operand_batching_dims,
        numbers.start_indices_batching_dims,
        strict=True,
    )
    first, *others = sorted(pairs) or [(1, 1)]
    if first != (0, 0) or 0 in numbers.offset_dims:
        return None
    shifted = replace_numbers(
        numbers,
        offset_dims=_less(numbers.offset_dims),
        collapsed_slice_dims=_less(numbers.collapsed_slice_dims),
        start_index_map=_less(numbers.start_index_map),
        operand_batching_dims=_less([axis for axis, _ in others]),
        start_indices_batching_dims=_less([axis for _, axis in others]),
    )
    return {
        **params,
        "dimension_numbers": shifted,
        "slice_sizes": params["slice_sizes"][1:],
    }


def replace_numbers(numbers: Any, **changes: Any) -> Any:
    """Replaces some of JAX's dimension numbers, in a named tuple or a data class."""
    return (
        numbers._replace(**changes)
        if hasattr(
            numbers,
            "_replace",
        )
        else replace(numbers, **changes)
    )


_SHIFTED: Mapping[str, Shifted] = {
    **dict.fromkeys(ELEMENTWISE, _as_it_is),
    **dict.fromkeys(
        ["reduce_sum", "reduce_max", "reduce_min", "reduce_prod"],
        _axes("axes"),
    ),
    **dict.fromkeys(
        ["reduce_and", "reduce_or", "argmax", "argmin"],
        _axes("axes"),
    ),
    **dict.fromkeys(
        ["cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"],
        _axis("axis"),
    ),
    **dict.fromkeys(["concatenate", "sort"], _axis("dimension")),
    **dict.fromkeys(["split", "stack"], _axis("axis")),
    **dict.fromkeys(["squeeze", "rev"], _axes("dimensions")),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "iota": _iota,
    "slice": _slice,
    "pad": _pad,
    "dot_general": _product,
    "gather": _gather,
}
