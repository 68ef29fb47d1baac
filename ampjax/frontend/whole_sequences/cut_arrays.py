"""Arrays of a fixed size of which as many rows are taken as a sequence has elements, as `table[:n]` does: rows that are read by number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ampjax.errors import DataError
from ampjax.frontend.batch_rules.sequence_steps import of_elements
from ampjax.frontend.batches.room_bodies import Body, is_static, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.combinators.tracing import trace
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.index_spaces import Column, IndexSpace
from ampjax.frontend.draft.long_axes import is_sequence, length_name, long_axis
from ampjax.frontend.draft.values import Constant, Elements, Static
from ampjax.frontend.whole_sequences.sequence_parts import length_of

Numbers = Callable[[Any], np.ndarray]
"""From the data to an integer for each row of a space."""


def cut_array(
    body: Body,
    equation: Equation,
    array: Value,
    starts: Sequence[Any],
    is_clamped: bool = False,
) -> list[Value] | None:
    """As many rows of an array as a sequence has elements, from one on; None where the first row's number is computed.

    Args:
      body: Where.
      equation: The operation, whose result is a sequence.
      array: The array.
      starts: For each axis where the part begins: a number, a length, or for the elements' axis what the host knows.
      is_clamped: Whether the part begins earlier where it would reach beyond the array.
    """
    given = type_of_atom(equation.inputs[0])
    kind = equation.outputs[0].aval
    axis = long_axis(kind)
    if axis is None or len(kind.shape) != len(given.shape):
        return None
    own = starts[axis]
    begin = [*starts[:axis], *starts[axis + 1 :]]
    if not all(
        isinstance(
            start,
            int | np.integer,
        )
        for start in begin
    ):
        return None
    space = body.low.lengths.space(
        length_name(kind),
        body.space,
        [],
        equation.line,
    )
    most = given.shape[axis]
    first = _checked_first(
        body,
        own,
        space,
        most,
        is_clamped,
        equation.line,
    )

    def places(data: Any) -> np.ndarray:
        place = first(data)[space.parents(data)] + space.numbers(data)
        return np.clip(
            place,
            0,
            most - 1,
        ).astype(np.int32)

    sizes = (*kind.shape[:axis], *kind.shape[axis + 1 :])

    def of_one(whole: Any, number: Any) -> Any:
        row = jax.lax.dynamic_index_in_dim(
            whole,
            number,
            axis,
            keepdims=False,
        )
        if row.shape == sizes:
            return row
        ends = []
        for start, size in zip(
            begin,
            sizes,
            strict=True,
        ):
            ends.append(start + size)
        return jax.lax.slice(
            row,
            begin,
            ends,
        )

    number = jax.ShapeDtypeStruct(
        (),
        np.int32,
    )
    traced = trace(
        of_one,
        given,
        number,
    )[0]
    place = Static(Column(space, places))
    return of_elements(
        body,
        space,
        traced,
        [array],
        [place],
        of_whole=True,
    )


def filled_array(
    body: Body,
    equation: Equation,
    array: Value,
    changes: Value,
    start: Value,
) -> list[Value] | None:
    """Updates rows of an array by a sequence, from one on that the host knows, as `jnp.zeros((16, d)).at[:n].set(xs)` does; None for parts of rows.

    Args:
      body: Where.
      equation: The operation.
      array: The array.
      changes: The sequence.
      start: For the first axis, or for all axes, where the update begins.
    """
    given = type_of_atom(equation.inputs[0])
    update = next(
        filter(is_sequence, map(type_of_atom, equation.inputs)),
        given,
    )
    begin = starts_of(
        body,
        start,
        (0,),
        1,
    )
    if (
        begin is None
        or not isinstance(
            changes,
            Elements,
        )
        or update.shape[1:] != given.shape[1:]
    ):
        return None
    space = changes.space
    first = _checked_first(
        body,
        begin[0],
        space,
        given.shape[0],
        equation.source.primitive.name == "dynamic_update_slice",
        equation.line,
    )

    def places(data: Any) -> np.ndarray:
        return (first(data)[space.parents(data)] + space.numbers(data)).astype(np.int32)

    update_rows = _UPDATES[equation.source.primitive.name]
    numbers = jax.ShapeDtypeStruct(
        update.shape[:1],
        np.int32,
    )
    traced = trace(
        lambda x, at, new: getattr(
            x.at[at],
            update_rows,
        )(new),
        given,
        numbers,
        update,
    )[0]
    place: Value = Static(
        Column(
            space,
            places,
        )
    )
    return body.run(
        traced,
        [array, Elements(space, place), changes],
    )


_UPDATES = {
    "dynamic_update_slice": "set",
    "scatter": "set",
    "scatter-add": "add",
    "scatter-mul": "multiply",
    "scatter-min": "min",
    "scatter-max": "max",
}
"""By the name of JAX's operation, the method of `x.at[...]` that does the same to rows."""


def starts_of(
    body: Body,
    at: Value,
    axes: Sequence[int],
    rank: int,
) -> list[Any] | None:
    """For each axis where a part begins, from the numbers of some axes; None for computed ones.

    Args:
      body: Where.
      at: The numbers, `[axes]`.
      axes: The axes.
      rank: How many axes the array has.
    """
    starts: list[Any] = [0] * rank
    if isinstance(at, Constant):
        for axis, start in zip(
            axes,
            np.ravel(at.value).tolist(),
            strict=True,
        ):
            starts[axis] = start
        return starts
    if not is_static(at):
        return None
    kind = jax.ShapeDtypeStruct(
        (len(axes),),
        np.int64,
    )
    column = body.low.host.column(
        at,
        body.region,
        kind,
    )

    def start_along(place: int) -> Numbers:
        return lambda data: (
            column.of(data)
            .reshape(
                -1,
                len(axes),
            )[:, place]
            .astype(np.int64)
        )

    for place, axis in enumerate(axes):
        starts[axis] = start_along(place)
    return starts


def _checked_first(
    body: Body,
    start: Any,
    space: IndexSpace,
    most: int,
    is_clamped: bool,
    line: str,
) -> Numbers:
    """For each row around where the part begins, with a check that the array has all of the part.

    Args:
      body: Where.
      start: The first row: a number, a length, or a column of the host.
      space: The sequence's elements.
      most: The array's rows.
      is_clamped: Whether the part begins earlier where it would reach beyond the array.
      line: The user's line.
    """
    first: Any = start
    if not callable(start):
        first = length_of(body, start, [], line)
    if is_clamped:
        first = _clamp_first_rows(first, space, most)
    body.low.host.draft.checks.append(
        lambda data: _check(data, first(data), space, most, line),
    )
    return first


def _clamp_first_rows(first: Numbers, space: IndexSpace, most: int) -> Numbers:
    """The first rows of parts, moved so far to the front that an array of so many rows has each part."""
    return lambda data: np.clip(
        first(data),
        0,
        np.maximum(most - space.lengths(data), 0),
    )


def _check(
    data: Any,
    first: np.ndarray,
    space: IndexSpace,
    most: int,
    line: str,
) -> None:
    """Checks that an array has the rows that are read."""
    n = space.lengths(data)
    wrong = (n > 0) & ((first < 0) | (first + n > most))
    for row in np.flatnonzero(wrong)[:1].tolist():
        assert space.parent is not None
        raise DataError(
            f"{line}, instance {space.parent.instances(data)[row]}",
            f"at most {most} elements, as many rows as the array has that is cut to the sequence's length",
            f"{n[row]} elements from row {first[row]} on",
            "Make the array longer, or leave out longer examples.",
        )
