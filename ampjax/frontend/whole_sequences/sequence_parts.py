"""Slices, concatenation and padding of whole sequences: sequences of other index spaces, whose elements are read by numbers that the host knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError
from ampjax.frontend.batches.programs_of_rows import Rows, Run, View
from ampjax.frontend.batches.room_bodies import Body, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.long_axes import element_type
from ampjax.frontend.draft.row_origins import Origin
from ampjax.frontend.draft.values import Constant, Elements
from ampjax.frontend.whole_sequences.merged_values import merge_values, of_array

_FIX = "Do it only where the sequence is long enough, in `amp.cond` of `amp.length`."


def length_of(
    body: Body,
    dimension: Any,
    sequences: Sequence[tuple[Value, Any]],
    line: str,
) -> Callable[[Any], np.ndarray]:
    """`[rows]`: the value of a number or a symbolic dimension for each row of a room's space.

    Args:
      body: The room.
      dimension: The number or dimension.
      sequences: Sequences that it comes from, and their types.
      line: The user's line.
    """
    space = body.space
    if isinstance(
        dimension,
        int | np.integer,
    ):
        return lambda data: np.full(
            space.n_rows(data),
            int(dimension),
        )
    column = body.low.lengths.values(
        str(dimension),
        space,
        sized(sequences),
        line,
    )
    return column.inside(space).of


def sized(sequences: Sequence[tuple[Value, Any]]) -> list[tuple[IndexSpace, str]]:
    """Lists the spaces and dimensions of the values that are sequences.

    Args:
      sequences: Values and their types.
    """
    result = []
    for value, kind in sequences:
        if isinstance(value, Elements):
            result.append((value.space, str(kind.shape[0])))
    return result


@dataclass(frozen=True)
class Part:
    """Elements of a sequence, or the first elements of an array's axis, that go into another sequence.

    Args:
      value: An element.
      space: The space that has it.
      sizes: From the data to `[rows around]`: how many there are.
      start: From the data to `[rows around]`: the row of the first one in `space`.
      is_repeated: Whether all of them are that first row.
    """

    value: Value
    space: IndexSpace
    sizes: Callable[[Any], np.ndarray]
    start: Callable[[Any], np.ndarray]
    is_repeated: bool = False


def one_after_the_other(
    body: Body,
    parts: Sequence[Part],
    kind: Any,
    sequences: Sequence[tuple[Value, Any]],
    line: str,
) -> Elements:
    """A sequence of the elements of several, one after the other.

    Args:
      body: Where.
      parts: The parts.
      kind: The sequence's type.
      sequences: The sequences that its length comes from.
      line: The user's line.
    """
    low = body.low
    space = low.lengths.space(
        str(kind.shape[0]),
        body.space,
        sized(sequences),
        line,
    )

    def ends(data: Any) -> np.ndarray:
        return np.cumsum(
            [part.sizes(data) for part in parts],
            0,
        )

    region = body.region
    low.host.draft.checks.append(
        lambda data: _check_sum(
            data,
            region,
            space,
            ends(data)[-1],
            line,
        )
    )

    def which(data: Any) -> np.ndarray:
        own = ends(data)[:-1, space.parents(data)]
        return (space.numbers(data) >= own).sum(0).astype(np.int32)

    found = []
    for i, part in enumerate(parts):
        found.append(
            (
                part.value,
                part.space,
                _rows_of_part(
                    space,
                    parts,
                    i,
                ),
            )
        )
    chosen = Column(space, which)
    return Elements(
        space,
        merge_values(
            body.inside(space),
            found,
            chosen,
            element_type(kind),
        ),
    )


def _rows_of_part(
    space: IndexSpace,
    parts: Sequence[Part],
    i: int,
) -> Origin:
    """Finds the row in one part for each row of a space made of parts; rows of other parts get the nearest row of this part."""
    part = parts[i]

    def rows(data: Any) -> np.ndarray:
        around = space.parents(data)
        if part.is_repeated:
            return part.start(data)[around]
        sizes = part.sizes(data)
        before = sum(
            (each.sizes(data) for each in parts[:i]),
            np.zeros_like(sizes),
        )
        number = space.numbers(data) - before[around]
        return part.start(data)[around] + np.clip(
            number,
            0,
            np.maximum(
                sizes - 1,
                0,
            )[around],
        )

    return rows


def _check_sum(
    data: Any,
    region: Region,
    space: IndexSpace,
    total: np.ndarray,
    line: str,
) -> None:
    """Checks that the total length of parts is the length with which the model was traced."""
    is_wrong = total != space.lengths(data)
    for row in region.rows_where(data, is_wrong)[:1].tolist():
        raise DataError(
            f"{line}, instance {region.space.instances(data)[row]}",
            f"parts of `{space.dimension}` elements together, which holds where no sequence is empty",
            f"{total[row]} elements",
            _FIX,
        )


def whole(body: Body, value: Value, kind: Any) -> Part:
    """A sequence, or an array of fixed length, as a part.

    Args:
      body: Where.
      value: The sequence or array.
      kind: Its type.
    """
    xs = (
        value
        if isinstance(
            value,
            Elements,
        )
        else of_array(body, value, kind)
    )
    return Part(
        xs.element,
        xs.space,
        xs.space.lengths,
        xs.space.starts,
    )


def concatenated(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Sequences and arrays one after the other; None along another axis."""
    if equation.source.params["dimension"]:
        return None
    kinds = [type_of_atom(atom) for atom in equation.inputs]
    parts = []
    for value, kind in zip(
        values,
        kinds,
        strict=True,
    ):
        if kind.shape[0] != 0:
            parts.append(
                whole(
                    body,
                    value,
                    kind,
                )
            )
    given = [
        *zip(
            values,
            kinds,
            strict=True,
        )
    ]
    kind = equation.outputs[0].aval
    return [
        one_after_the_other(
            body,
            parts,
            kind,
            given,
            equation.line,
        )
    ]


def padded(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Pads a sequence with a number before or behind its elements, or cuts elements off; None for any other padding."""
    first = equation.source.params["padding_config"][0]
    before, behind, between = first
    xs, number = values
    kind = equation.outputs[0].aval
    if (
        between
        or not any(first)
        or isinstance(
            number,
            Elements,
        )
    ):
        return None
    if isinstance(xs.element, Elements):
        return None
    line = equation.line
    given = [(xs, equation.inputs[0].aval)]  # type: ignore[union-attr]
    first_one = length_of(
        body,
        before,
        given,
        line,
    )
    last_one = length_of(
        body,
        behind,
        given,
        line,
    )
    space = xs.space
    blank = _constant_element(
        body,
        number,
        element_type(kind),
    )
    around = body.space

    def padding(size: Callable[[Any], np.ndarray]) -> Part:
        return Part(
            blank,
            around,
            lambda data: np.maximum(
                size(data),
                0,
            ),
            lambda data: np.arange(around.n_rows(data)),
            is_repeated=True,
        )

    def cut(data: Any) -> np.ndarray:
        return np.maximum(
            -first_one(data),
            0,
        )

    def left(data: Any) -> np.ndarray:
        behind = np.maximum(
            -last_one(data),
            0,
        )
        return np.maximum(
            space.lengths(data) - cut(data) - behind,
            0,
        )

    middle = Part(
        xs.element,
        space,
        left,
        lambda data: space.starts(data) + cut(data),
    )
    parts = [padding(first_one), middle, padding(last_one)]
    return [
        one_after_the_other(
            body,
            parts,
            kind,
            given,
            line,
        )
    ]


def _constant_element(body: Body, number: Value, kind: Any) -> Value:
    """An element all of whose entries are one number."""
    if isinstance(number, Constant):
        return Constant(
            np.full(
                kind.shape,
                number.value,
                kind.dtype,
            )
        )
    rows = body.rows(
        number,
        jax.ShapeDtypeStruct(
            (),
            kind.dtype,
        ),
    )
    out = Rows(kind, rows.room)

    def compute(run: Run) -> list[Any]:
        each = run.get(rows)
        wide = each.reshape(
            -1,
            *[1] * len(kind.shape),
        )
        return [
            jnp.broadcast_to(
                wide,
                (len(each), *kind.shape),
            )
        ]

    body.block.add(
        [out],
        compute,
    )
    return View(out, body.space)
