"""Single elements of whole sequences that are replaced or added to, as `xs.at[i].set(x)` does: a choice for each element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.frontend.batch_rules.carried_parts import changed_in_place, own_elements
from ampjax.frontend.batch_rules.sequence_steps import of_elements
from ampjax.frontend.batches.programs_of_rows import Run
from ampjax.frontend.batches.room_bodies import Body, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.combinators.tracing import trace
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.index_spaces import Column
from ampjax.frontend.draft.long_axes import element_type
from ampjax.frontend.draft.values import Elements, Static
from ampjax.frontend.jax_functions.element_operations import update_of_axes
from ampjax.frontend.whole_sequences.cut_arrays import filled_array
from ampjax.frontend.whole_sequences.range_updates import range_updated
from ampjax.frontend.whole_sequences.sequence_scatters import (
    DROPPING,
    scattered,
    scattered_at_array,
)
from ampjax.jaxprs.primitives import applies_function, bind


def updated(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Updates one element of a sequence, or a part of the element, at a number that may be computed, or many elements; None for other updates."""
    xs, at, _ = values
    if applies_function(equation.source):
        return None
    if isinstance(at, Elements):
        return scattered(body, equation, values)
    given, indices, update = map(
        type_of_atom,
        equation.inputs,
    )
    source = equation.source
    numbers = source.params["dimension_numbers"]
    axes = tuple(numbers.scatter_dims_to_operand_dims)
    if source.params["mode"] not in DROPPING:
        return None
    if 0 not in numbers.inserted_window_dims:
        return _neighbours(body, equation, values)
    if not _is_only_sequence(values):
        return None
    if len(indices.shape) > 1:
        return scattered_at_array(body, equation, values)
    if 0 not in axes:
        return None
    place = axes.index(0)
    others = [number for number in range(len(axes)) if number != place]
    one = element_type(given)
    if not others and update.shape != one.shape:
        return None
    # the same update of a part of one element, whose axes are one less
    inside = update_of_axes(source, _without_first)
    operate = UPDATES[source.primitive.name]

    def changed(x: Any, at: Any, change: Any) -> Any:
        if not others:
            return operate(x, change)
        left = jnp.stack([at[number] for number in others])
        return bind(inside, [x, left, change])[0]

    own = own_elements(body, xs)
    if own is not None:
        is_set = source.primitive.name == "scatter" and not others
        numbers = body.rows(at, indices)
        new = body.rows(values[2], update)

        def changes(run: Run) -> tuple[Any, list[Any]]:
            each = run.get(numbers)[:, None]
            return each[..., place], [each, run.get(new)[:, None]]

        return [changed_in_place(body, xs, own, changes, None if is_set else changed)]

    def of_one(at: Any, change: Any, x: Any, number: Any) -> Any:
        return jnp.where(
            number == at[place],
            changed(x, at, change),
            x,
        )

    kind = jax.ShapeDtypeStruct(
        (),
        indices.dtype,
    )
    traced = trace(
        of_one,
        indices,
        update,
        one,
        kind,
    )[0]
    space = xs.space
    number = Column(
        space,
        lambda data: space.numbers(data).astype(indices.dtype),
    )
    return of_elements(
        body,
        space,
        traced,
        [at, values[2]],
        [xs.element, Static(number)],
        of_whole=True,
    )


def _neighbours(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Updates neighbouring elements, of a sequence or of an array that a sequence fills."""
    xs, at, changes = values
    if _is_flat(xs):
        return range_updated(body, equation, values, UPDATES)
    numbers = equation.source.params["dimension_numbers"]
    axes = tuple(numbers.scatter_dims_to_operand_dims)
    if (
        isinstance(
            xs,
            Elements,
        )
        or axes != (0,)
        or numbers.inserted_window_dims
    ):
        return None
    return filled_array(
        body,
        equation,
        xs,
        changes,
        at,
    )


def _is_only_sequence(values: Sequence[Value]) -> bool:
    """Whether the first value is a sequence of arrays, and no other one is a sequence."""
    xs, *others = values
    return _is_flat(xs) and not any(isinstance(value, Elements) for value in others)


def _is_flat(value: Value) -> bool:
    """Whether a value is a sequence of arrays."""
    return isinstance(value, Elements) and not isinstance(
        value.element,
        Elements,
    )


def _without_first(axes: Sequence[int]) -> tuple[int, ...]:
    """Axes without the first one, counted from the next."""
    return tuple(axis - 1 for axis in axes if axis)


UPDATES: Mapping[str, Callable[[Any, Any], Any]] = {
    "scatter": lambda x, change: change,
    "scatter-add": jax.lax.add,
    "scatter-sub": jax.lax.sub,
    "scatter-mul": jax.lax.mul,
    "scatter-min": jax.lax.min,
    "scatter-max": jax.lax.max,
}
"""By the name of JAX's update: from an entry and its change to the new entry."""
