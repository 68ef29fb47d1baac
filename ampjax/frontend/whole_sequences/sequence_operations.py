"""JAX's own operations on whole sequences that become steps: of each element, turned around, summed up, cut and put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batch_rules.sequence_steps import map_elements, of_elements, scan, sequences
from ampjax.frontend.batches.room_bodies import Body, type_of_atom
from ampjax.frontend.batches.row_lowering import SequenceRule, Value
from ampjax.frontend.combinators.sequences import SCAN, least, most
from ampjax.frontend.combinators.tracing import Call, trace
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.index_spaces import Column
from ampjax.frontend.draft.long_axes import (
    element_type,
    is_sequence,
    length_name,
    long_axis,
    without_axis,
)
from ampjax.frontend.draft.values import Constant, Elements, Static
from ampjax.frontend.jax_functions.element_operations import (
    NotByElementError,
    element_axes,
    on_element,
)
from ampjax.frontend.rules.sequence_rules import elements_space
from ampjax.frontend.whole_sequences import sequence_parts, sequence_slices
from ampjax.frontend.whole_sequences.jax_loops import branched, scanned
from ampjax.frontend.whole_sequences.merged_values import turned
from ampjax.frontend.whole_sequences.numbered_reads import within
from ampjax.frontend.whole_sequences.range_updates import slice_updated
from ampjax.frontend.whole_sequences.reshaped_sequences import reshaped, tiled
from ampjax.frontend.whole_sequences.sequence_updates import UPDATES, updated
from ampjax.frontend.whole_sequences.sequence_windows import POOLED, convolved, pooled
from ampjax.frontend.whole_sequences.sorted_sequences import largest, sort
from ampjax.frontend.whole_sequences.whole_reductions import SEGMENTS, contracted, reduced
from ampjax.jaxprs.primitives import bind
from ampjax.jaxprs.wide_sums import WIDE, is_low


def rev(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """The elements from the last to the first; None along another axis."""
    (xs,) = values
    axes = tuple(equation.source.params["dimensions"])
    given = type_of_atom(equation.inputs[0])
    long = long_axis(given)
    if long is None or long not in axes:
        return None
    if len(axes) > 1:
        others = without_axis(axes, long)
        one = element_type(given)
        traced = trace(
            lambda x: jax.lax.rev(x, others),
            one,
        )[0]
        (xs,) = of_elements(
            body,
            xs.space,
            traced,
            [],
            [xs.element],
            of_whole=True,
        )
    space = xs.space

    def origin(data: Any) -> np.ndarray:
        around = space.parents(data)
        return space.starts(data)[around] + space.lengths(data)[around] - 1 - space.numbers(data)

    return [
        Elements(
            space,
            body.low.value_within(
                xs.element,
                space,
                space,
                origin,
                "turned",
            ),
        )
    ]


def lengths(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value]:
    """A length, or an expression of lengths, as a number."""
    dimension = str(equation.source.params["dim"])
    column = body.low.lengths.values(
        dimension,
        body.space,
        [],
        equation.line,
    )
    kind = equation.outputs[0].aval.dtype
    return [
        Static(
            Column(
                column.space,
                lambda data: column.of(data).astype(kind),
            )
        )
    ]


def numbered(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """The numbers of a sequence's elements; None along another axis."""
    (name,) = equation.outputs
    if equation.source.params["dimension"] != long_axis(name.aval):
        return None
    space = body.low.lengths.space(
        length_name(name.aval),
        body.space,
        [],
        equation.line,
    )
    one = element_type(name.aval)
    number = Static(
        Column(
            space,
            lambda data: space.numbers(data).astype(one.dtype),
        )
    )
    if not one.shape:
        return [Elements(space, number)]
    traced = trace(
        lambda own: jnp.broadcast_to(
            own,
            one.shape,
        ),
        jax.ShapeDtypeStruct(
            (),
            one.dtype,
        ),
    )[0]
    return of_elements(
        body,
        space,
        traced,
        [],
        [number],
    )


def _are_in_front(equation: Equation) -> bool:
    """Whether all sequences of an operation have the elements' axis first."""
    kinds = [type_of_atom(atom) for atom in equation.inputs]
    kinds += [name.aval for name in equation.outputs]
    return not any(long_axis(kind) for kind in kinds)


def accumulated(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Computes `cumsum`, `cummax` and the like along the elements, as a loop; None along another axis."""
    source = equation.source
    operate, start = _ACCUMULATED[source.primitive.name]
    kind = equation.outputs[0].aval
    one = element_type(kind)
    if source.params["axis"] or is_sequence(one):
        return None

    # a running sum of low precision stops to grow: 256 + 1 is 256 in bfloat16
    wide = WIDE if is_low(one.dtype) else one.dtype
    carried = jax.ShapeDtypeStruct(one.shape, wide)

    def step(
        total: Any,
        x: Any,
    ) -> tuple[Any, Any]:
        after = operate(total, x.astype(wide))
        return after, after.astype(one.dtype)

    traced = trace(step, carried, one)[0]
    first = Constant(
        np.full(
            one.shape,
            start(one.dtype),
            wide,
        )
    )
    options = {"n_carry": 1, "reverse": source.params["reverse"]}
    call = Call(
        SCAN,
        [carried, kind],
        (traced,),
        (0,),
        equation.line,
        options,
    )
    return scan(
        body,
        call,
        [first, *values],
    )[1:]


def by_element(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Turns an operation that does the same to each element into a `map`; None for other operations."""
    kinds = [type_of_atom(atom) for atom in equation.inputs]
    outputs = [name.aval for name in equation.outputs]
    if not all(
        map(
            is_sequence,
            outputs,
        )
    ):
        return None
    axes = element_axes(equation.source)
    given = (
        None
        if axes is None
        else turned(
            body,
            values,
            kinds,
            axes,
        )
    )
    if axes is None or given is None:
        return None
    values = given
    are_each = [axis is not None for axis in axes]
    found = []
    for value, is_each in zip(
        values,
        are_each,
        strict=True,
    ):
        if is_each:
            found.append(value)
    if found:
        space = elements_space(
            found,
            equation.line,
        )
    else:
        space = body.low.lengths.space(
            length_name(outputs[0]),
            body.space,
            [],
            equation.line,
        )
    # what is the same for all elements comes first
    order = sorted(
        range(len(values)),
        key=lambda i: are_each[i],
    )
    types = []
    operands = []
    for i in order:
        types.append(
            element_type(
                kinds[i],
                axes[i],
            )
            if are_each[i]
            else kinds[i]
        )
        operands.append(values[i].element if are_each[i] else values[i])

    def of_one(*each: Any) -> list[Any]:
        given = dict(
            zip(
                order,
                each,
                strict=True,
            )
        )
        return on_element(
            equation.source,
            [given[i] for i in range(len(values))],
        )

    try:
        traced = trace(
            of_one,
            *types,
        )[0]
    except NotByElementError:
        return None
    n = len(values) - sum(are_each)
    return of_elements(
        body,
        space,
        traced,
        operands[:n],
        operands[n:],
        of_whole=True,
    )


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
    if rule not in _ANYWHERE and not _are_in_front(equation):
        rule = None
    given = sequences(body, values)
    if _is_clipped(equation, given):
        return within(
            body,
            equation,
            given,
        )
    results = (
        rule(
            body,
            equation,
            given,
        )
        if rule
        else None
    )
    return (
        by_element(
            body,
            equation,
            given,
        )
        if results is None
        else results
    )


def _is_clipped(equation: Equation, values: Sequence[Value]) -> bool:
    """Whether an operation reads or updates a sequence at the nearest numbers that the sequence has."""
    source = equation.source
    is_numbered = source.primitive.name == "gather" or source.primitive.name in UPDATES
    if not is_numbered or not isinstance(values[0], Elements):
        return False
    return source.params["mode"] == jax.lax.GatherScatterMode.CLIP


def padded(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Pads a sequence, and its elements too if the operation pads other axes."""
    xs, number = values
    source = equation.source
    first, *others = source.params["padding_config"]
    if any(first) and any(
        map(
            any,
            others,
        )
    ):
        each = source.replace(params={"padding_config": tuple(others)})
        one, kind = map(
            type_of_atom,
            equation.inputs,
        )
        traced = trace(
            lambda *operands: bind(each, operands),
            element_type(one),
            kind,
        )[0]
        (xs,) = map_elements(
            body,
            xs.space,
            traced,
            [xs.element, number],
        )
    return sequence_parts.padded(
        body,
        equation,
        [xs, number],
    )


_ACCUMULATED: Mapping[str, tuple[Callable[..., Any], Callable[[Any], Any]]] = {
    "cumsum": (jax.lax.add, lambda dtype: 0),
    "cumprod": (jax.lax.mul, lambda dtype: 1),
    "cummax": (jax.lax.max, least),
    "cummin": (jax.lax.min, most),
    "cumlogsumexp": (jnp.logaddexp, least),
}
"""What joins a running result and an element, and from a dtype to what it begins with."""

_ANYWHERE: Sequence[SequenceRule | None] = (
    rev,
    lengths,
    numbered,
    contracted,
    reduced,
    sequence_slices.sliced,
    sequence_slices.gathered,
    sequence_slices.sliced_where_told,
    scanned,
    branched,
    convolved,
    pooled,
    tiled,
    largest,
)
"""Rules for sequences whose elements' axis stands anywhere."""

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
    "sort": sort,
    "scan": scanned,
    "cond": branched,
    "reshape": reshaped,
    "tile": tiled,
    "top_k": largest,
    "conv_general_dilated": convolved,
    **dict.fromkeys(POOLED, pooled),
    "dynamic_update_slice": slice_updated,
    **dict.fromkeys(SEGMENTS, reduced),
    **dict.fromkeys(_ACCUMULATED, accumulated),
    **dict.fromkeys(UPDATES, updated),
}
