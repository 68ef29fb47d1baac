"""JAX's own operations on whole sequences that become steps: of each element, turned around, summed up, cut and put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batch_rules import sequence_parts, sequence_slices
from ampjax.frontend.batch_rules.element_operations import NotByElementError, on_elements
from ampjax.frontend.batch_rules.reduction_steps import segment_max, segments
from ampjax.frontend.batch_rules.sequence_steps import of_each, scan, sequences
from ampjax.frontend.batches.room_bodies import Body, element_type, is_sequence, type_of_atom
from ampjax.frontend.batches.row_lowering import SequenceRule, Value
from ampjax.frontend.combinators.sequences import least
from ampjax.frontend.combinators.tracing import Call, Traced, trace
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.frontend.draft.values import Constant, Elements, Static
from ampjax.frontend.rules.sequence_rules import elements_space
from ampjax.jaxprs.primitives import bind


def rev(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """The elements from the last to the first; None along another axis."""
    (xs,) = values
    if equation.source.params["dimensions"] != (0,):
        return None
    space = xs.space

    def origin(data: Any) -> np.ndarray:
        around = space.parents(data)
        return space.starts(data)[around] + space.lengths(data)[around] - 1 - space.numbers(data)

    return [Elements(space, body.low.value_at(xs.element, space, space, origin, "turned"))]


def reduced(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """What `sum`, `max`, `argmax` and the like give over the elements, and over other axes as well; None over other axes alone."""
    (xs,) = values
    source = equation.source
    axes = tuple(source.params["axes"])
    kind = equation.outputs[0].aval
    if 0 not in axes:
        return None
    one = element_type(type_of_atom(equation.inputs[0]))
    if len(axes) > 1:
        others = tuple(axis - 1 for axis in axes if axis)
        each = source.replace(params={**source.params, "axes": others})
        traced, _, results = trace(lambda x: bind(each, [x]), one)
        (xs,) = _mapped(body, xs.space, traced, [xs.element])
        (one,) = results
    if isinstance(xs.element, Elements):
        return None
    return [segments(body, _SEGMENTS[source.primitive.name], xs, kind, one)]


def _mapped(
    body: Body,
    space: IndexSpace,
    function: Traced,
    values: Sequence[Value],
) -> list[Elements]:
    """The sequences of what a function gives for each element of a space."""
    inner = body.inside(space)
    results = body.guarded(inner.room, lambda inside: inside.run(function, values))
    found = []
    for value, variable in zip(results, function.jaxpr.outvars, strict=True):
        found.append(Elements(space, of_each(inner, value, variable.aval)))
    return found


def _sum(values: Any, ids: Any, n: int) -> Any:
    return jax.ops.segment_sum(values, ids, n, indices_are_sorted=True)


def _argmax(values: Any, ids: Any, n: int) -> Any:
    """The number of each segment's largest entry, the first of equal ones; NaN counts as larger than all."""
    values = jax.lax.stop_gradient(values)
    if jnp.issubdtype(values.dtype, jnp.inexact):
        values = jnp.where(jnp.isnan(values), jnp.inf, values)
    of_rows = segment_max(values, ids, n).at[ids].get(mode="clip")
    number = jnp.arange(len(ids)) - jnp.searchsorted(ids, ids)
    number = jnp.broadcast_to(
        number.reshape(
            -1,
            *(1,) * (values.ndim - 1),
        ),
        values.shape,
    )
    found = segment_max(
        jnp.where(values == of_rows, -number, least(number.dtype)),
        ids,
        n,
    )
    return jnp.maximum(-found, 0)


def _argmin(values: Any, ids: Any, n: int) -> Any:
    return _argmax(_turned(values), ids, n)


def lengths(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value]:
    """A length, or an expression of lengths, as a number."""
    dimension = str(equation.source.params["dim"])
    column = body.low.lengths.values(dimension, body.space, [], equation.line)
    kind = equation.outputs[0].aval.dtype
    return [Static(Column(column.space, lambda data: column.of(data).astype(kind)))]


def numbered(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """The numbers of a sequence's elements; None along another axis."""
    (name,) = equation.outputs
    if equation.source.params["dimension"] or len(name.aval.shape) != 1:
        return None
    space = body.low.lengths.space(str(name.aval.shape[0]), body.space, [], equation.line)
    kind = name.aval.dtype
    return [Elements(space, Static(Column(space, lambda data: space.numbers(data).astype(kind))))]


def accumulated(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """What `cumsum` and `cumprod` give along the elements: a loop; None along another axis."""
    source = equation.source
    operate, start = _ACCUMULATED[source.primitive.name]
    kind = equation.outputs[0].aval
    one = element_type(kind)
    if source.params["axis"] or is_sequence(one):
        return None

    def step(total: Any, x: Any) -> tuple[Any, Any]:
        return operate(total, x), operate(total, x)

    traced = trace(step, one, one)[0]
    first = Constant(np.full(one.shape, start, one.dtype))
    options = {"n_carry": 1, "reverse": source.params["reverse"]}
    call = Call("scan", [one, kind], (traced,), (0,), equation.line, options)
    return scan(body, call, [first, *values])[1:]


def by_element(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """An operation that does the same to each element, as a `map`; None if it does not."""
    kinds = [type_of_atom(atom) for atom in equation.inputs]
    outputs = [name.aval for name in equation.outputs]
    if not all(map(is_sequence, outputs)):
        return None
    are_each = [isinstance(value, Elements) for value in values]
    if _is_product_of_two(equation, are_each):
        are_each[1] = False  # each element of the first meets all of the second
    found = [value for value, is_each in zip(values, are_each, strict=True) if is_each]
    if found:
        space = elements_space(found, Call(equation.source.primitive.name, [], line=equation.line))
    else:
        dimension = str(outputs[0].shape[0])
        space = body.low.lengths.space(dimension, body.space, [], equation.line)
    types = []
    operands = []
    for value, kind, is_each in zip(values, kinds, are_each, strict=True):
        types.append(element_type(kind) if is_each else kind)
        operands.append(value.element if is_each else value)
    try:
        traced = trace(lambda *each: on_elements(equation.source, each), *types)[0]
    except NotByElementError:
        return None
    return [*_mapped(body, space, traced, operands)]


def _is_product_of_two(equation: Equation, are_each: Sequence[bool]) -> bool:
    """Whether an operation is a matrix product of two sequences, whose elements all meet."""
    if equation.source.primitive.name != "dot_general" or not all(are_each):
        return False
    return not equation.source.params["dimension_numbers"][1][0]


def of_sequences(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """The steps of an operation of JAX on or to whole sequences; None if there are none.

    Args:
      body: Where.
      equation: The operation.
      values: Its operands.
    """
    rule = _RULES.get(equation.source.primitive.name)
    given = sequences(body, values)
    results = rule(body, equation, given) if rule else None
    return by_element(body, equation, given) if results is None else results


def _min(values: Any, ids: Any, n: int) -> Any:
    return _turned(segment_max(_turned(values), ids, n))


def _turned(values: Any) -> Any:
    """Numbers in reverse order."""
    return -values if jnp.issubdtype(values.dtype, jnp.inexact) else ~values


def _or(values: Any, ids: Any, n: int) -> Any:
    return segment_max(values.astype(np.int32), ids, n) > 0


def _and(values: Any, ids: Any, n: int) -> Any:
    return ~_or(~values, ids, n)


def padded(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """A padded sequence, of elements that may be padded themselves."""
    xs, number = values
    source = equation.source
    first, *others = source.params["padding_config"]
    if any(first) and any(map(any, others)):
        each = source.replace(params={"padding_config": tuple(others)})
        one, kind = map(type_of_atom, equation.inputs)
        traced = trace(lambda *operands: bind(each, operands), element_type(one), kind)[0]
        (xs,) = _mapped(body, xs.space, traced, [xs.element, number])
    return sequence_parts.padded(body, equation, [xs, number])


def contracted(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """A matrix product that sums over the elements of two sequences; None for any other."""
    source = equation.source
    (left, right), (batched, _) = source.params["dimension_numbers"]
    both = all(isinstance(value, Elements) for value in values)
    if not both or batched or (0, 0) not in zip(left, right, strict=True):
        return None
    space = elements_space(values, Call("dot_general", [], line=equation.line))
    pairs = [pair for pair in zip(left, right, strict=True) if pair != (0, 0)]
    numbers = tuple(axis - 1 for axis, _ in pairs), tuple(axis - 1 for _, axis in pairs)
    each = source.replace(params={**source.params, "dimension_numbers": (numbers, ((), ()))})
    types = [element_type(type_of_atom(atom)) for atom in equation.inputs]
    traced = trace(lambda *operands: bind(each, operands), *types)[0]
    (products,) = _mapped(body, space, traced, [value.element for value in values])
    kind = equation.outputs[0].aval
    if is_sequence(kind):
        return None
    return [segments(body, _sum, products, kind, kind)]


_SEGMENTS = {
    "reduce_sum": _sum,
    "reduce_max": segment_max,
    "argmax": _argmax,
    "argmin": _argmin,
    "reduce_min": _min,
    "reduce_or": _or,
    "reduce_and": _and,
}
_ACCUMULATED = {"cumsum": (jax.lax.add, 0), "cumprod": (jax.lax.mul, 1)}
_RULES: Mapping[str, SequenceRule] = {
    "rev": rev,
    "dim_as_value": lengths,
    "iota": numbered,
    "slice": sequence_slices.sliced,
    "gather": sequence_slices.gathered,
    "dynamic_slice": sequence_slices.sliced_where_told,
    "concatenate": sequence_parts.concatenated,
    "pad": padded,
    "dot_general": contracted,
    **dict.fromkeys(_SEGMENTS, reduced),
    **dict.fromkeys(_ACCUMULATED, accumulated),
}
