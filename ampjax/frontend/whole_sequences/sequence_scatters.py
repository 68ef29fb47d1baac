"""Updates by a whole sequence of numbers, such as `jax.ops.segment_sum` and `xs.at[numbers].add(ys)`: one update of the rows of all sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batches.programs_of_rows import Rows, Run, View, filled_rows
from ampjax.frontend.batches.room_bodies import Body, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.long_axes import element_type
from ampjax.frontend.draft.values import Elements
from ampjax.frontend.jax_functions.element_operations import replace_numbers, update_of_axes
from ampjax.frontend.rules.sequence_rules import elements_space
from ampjax.jaxprs.primitives import bind


def scattered(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Updates a sequence, or an array, at the numbers in another sequence; None for other updates.

    Numbers become those of rows of the batch: of an element of the row's own sequence, or of the row around. An update that is not there,
    or has a number outside, gets the number behind all rows, at which JAX changes nothing.
    """
    xs, at, changes = values
    if not _is_by_number(equation, values):
        return None
    given, indices, update = map(
        type_of_atom,
        equation.inputs,
    )
    space = elements_space(
        [at, changes],
        equation.line,
    )
    inner = body.inside(space)
    numbers = inner.rows(
        at.element,
        element_type(indices),
    )
    updates = inner.rows(
        changes.element,
        element_type(update),
    )
    around = body.parents(space)
    there = inner.room.there

    if isinstance(xs, Elements):
        home = body.inside(xs.space)
        kind = element_type(given)
        sizes = inner.lengths(xs.space)
        elements = body.parents(xs.space)
        source = equation.source
        place = source.params["dimension_numbers"].scatter_dims_to_operand_dims.index(0)
    else:
        home = body
        kind = given
        source = update_of_axes(equation.source, _behind_first)
    rows = home.rows(
        xs.element if isinstance(xs, Elements) else xs,
        kind,
    )
    out = Rows(
        kind,
        home.bare(),
    )

    def of_elements(run: Run, own: Any, n: int) -> Any:
        first = jnp.searchsorted(
            run.slots[elements],
            run.slots[around],
        )
        return _row_numbers(
            own,
            place,
            (first, run.get(sizes), run.slots[there]),
            n,
        )

    def of_array(run: Run, own: Any, n: int) -> Any:
        row = jnp.where(
            run.slots[there],
            run.slots[around],
            n,
        )
        row = row.astype(own.dtype).reshape((-1,) + (1,) * (own.ndim - 1))
        row = jnp.broadcast_to(
            row,
            (*own.shape[:-1], 1),
        )
        return jnp.concatenate(
            [row, own],
            -1,
        )

    def compute(run: Run) -> list[Any]:
        every = run.get(rows)
        own = run.get(numbers).astype(np.int32)
        if isinstance(xs, Elements):
            own = of_elements(
                run,
                own,
                len(every),
            )
        else:
            own = of_array(
                run,
                own,
                len(every),
            )
        found = bind(
            source,
            [every, own, run.get(updates)],
        )
        return filled_rows(run, [out], found)

    body.block.add(
        [out],
        compute,
    )
    if not isinstance(xs, Elements):
        return [View(out, body.space)]
    element: Value = View(
        out,
        xs.space,
    )
    return [Elements(xs.space, element)]


def scattered_at_array(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Updates a sequence at the numbers in an array of a fixed size, as `xs.at[jnp.array([0, 2])].add(x)`; None for other updates."""
    xs, at, changes = values
    source = equation.source
    numbers = source.params["dimension_numbers"]
    given, indices, update = map(
        type_of_atom,
        equation.inputs,
    )
    n_first = len(indices.shape) - 1
    axes = numbers.scatter_dims_to_operand_dims
    is_first = all(axis >= n_first for axis in numbers.update_window_dims)
    if numbers.operand_batching_dims or 0 not in axes or not is_first:
        return None
    home = body.inside(xs.space)
    kind = element_type(given)
    rows = home.rows(
        xs.element,
        kind,
    )
    each = body.rows(
        at,
        indices,
    )
    updates = body.rows(
        changes,
        update,
    )
    sizes = body.lengths(xs.space)
    elements = body.parents(xs.space)
    there = body.room.there
    out = Rows(
        kind,
        home.bare(),
    )
    # the array's first axis counts rows of the batch now, and so does that of the changes
    shifted = replace_numbers(
        numbers,
        update_window_dims=tuple(axis + 1 for axis in numbers.update_window_dims),
    )
    changed = source.replace(
        params={
            **source.params,
            "dimension_numbers": shifted,
        }
    )

    def compute(run: Run) -> list[Any]:
        every = run.get(rows)
        own = run.get(each).astype(np.int32)
        first = jnp.searchsorted(
            run.slots[elements],
            jnp.arange(len(own)),
        )
        own = _row_numbers(
            own,
            axes.index(0),
            (first, run.get(sizes), run.slots[there]),
            len(every),
        )
        found = bind(
            changed,
            [every, own, run.get(updates)],
        )
        return filled_rows(run, [out], found)

    body.block.add(
        [out],
        compute,
    )
    element: Value = View(
        out,
        xs.space,
    )
    return [Elements(xs.space, element)]


def _row_numbers(
    own: Any,
    place: int,
    sequences: tuple[Any, Any, Any],
    n: int,
) -> Any:
    """Numbers of elements, counted from the first row of all sequences, `[rows, ..., axes]`; behind all rows for an element that is not there.

    Args:
      own: The numbers, of which one in the last axis is the element's.
      place: Which one.
      sequences: By row of the numbers where its sequence begins, how many elements that has, and whether the row is there.
      n: How many rows there are.
    """
    number = own[..., place]
    wide = (-1,) + (1,) * (number.ndim - 1)
    first, size, there = (each.reshape(wide) for each in sequences)
    is_there = (number >= 0) & (number < size) & there
    return own.at[..., place].set(
        jnp.where(
            is_there,
            first.astype(own.dtype) + number,
            n,
        )
    )


def _is_by_number(equation: Equation, values: Sequence[Value]) -> bool:
    """Whether an update has a number, and a change, for each element of a sequence."""
    xs, at, changes = values
    params = equation.source.params
    numbers = params["dimension_numbers"]
    if any(
        isinstance(each, Elements)
        and isinstance(
            each.element,
            Elements,
        )
        for each in values
    ):
        return False
    if not isinstance(at, Elements) or not isinstance(
        changes,
        Elements,
    ):
        return False
    if params["mode"] not in DROPPING or 0 in numbers.update_window_dims:
        return False
    if numbers.operand_batching_dims:
        return False
    if not isinstance(xs, Elements):
        return True
    axes = numbers.scatter_dims_to_operand_dims
    return 0 in axes and 0 in numbers.inserted_window_dims


def _behind_first(axes: Sequence[int]) -> tuple[int, ...]:
    """The first axis, and axes that are counted from the next one."""
    return (0, *(axis + 1 for axis in axes))


DROPPING = (
    jax.lax.GatherScatterMode.FILL_OR_DROP,
    jax.lax.GatherScatterMode.PROMISE_IN_BOUNDS,
)
"""Modes in which an update of an element that is not there changes nothing."""
