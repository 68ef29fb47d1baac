"""The lowering of a model to steps over rows: the arrays of its batches, sequences from outside, loops."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ampjax.frontend.batches.inverse_reads import inverse
from ampjax.frontend.batches.programs_of_rows import (
    Block,
    ReadsByNumber,
    Room,
    Rows,
    Slot,
    View,
)
from ampjax.frontend.batches.row_tables import Frame, Place, RowTables
from ampjax.frontend.batches.symbolic_lengths import SymbolicLengths
from ampjax.frontend.combinators.tracing import Call, Combinator, Rules
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.deduction.lowering import Lowering
from ampjax.frontend.draft.index_spaces import Column, Guard, IndexSpace
from ampjax.frontend.draft.row_origins import Origin, ReadColumn, RowOrigin, origins_of, rows_at
from ampjax.frontend.draft.values import Constant, Elements, SequenceSource, Static
from ampjax.utils.row_ranges import ranges

if TYPE_CHECKING:
    from ampjax.frontend.batches.room_bodies import Body

Value = Any
"""What is known of a value: `Constant`, `Static` (it follows from the examples), `Elements` (a sequence), or `View` (it is computed)."""

Rule = Callable[["Body", Call, Sequence[Value]], list[Value]]
"""How a combinator becomes steps: from where it is used and its operands to its results."""

STEP_RULES = Rules[Rule]()
"""How each combinator becomes steps; the modules in `ampjax/frontend/batch_rules` register theirs."""

SequenceRule = Callable[["Body", Equation, Sequence[Value]], "list[Value] | None"]
"""How an operation of JAX on a whole sequence becomes steps; None where it can't."""


class RowLowering:
    """Lowers the functions of one model.

    It has more than twelve attributes: tables of what the functions have made so far, one for each kind of thing.

    Args:
      rules: How each combinator becomes steps.
      of_sequences: How operations of JAX on whole sequences do.

    Attributes:
      host: Finds out what follows from the examples, and collects the checks of their numbers.
      slots: The arrays of a batch.
      recursions: Those that are being lowered, by the object that their calls name them with.
      loops: For each frame of a loop, the loop.
      lengths: The index spaces of sequences whose length is an expression.
      n_draws: How many places draw random numbers.
      across: For each value of copied elements what they are copies of, in the space of these.
      is_in_operation: Whether a single operation on whole sequences is being lowered, and no function of the user's.
      guards: For the frame of a loop that computes some rows of its space only, which ones.
      grids: The blocks of spaces of pairs, by space; in a loop by the loop's frame and the space.
      table_reads: For each array of rows that are read from a table, the read.
    """

    def __init__(
        self,
        rules: Mapping[Combinator, Rule],
        of_sequences: SequenceRule,
    ):
        self.host = Lowering({}, {}, of_rows=True)
        self.rules = rules
        self.of_sequences = of_sequences
        self.root = Frame()
        self.recursions: dict[Any, Any] = {}
        self.loops: dict[Frame, Loop] = {}
        self.lengths = SymbolicLengths(self)
        self.n_draws = 0
        self.across: dict[Value, Value] = {}
        self.guards: dict[Frame, Guard] = {}
        self.is_in_operation = False
        self.grids: dict[Hashable, Any] = {}
        self.table_reads: dict[Any, Any] = {}
        self._slots: dict[tuple[Sequence[Any], Frame], Slot] = {}
        self._copies: dict[Hashable, IndexSpace] = {}
        self._copied: dict[IndexSpace, IndexSpace] = {}
        self._origins: dict[Hashable, RowOrigin] = {}

    @contextmanager
    def in_operation(self, equation: Equation) -> Iterator[None]:
        """Says that an operation on whole sequences is lowered inside; loops and choices of JAX have functions of the user's.

        Args:
          equation: The operation.
        """
        before = self.is_in_operation
        self.is_in_operation = equation.source.primitive.name not in ("scan", "cond")
        try:
            yield
        finally:
            self.is_in_operation = before

    @property
    def slots(self) -> list[Slot]:
        """The arrays of a batch, in order."""
        return [*self._slots.values()]

    @property
    def layout(self) -> list[str]:
        """The meaning of each array of a batch, in words."""
        result = []
        for key, frame in self._slots:
            result.append(
                " ".join(
                    map(
                        _word,
                        [len(frame.around()), *key],
                    )
                )
            )
        return result

    def slot(
        self,
        key: Sequence[Any],
        frame: Frame,
        make: Callable[[RowTables], np.ndarray],
    ) -> Slot:
        """An array of the batch; one for each key.

        Args:
          key: What it says.
          frame: Its frame.
          make: Makes it.
        """
        if (key, frame) not in self._slots:
            self._slots[key, frame] = Slot(frame, make)
        return self._slots[key, frame]

    def room(
        self,
        frame: Frame,
        space: IndexSpace,
        mask: Rows | None = None,
        is_known: bool = True,
        runs_empty: bool = False,
    ) -> Room:
        """A room."""
        there = self.slot(
            ("there", space),
            frame,
            lambda tables: tables.is_there(frame, space),
        )
        return Room(frame, space, there, mask, is_known, runs_empty)

    def reads(
        self,
        source: Place,
        place: Place,
        origin: Origin,
        way: Hashable,
    ) -> Slot:
        """Returns the array of the batch that says where each row of a place finds the row that the place reads.

        Args:
          source: Where the values are.
          place: Where they are read.
          origin: For each row of the place's space, the row of the source's.
          way: What the origin says: the same means the same.
        """
        key = ("reads", source, place[1], way)
        return self.slot(
            key,
            place[0],
            lambda tables: tables.reads(source, place, origin),
        )

    def readers(
        self,
        source: Place,
        place: Place,
        origin: Origin,
        way: Hashable,
    ) -> Slot | None:
        """The array of the batch that says which rows read each row; None for reads in a loop that goes on level by level.

        Args:
          source: Where the values are.
          place: Where they are read.
          origin: For each row of the place's space, the row of the source's.
          way: What the origin says: the same means the same.
        """
        if place[0].outer is not None and not place[0].is_in_steps:
            return None
        key = ("readers", source, place, way)

        def make(tables: RowTables) -> np.ndarray:
            at = tables.wanted(source, place, origin)
            n_rows = tables.span(source, place[0])
            return inverse(at, n_rows, tables, key)

        return self.slot(key, self.root, make)

    def copied(self, value: Elements, around: IndexSpace) -> Elements:
        """A sequence from outside, once more for each row of a space.

        Args:
          value: The sequence.
          around: The space.
        """
        outer = value.space.parent
        if outer is around:
            return value
        assert outer is not None

        def origin(data: Any) -> np.ndarray:
            return around.rows_of(
                data,
                outer,
                np.arange(outer.n_rows(data)),
            )

        def some(data: Any, rows: np.ndarray) -> np.ndarray:
            return around.rows_around(data, outer, rows)

        every = RowOrigin(around, origin, some)
        original = self._copied.get(value.space, value.space)
        found = self.sequence_at(value, around, every, "around", original)
        known = value.source
        found.source = SequenceSource(value if known is None else known.elements, every)
        return found

    def original(self, space: IndexSpace) -> IndexSpace:
        """The space of the elements of which a space's are copies."""
        return self._copied.get(space, space)

    def copy_space(self, original: IndexSpace, around: IndexSpace) -> IndexSpace | None:
        """The space of copies that `copied` makes, if there is one already."""
        if original.parent is around:
            return original
        return self._copies.get((around, original, "around"))

    def contiguous(self, xs: Elements) -> View | None:
        """The array in which the elements of each sequence lie one after the other; None if no array surely is like that.

        Args:
          xs: A sequence of arrays, or copies of one from around.
        """
        if not isinstance(xs.element, View):
            return None
        source = self.across.get(xs.element)
        view = xs.element if source is None else source
        space = xs.space if source is None else self.original(xs.space)
        room = view.rows.room
        # elements that are all alike may be rows around
        if room is None or view.space is not space:
            return None
        if view.origin is not None or view.space is not room.space:
            return None
        # rows of a loop lie level by level
        if room.frame.is_in_steps or room.space is room.frame.space:
            return None
        return view

    def sequence_at(
        self,
        value: Elements,
        around: IndexSpace,
        origin: Callable[[Any], np.ndarray],
        way: Hashable,
        original: Any = None,
        read: Hashable = None,
    ) -> Elements:
        """For each row of a space, one of the sequences that each row of another space has.

        Args:
          value: The sequences.
          around: The space.
          origin: For each of its rows, the row of the other space.
          way: What the origin says: the same means the same.
          original: The space of which the elements are copies, if they are those of a sequence around.
          read: What the origin says, if copies of equal sequences are read otherwise, too, as a matrix's rows and columns are; else as `way`.
        """
        outer = value.space
        read = way if read is None else read

        def sizes(data: Any) -> np.ndarray:
            rows = origin(data)
            lengths = outer.lengths(data)
            if len(lengths):
                return np.where(rows >= 0, lengths[rows], 0)
            return np.zeros(len(rows), np.int64)

        key = (around, outer if original is None else original, way)
        if key not in self._copies:
            self._copies[key] = IndexSpace(
                around,
                outer.dimension,
                Column(around, sizes),
            )
            if original is not None:
                self._copied[self._copies[key]] = original
        inner = self._copies[key]

        def element_rows(data: Any) -> np.ndarray:
            first = rows_at(outer.starts(data), origin(data))
            return ranges(first, inner.lengths(data))

        def some_rows(data: Any, rows: np.ndarray) -> np.ndarray:
            own = inner.parents_of(data, rows)
            first = rows_at(
                outer.starts(data),
                origins_of(origin, data, own),
            )
            return first + rows - inner.starts(data)[own]

        def element() -> Value:
            one = value.element
            row = RowOrigin(inner, element_rows, some_rows)
            if original is not None and isinstance(one, Elements):
                same = self.same_for_all(one, inner)
                if same is not None:
                    # the columns of a matrix of pairs, of which copies are one, too
                    own = self.copied(one, outer)
                    return self.sequence_at(own, inner, row, "around", same, ("of", read, outer))
            found = self.value_at(one, outer, inner, row, (read, outer))
            if original is not None and isinstance(found, View | Static):
                # what is computed for each row of a space between is no copy of one further out
                source = one if outer is original else self.across.get(one)
                if source is not None:
                    self.across[found] = source
            return found

        return Elements(inner, element)

    def value_within(
        self,
        value: Value,
        outer: IndexSpace,
        space: IndexSpace,
        origin: Callable[[Any], np.ndarray],
        way: Hashable,
    ) -> Value:
        """Like `value_at`, for elements of a sequence: a sequence that all elements share stays a shared one, as the columns of a matrix of pairs do.

        Args:
          value: The value.
          outer: The space of the sequence's elements.
          space: The other space, of rows around or of their elements.
          origin: For each row there, the row of `outer`, around which is the same row.
          way: What the origin says.
        """
        around = outer.parent
        assert around is not None
        same = self.same_for_all(value, around) if isinstance(value, Elements) else None
        if same is None:
            return self.value_at(value, outer, space, origin, way)
        rows = value.space
        inner = self.copied(Elements(same, Constant(0)), space).space

        def every(data: Any) -> np.ndarray:
            first = rows_at(rows.starts(data), origin(data))
            return ranges(first, inner.lengths(data))

        def some(data: Any, at: np.ndarray) -> np.ndarray:
            own = inner.parents_of(data, at)
            first = rows_at(rows.starts(data), origins_of(origin, data, own))
            return first + at - inner.starts(data)[own]

        row = RowOrigin(inner, every, some)
        return Elements(
            inner,
            self.value_at(value.element, rows, inner, row, (way, rows)),
        )

    def same_for_all(self, value: Elements, space: IndexSpace) -> IndexSpace | None:
        """The sequence further out of which a sequence is a copy for all elements of a space; None for any other."""
        original = self._copied.get(value.space)
        if original is None or original.parent not in space.around():
            return None
        return original

    def value_at(
        self,
        value: Value,
        outer: IndexSpace,
        space: IndexSpace,
        origin: Callable[[Any], np.ndarray],
        way: Hashable,
    ) -> Value:
        """A value that each row of a space has, for each row of another space.

        Args:
          value: The value.
          outer: The space that has it.
          space: The other space.
          origin: For each row there, the row of `outer`; below 0 for any.
          way: What the origin says.
        """
        if isinstance(value, Static):
            return Static(ReadColumn(space, value.column.inside(outer), origin))
        if isinstance(value, View):
            key = (way, outer, space, value.space, value.origin)
            if key not in self._origins:
                self._origins[key] = _compose_origins(value.reads(outer), origin, space)
            return View(value.rows, space, self._origins[key])
        if isinstance(value, Elements):
            return self.sequence_at(self.copied(value, outer), space, origin, way)
        return value


@dataclass(frozen=True, eq=False)
class Recall:
    """A read of a loop's own states: for each row one of another row, or one from before the loop.

    Args:
      awaited: For each row the row of the space whose states it reads; below 0 for none.
      at_start: Where it reads none, the row whose states before the loop it reads.
      rows: By the number of the state, what is read.
    """

    awaited: Origin
    at_start: Origin | None = None
    rows: dict[int, Rows] = field(default_factory=dict)


class Loop:
    """The reads of a loop from values around the loop: before the loop, or in each step.

    Args:
      frame: The loop's frame.
      states: Of a loop in steps, what its states are called before they are read.

    Attributes:
      reads: What the loop's body has of values from outside: the array in it, the array outside, where each row is found, and by whom each is read.
      recalls: What the body of a loop in steps reads of its states.
      counts: Where the examples alone say which rows count at a level of a loop through sequences: the mask that says so.
      held: What a level hands to the next one beside the carry: the array before the level, and after it.
      by_number: What a level reads by its number; None for nothing.
    """

    def __init__(
        self,
        frame: Frame,
        states: Sequence[Rows] | None = None,
    ):
        self.frame = frame
        self.states = states
        self.reads: list[tuple[Rows, Rows, Slot, Slot | None]] = []
        self.recalls: dict[Hashable, Recall] = {}
        self.counts: Rows | None = None
        self.held: list[tuple[Rows, Rows]] = []
        self.by_number: ReadsByNumber | None = None
        self.block = Block()

    def has_state(self, rows: Rows) -> bool:
        """Whether an array is a state of the loop."""
        return self.states is not None and rows in self.states

    def recalled(self, view: View, room: Room) -> Rows:
        """Returns the rows that the body reads of a state.

        Args:
          view: The state, and for each row of the body the row that it reads.
          room: The body's room.
        """
        assert self.states is not None
        key = (view.space, view.origin)
        if key not in self.recalls:
            self.recalls[key] = Recall(view.reads(room.space))
        rows = self.recalls[key].rows
        number = self.states.index(view.rows)
        if number not in rows:
            rows[number] = Rows(view.rows.aval, room)
            self.block.give([rows[number]])
        return rows[number]


def _word(part: Any) -> str:
    """Writes a part of an array's key as a word, the same in each process."""
    if isinstance(part, int | str | IndexSpace):
        return str(part)
    return type(part).__name__


def _compose_origins(
    reads: Origin,
    origin: Origin,
    space: IndexSpace,
) -> RowOrigin:
    """The rows that the origins of a space's rows read."""
    return RowOrigin(
        space,
        lambda data: origins_of(reads, data, origin(data)),
        lambda data, rows: origins_of(reads, data, origins_of(origin, data, rows)),
    )
