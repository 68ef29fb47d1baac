"""Programs over rows: the computations of a batch, as steps that JAX traces when the program runs.

All values of a *room* have one row for each row of its place. In a room that a computed value decides about, a mask says which rows count; the
others hold copies of one that does. So a function is only ever computed of what it is meant for, and derivatives of rows that do not count are
zero and finite. Where no row may count, a block is left out (`jax.lax.cond`).
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batches.row_tables import Frame, Place, RowTables
from ampjax.frontend.draft.index_spaces import IndexSpace
from ampjax.frontend.draft.payload_types import from_raw, is_key, raw_type
from ampjax.frontend.draft.row_origins import Origin, RowOrigin, origins_of
from ampjax.frontend.loops.masked_rows import with_copies
from ampjax.jaxprs.primitives import is_inexact
from ampjax.jaxprs.wide_sums import WIDE, is_low


@dataclass(eq=False)
class Slot:
    """An array of the batch.

    Args:
      frame: Its frame: the array has an axis for the levels of each loop, then what `make` says.
      make: Makes it.
    """

    frame: Frame
    make: Callable[[RowTables], np.ndarray]


@dataclass(eq=False)
class Room:
    """The rows on which steps compute: all rows of a place, or the rows of a place that a mask says.

    Args:
      frame: The frame.
      space: The space.
      there: The array of the batch that says which rows are no copies; its shape says how many rows there are.
      mask: Which rows count; None for all.
      is_known: Whether the examples alone say which rows count.
      runs_empty: Whether steps run even where no row of the mask counts. To leave a step out, `jax.lax.cond` keeps copies of all that the step reads.
    """

    frame: Frame
    space: IndexSpace
    there: Slot
    mask: Rows | None = None
    is_known: bool = True
    runs_empty: bool = False

    @property
    def place(self) -> Place:
        """Its place."""
        return self.frame, self.space

    def size(self, slots: Mapping[Slot, Any]) -> int:
        """Counts the rows in a run; in a loop that has ended, the rows of all levels.

        Args:
          slots: The arrays of the batch.
        """
        return math.prod(slots[self.there].shape)

    @property
    def may_be_empty(self) -> bool:
        """Whether only the run tells if any row counts."""
        if self.runs_empty:
            return False
        if self.mask is not None:
            return True
        return self.frame.outer is not None and not self.frame.is_in_steps


@dataclass(eq=False)
class Rows:
    """An array of the program.

    Args:
      aval: The type of a row.
      room: Where it has a row for each row; None for a single value that does not depend on the examples. Of a loop that has ended, the rows of
        all levels.
    """

    aval: Any
    room: Room | None


@dataclass(eq=False)
class ChangedRows(Rows):
    """An array of which single rows are new; where the change is left out, the array before the change.

    Args:
      before: The array before.
    """

    before: Rows

    def first(self, is_made: Callable[[Rows], bool]) -> Rows:
        """Finds the array before all changes of a kind.

        Args:
          is_made: Whether a change is of that kind, by the array that the change makes.
        """
        found: Rows = self
        while isinstance(found, ChangedRows) and is_made(found):
            found = found.before
        return found


@dataclass(frozen=True, eq=False)
class View:
    """A computed value: for each row of a space a row of an array.

    Args:
      rows: The array.
      space: The space.
      origin: For each row of the space the row of the array's own space; None where these are the same.
    """

    rows: Rows
    space: IndexSpace
    origin: Origin | None = None

    def reads(self, space: IndexSpace) -> Origin:
        """For each row of a space inside, or of its own one, the row of the array's space.

        Args:
          space: That space.
        """
        own = self.origin

        def rows(data: Any) -> np.ndarray:
            if own is None:
                given = np.arange(self.space.n_rows(data))
            else:
                given = own(data)
            return space.rows_of(data, self.space, given)

        def some(data: Any, at: np.ndarray) -> np.ndarray:
            around = space.rows_around(data, self.space, at)
            return around if own is None else origins_of(own, data, around)

        return RowOrigin(space, rows, some)


@dataclass(eq=False)
class Step:
    """A step of a program.

    Args:
      outputs: What it gives.
      compute: From the run to their values.
    """

    outputs: Sequence[Rows]
    compute: Callable[[Run], Sequence[Any]]


class Run:
    """A run of a program, or of a block inside a program.

    Args:
      slots: The arrays of the batch, as the loops around see them.
      values: Values so far.
      key: A PRNG key, if random numbers are drawn; else None.
    """

    def __init__(
        self,
        slots: Mapping[Slot, Any],
        values: ChainMap[Rows, Any],
        key: Any = None,
    ):
        self.slots = slots
        self._values = values
        self.key = key

    def inner(
        self,
        slots: Mapping[Slot, Any] | None = None,
        key: Any = None,
    ) -> Run:
        """Makes the run of a block that sees the values of this run.

        Args:
          slots: Arrays that it sees otherwise.
          key: Its PRNG key; by default this one's.
        """
        if slots:
            seen = {**self.slots, **slots}
        else:
            seen = self.slots
        return Run(
            seen,
            self._values.new_child(),
            self.key if key is None else key,
        )

    def get(self, rows: Rows) -> Any:
        """The value of an array."""
        return self._values[rows]

    def lacks(self, rows: Rows) -> bool:
        """Whether an array is not made yet, or only in a block inside."""
        return rows not in self._values

    def put(
        self,
        rows: Sequence[Rows],
        values: Sequence[Any],
    ) -> None:
        """Notes values."""
        self._values.update(zip(rows, values, strict=True))

    def size(self, room: Room) -> int:
        """Counts the rows of a room; for a room in a loop that has ended, the rows of all levels."""
        return room.size(self.slots)

    def zeros(self, rows: Rows) -> Any:
        """Zeros for an array."""
        if rows.room is None:
            lead = ()
        else:
            lead = (self.size(rows.room),)
        return zeros(lead, rows.aval)


@dataclass(frozen=True, eq=False)
class Report:
    """A metric or an output that a function tells beside its result: a number or an array for each row of a space.

    Args:
      name: What it is called.
      is_metric: Whether it is a metric; else an output.
      values: Arrays: of a metric the value and what it counts for; of an output the value and whether it counts.
    """

    name: str
    is_metric: bool
    values: Sequence[View]


@dataclass(eq=False)
class Block:
    """Steps that are run together, or left out together.

    Args:
      outer: The block around, whose values it sees.

    Attributes:
      reports: What is told in it.
    """

    outer: Block | None = None
    reports: list[Report] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    _made: dict[Hashable, Any] = field(default_factory=dict)
    _own: set[Rows] = field(default_factory=set)

    def add(
        self,
        outputs: Sequence[Rows],
        compute: Callable[[Run], Sequence[Any]],
    ) -> None:
        """Adds a step.

        Args:
          outputs: What it gives.
          compute: From the run to their values.
        """
        self.steps.append(Step(outputs, compute))
        self._own.update(outputs)

    def owns(self, rows: Rows) -> bool:
        """Whether an array is made here."""
        return rows in self._own

    def sees(self, rows: Rows) -> bool:
        """Whether an array is made here or in a block around."""
        block: Block | None = self
        while block is not None:
            if block.owns(rows):
                return True
            block = block.outer
        return False

    def give(self, rows: Sequence[Rows]) -> None:
        """Notes arrays that the caller of the block puts there first."""
        self._own.update(rows)

    def once(
        self,
        key: Hashable,
        make: Callable[[], Any],
    ) -> Any:
        """Makes an object at first use, unless this block or a block around has made the object.

        Args:
          key: What it is.
          make: Makes it.
        """
        block: Block | None = self
        while block is not None:
            if key in block._made:
                return block._made[key]
            block = block.outer
        self._made[key] = made = make()
        return made

    def run(self, run: Run) -> None:
        """Runs all steps."""
        for step in self.steps:
            run.put(step.outputs, step.compute(run))


@dataclass(frozen=True, eq=False)
class ReadsByNumber:
    """Reads of a loop by the number of a round, such as of a layer's weights, from arrays alike for all rows.

    Made in the loop, the derivative of a read is an array as large as all layers in each round; so all are made before it, if that is not too much.

    Args:
      block: Where it is read.
      numbers: What it depends on, in that block.
      found: What is read there.
      inside: What that is called in a round.
      most_rounds: For more rounds it would be too much to read for all before the loop.
    """

    block: Block
    numbers: Sequence[Rows]
    found: Sequence[Rows]
    inside: Sequence[Rows]
    most_rounds: int

    def of_rounds(
        self,
        run: Run,
        numbers: Sequence[Any],
    ) -> list[Any]:
        """Reads for each round, `[rounds, ...]`.

        Args:
          run: The run of the block around the loop.
          numbers: `[rounds]` each: what the reads depend on.
        """
        return jax.vmap(lambda own: self.of_round(run, own))([*numbers])

    def of_round(
        self,
        run: Run,
        numbers: Sequence[Any],
    ) -> list[Any]:
        """Reads for one round.

        Args:
          run: The run of the block around the loop, or of the round.
          numbers: What the reads depend on.
        """
        own = run.inner()
        own.put(self.numbers, numbers)
        self.block.run(own)
        return [*map(own.get, self.found)]

    def given_to(self, block: Block, space: IndexSpace) -> list[View]:
        """Notes the reads in the block of a round, and returns their values there.

        Args:
          block: The block.
          space: The space of the loop's rows.
        """
        block.give(self.inside)
        return [View(rows, space) for rows in self.inside]


def run_block(
    run: Run,
    block: Block,
    room: Room,
    outputs: Sequence[Rows],
    may_be_empty: bool = True,
) -> Sequence[Any]:
    """Runs a block and gives the block's arrays; if no row of the room counts, zeros, or changed arrays without the change.

    Args:
      run: The run of the block around.
      block: The block.
      room: Its room.
      outputs: Which of its arrays are wanted.
      may_be_empty: Whether there may be no row that counts.
    """

    def left_out() -> list[Any]:
        result = []
        for rows in outputs:
            before = rows.first(run.lacks) if isinstance(rows, ChangedRows) else rows
            if run.lacks(before):
                result.append(run.zeros(rows))
            else:
                result.append(as_typed(run.get(before), rows.aval))
        return result

    if not run.size(room):
        return left_out()

    def go() -> list[Any]:
        inside = run.inner()
        block.run(inside)
        return [as_typed(inside.get(rows), rows.aval) for rows in outputs]

    if not (may_be_empty and room.may_be_empty):
        return go()
    if room.mask is None:
        counts = run.slots[room.there]
    else:
        counts = run.get(room.mask)
    return jax.lax.cond(
        jnp.any(counts),
        go,
        left_out,
    )


def run_again(
    run: Run,
    block: Block,
    outputs: Sequence[Rows],
    settings: Mapping[str, Any],
) -> Sequence[Any]:
    """Runs a block under `jax.checkpoint`, so the backward pass keeps none of the block's values.

    Args:
      run: The run of the block around.
      block: The block.
      outputs: Which of its arrays are wanted.
      settings: Settings of `jax.checkpoint`.
    """

    def go() -> list[Any]:
        inside = run.inner()
        block.run(inside)
        return [as_typed(inside.get(rows), rows.aval) for rows in outputs]

    return jax.checkpoint(go, **settings)()


def as_typed(value: Any, aval: Any) -> Any:
    """Converts a value to exactly the dtype of a type, so that all branches agree."""
    if is_key(aval):
        return value
    return jax.lax.convert_element_type(value, aval.dtype)


def zeros(lead: tuple[int, ...], aval: Any) -> Any:
    """Zeros, or keys made of zeros.

    Args:
      lead: Axes before the type's own.
      aval: The type.
    """
    kind = raw_type(aval)
    return from_raw(
        jnp.zeros((*lead, *kind.shape), kind.dtype),
        aval.dtype,
    )


def sheltered(values: Any, mask: Any) -> Any:
    """Replaces the rows that do not count by copies of the first row that does.

    Args:
      values: `[rows, ...]`.
      mask: `[rows]`: which rows count.
    """
    if not len(values):
        return values
    # no result depends on the copy
    return with_copies(values, mask, jax.lax.stop_gradient(values[jnp.argmax(mask)]))


def derived_if(there: Any, values: Any) -> Any:
    """Values whose derivatives are zero unless something is there.

    Where a batch has no row of a space at all, the space's rows are made of zeros, of which a logarithm or a root has no finite derivative.

    Args:
      there: `[]` or `[rows]`: whether a row is there.
      values: `[...]`.
    """
    if not is_inexact(values.dtype):
        return values
    return jax.lax.select(
        jnp.any(there),
        values,
        jax.lax.stop_gradient(values),
    )


def filled_up(run: Run, room: Room, values: Any) -> Any:
    """Rows of a room, with copies of a row that is there in place of rows that only fill the room up.

    Reductions and loops give such a row what they give for no elements, of which a logarithm or a quotient would not be finite.

    Args:
      run: The run.
      room: The room, all of whose rows there are.
      values: `[rows, ...]`.
    """
    if not len(values):
        return values
    there = jnp.asarray(run.slots[room.there])
    return with_copies(values, there, taken(values, jnp.argmax(there)))


def filled_rows(run: Run, rows: Sequence[Rows], values: Sequence[Any]) -> list[Any]:
    """Values of arrays, each filled up with copies; see `filled_up`."""
    result = []
    for each, value in zip(rows, values, strict=True):
        assert each.room is not None
        result.append(filled_up(run, each.room, value))
    return result


def taken(values: Any, at: Any) -> Any:
    """Rows by their numbers.

    Args:
      values: `[rows, ...]`; where there is none, the result is zeros.
      at: Integers, each of which is the number of a row.
    """
    if not len(values):
        return zeros(
            at.shape,
            jax.ShapeDtypeStruct(values.shape[1:], values.dtype),
        )
    if is_key(values):
        return values[at]
    dtype = values.dtype
    if is_low(dtype):
        # cotangents of a row that is read often are then summed in float32
        values = values.astype(WIDE)
    found = values.at[at].get(mode="promise_in_bounds")
    return found.astype(dtype)
