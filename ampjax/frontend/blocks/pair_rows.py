"""Rows of matrices of pairs by computed numbers. The pairs of a row lie one after the other, so a read is a place and a length, however many rows there are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from ampjax.frontend.batches.programs_of_rows import Rows, Run, View, filled_rows, taken
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.draft.values import Constant, Elements


def row_by_number(
    home: Body,
    xs: Elements,
    number: Callable[[Run], Any],
    kind: Any,
    fill: Callable[[Any, Any], Any] | None,
) -> Elements | None:
    """One row of a matrix of pairs for each row of a room; None for pairs that are computed in a loop, and for rows of unequal lengths.

    Args:
      home: The rows that read.
      xs: The matrix that each of them sees, as a sequence of sequences.
      number: From the run to the number of each one's row, `[rows]`.
      kind: The type of a pair.
      fill: From pairs, and whether the matrix has their row, to what is read; None to read the nearest row.
    """
    low = home.low
    matrix = xs if xs.source is None else xs.source.elements
    pairs = matrix.element
    if not isinstance(pairs, Elements) or isinstance(pairs.element, Elements):
        return None
    row_space = matrix.space
    assert row_space.parent is not None
    columns = low.same_for_all(pairs, row_space.parent)
    source = None if columns is None else _laid_out(home, pairs, kind)
    if columns is None or source is None:
        return None
    assert source.room is not None
    # where each row of a matrix begins, of all rows of all matrices; and where the first of them is
    begins = low.reads(
        source.room.place,
        (low.root, row_space),
        pairs.space.first_rows,
        ("first pair of", pairs.space),
    )
    first = home.starts((low.root, row_space))
    sizes = home.lengths(xs.space)
    found = low.copied(Elements(columns, Constant(0)), home.space).space
    room = home.inside(found).bare()
    parents = home.parents(found)
    column = home.numbers(found)
    out = Rows(kind, room)

    def compute(run: Run) -> list[Any]:
        every = run.get(source)
        own = number(run)
        size = run.get(sizes)
        nearest = jnp.clip(own, 0, jnp.maximum(size - 1, 0))
        begin = taken(run.slots[begins], run.slots[first] + nearest)
        # what only fills the room up belongs to no row, and is none that counts
        around = jnp.minimum(run.slots[parents], max(len(own) - 1, 0))
        at = taken(begin, around) + run.slots[column]
        values = taken(every, jnp.clip(at, 0, max(len(every) - 1, 0)))
        if fill is not None:
            is_there = (own >= 0) & (own < size)
            values = fill(values, taken(is_there, around))
        return filled_rows(run, [out], [values])

    home.block.add([out], compute)
    row: Value = View(out, found)
    return Elements(found, row)


def _laid_out(home: Body, pairs: Elements, kind: Any) -> Rows | None:
    """The pairs of all matrices as an array, row by row; None where no such array is seen before a loop."""
    low = home.low
    value = pairs.element
    if isinstance(value, View):
        room = value.rows.room
        if room is not None:
            if room.frame.outer is not None:
                return None
            is_own = value.space is pairs.space and room.space is pairs.space
            if is_own and value.origin is None:
                return value.rows
    loop = low.loops.get(home.room.frame)
    around = home.block if loop is None else loop.block.outer
    assert around is not None
    if isinstance(value, View) and not around.sees(value.rows):
        return None
    return Body(low, around, low.room(low.root, pairs.space)).rows(value, kind)
