"""Sorted sequences, and elements in an order that is computed: operations on the rows of all sequences at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError
from ampjax.frontend.batches.programs_of_rows import Rows, Run, Slot, View, filled_rows, taken
from ampjax.frontend.batches.room_bodies import Body, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.batches.row_tables import RowTables
from ampjax.frontend.combinators.sequences import least
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.index_spaces import IndexSpace, Region
from ampjax.frontend.draft.long_axes import element_type, long_axis
from ampjax.frontend.draft.values import Elements
from ampjax.frontend.loops.masked_rows import along
from ampjax.frontend.rules.sequence_rules import elements_space


def sort(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Sorts the elements of each sequence, as `jnp.sort` and `jnp.argsort` do; None along another axis.

    The number of each element's sequence is the first key: so elements stay in their own sequence.
    """
    params = equation.source.params
    if params["dimension"] or any(_has_sequences(value) for value in values):
        return None
    space = elements_space(
        values,
        equation.line,
    )
    inner = body.inside(space)
    parents = body.parents(space)
    rows = []
    for value, atom in zip(
        values,
        equation.inputs,
        strict=True,
    ):
        kind = element_type(type_of_atom(atom))
        rows.append(
            inner.rows(
                value.element,
                kind,
            )
        )
    room = inner.bare()
    out = [
        Rows(
            each.aval,
            room,
        )
        for each in rows
    ]

    def compute(run: Run) -> list[Any]:
        every = [run.get(each) for each in rows]
        around = along(
            run.slots[parents],
            every[0],
        )
        around = jnp.broadcast_to(
            around,
            every[0].shape,
        )
        _, *found = jax.lax.sort(
            (around, *every),
            dimension=0,
            is_stable=params["is_stable"],
            num_keys=1 + params["num_keys"],
        )
        return filled_rows(
            run,
            out,
            found,
        )

    body.block.add(out, compute)
    found: list[Value] = []
    for each in out:
        element: Value = View(each, space)
        found.append(Elements(space, element))
    return found


def largest(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Finds the largest elements and their numbers, as `jax.lax.top_k` along the elements does; None along another axis.

    JAX finds them in padded rows, which takes far less time than to sort all elements.
    """
    (xs,) = values
    params = equation.source.params
    (atom,) = equation.inputs
    given = type_of_atom(atom)
    own = long_axis(given)
    if own is None or params["axis"] % len(given.shape) != own or _has_sequences(xs):
        return None
    space = xs.space
    k = params["k"]
    rows, starts = body.rows_and_starts(body, xs, element_type(given))
    region = body.region
    body.low.host.draft.checks.append(
        lambda data: _check_enough(
            data,
            region,
            space,
            k,
            equation.line,
        ),
    )
    room = body.bare()
    sizes = body.lengths(space)
    places = _places(body, space, k)
    out = [Rows(name.aval, room) for name in equation.outputs]

    def compute(run: Run) -> list[Any]:
        every = run.get(rows)
        number = jnp.asarray(run.slots[places])
        at = starts(run)[:, None] + number
        padded = taken(every, jnp.clip(at, 0, max(len(every) - 1, 0)))
        is_there = along(number < run.get(sizes)[:, None], padded)
        padded = jnp.where(is_there, padded, jnp.asarray(least(padded.dtype), padded.dtype))
        found = jax.lax.top_k(jnp.moveaxis(padded, 1, -1), k)
        return filled_rows(run, out, [jnp.moveaxis(x, -1, 1 + own) for x in found])

    body.block.add(out, compute)
    return [View(each, body.space) for each in out]


def _places(body: Body, space: IndexSpace, n: int) -> Slot:
    """The array of the batch with the numbers of the places in a padded row: as many as the longest sequence has, and a number at least."""

    def make(tables: RowTables) -> np.ndarray:
        longest = int(space.lengths(tables.data).max(initial=0))
        size = tables.rounded((space, "longest", n), max(longest, n))
        every = np.arange(size, dtype=np.int32)
        return np.broadcast_to(every, (tables.n_batches, size))

    return body.low.slot(("places", space, n), body.low.root, make)


def _check_enough(
    data: Any,
    region: Region,
    space: IndexSpace,
    k: int,
    line: str,
) -> None:
    """Checks that each sequence has so many elements."""
    n = space.lengths(data)
    for row in region.rows_where(data, n < k)[:1].tolist():
        raise DataError(
            f"{line}, instance {region.space.instances(data)[row]}",
            f"at least {k} elements, of which the largest {k} are taken",
            f"{n[row]}",
            "Take fewer: `jnp.sort(xs)[::-1][:k]` has as many as there are; or use `amp.cond` of `amp.length`.",
        )


def in_computed_order(
    body: Body,
    home: Body,
    equation: Equation,
    xs: Elements,
    number: Rows,
    place: int,
) -> View:
    """Reads elements of a sequence by computed numbers: for each row one, or an array of several.

    Args:
      body: The rows that have the sequence.
      home: The rows that read: the same, or elements of them.
      equation: JAX's `gather`, along the elements.
      xs: The sequence, whose elements are arrays.
      number: The numbers, `[..., axes]`, in `home`.
      place: Which of the axes' numbers is that of the elements.
    """
    kind = element_type(type_of_atom(equation.inputs[0]))
    mode = equation.source.params["mode"]
    space = home.space
    values, starts = body.rows_and_starts(home, xs, kind)
    sizes = home.lengths(xs.space)
    room = home.bare()
    shape = (*number.aval.shape[:-1], *kind.shape)
    out = Rows(
        jax.ShapeDtypeStruct(shape, kind.dtype),
        room,
    )

    def compute(run: Run) -> list[Any]:
        every = run.get(values)
        own = run.get(number)[..., place]
        size = along(
            run.get(sizes),
            own,
        )
        first = along(starts(run), own)
        nearest = jnp.clip(
            own,
            0,
            jnp.maximum(size - 1, 0),
        )
        last = max(
            len(every) - 1,
            0,
        )
        found = taken(
            every,
            jnp.clip(first + nearest, 0, last),
        )
        if mode == jax.lax.GatherScatterMode.FILL_OR_DROP:
            is_there = (own >= 0) & (own < size)
            found = or_filled(found, is_there, equation)
        return filled_rows(
            run,
            [out],
            [found],
        )

    home.block.add(
        [out],
        compute,
    )
    return View(out, space)


def or_filled(
    values: Any,
    is_there: Any,
    equation: Equation,
) -> Any:
    """Values where an element is there; elsewhere the number that JAX gives for an element that a sequence lacks.

    Args:
      values: `[..., ...]`: the values.
      is_there: `[...]`: whether an element is there.
      equation: JAX's `gather`.
    """
    blank = equation.source.params["fill_value"]
    if blank is None:
        dtype = values.dtype
        if jnp.issubdtype(
            dtype,
            jnp.inexact,
        ):
            blank = np.nan
        elif jnp.issubdtype(
            dtype,
            jnp.signedinteger,
        ):
            blank = np.iinfo(dtype).min
        else:
            is_bool = jnp.issubdtype(
                dtype,
                jnp.bool_,
            )
            blank = True if is_bool else np.iinfo(dtype).max
    return jnp.where(
        along(is_there, values),
        values,
        jnp.asarray(blank, values.dtype),
    )


def _has_sequences(value: Value) -> bool:
    """Whether a value is no sequence, or one of sequences."""
    return not isinstance(value, Elements) or isinstance(
        value.element,
        Elements,
    )
