"""Index spaces: a space has one message per instance, per element of a sequence, per element of an element, ...

All messages of a space carry the same state fields: those of the spaces around it, the element's number (`word_i`), and what control
there needs to know about the element (`chars_n`: how many characters; `if_1`: which branch). The fields of a space are known when
everything has been lowered, so what depends on them is made last.

The nodes of a graph and its edges of each kind are *ragged* spaces: all rows that belong to one row of the space around travel in one ragged
message, which carries the state of that row.

Only the run tells how many rows the rounds of a loop have that reads a value. What the instances say does not depend on the round: so columns belong to
the space without rounds, the *known* one, and a sequence inside has in each round the rows and the facts of the one that it *copies*.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ampjax.frontend.loops.table_passes import find_parents, wide

if TYPE_CHECKING:
    from ampjax.frontend.combinators.draw_places import DrawPlace
    from ampjax.frontend.draft.decisions import Decision
    from ampjax.frontend.instances.instance_columns import Columns


class Column:
    """The instances' value for every row of a space: an array, computed once for a data set.

    Args:
      space: The space; in a loop that reads a value, the known one without its rounds takes its place.
      compute: From the data set to the array `[rows, ...]`.
      origin: The column of a space further out that it repeats; None if it repeats none.

    Attributes:
      origin: The column that says the same with the fewest rows; often itself.
      outer: The column of a space around that says the same of all rows within one of its own; often itself.
    """

    def __init__(
        self,
        space: IndexSpace,
        compute: Callable[[Columns], np.ndarray],
        origin: Column | None = None,
    ):
        self.space = space.known
        self._compute = compute
        self.origin = origin or self
        self.outer = self

    def of(self, data: Columns) -> np.ndarray:
        """Its values for a data set, `[rows, ...]`."""
        return data.once(
            self,
            lambda: np.asarray(self._compute(data)),
        )

    def inside(self, space: IndexSpace) -> Column:
        """The same, for each row of a space inside its own."""
        if space.known is self.space:
            return self
        column = Column(
            space,
            lambda data: space.rows_of(data, self.space, self.of(data)),
            self.origin,
        )
        column.outer = self.outer
        return column


class NumberColumn(Column):
    """The number of each element within its sequence, int32.

    Args:
      space: The space of the elements.
    """

    def __init__(self, space: IndexSpace):
        super().__init__(
            space,
            lambda data: space.numbers(data).astype(np.int32),
        )


class IndexSpace:
    """A space: one row per instance (`parent` None), or per element of a sequence that each row of `parent` has.

    It has more than 15 methods: half of them are properties that give the names of its state fields and the spaces around it.

    Args:
      parent: The space around it.
      dimension: The sequence's name.
      sizes: Elements of each of the parent's rows; None where only the run tells, as in a loop that reads a value.
      is_ragged: Whether all rows that belong to one of the parent's travel in one ragged message.
      copied: The space outside of the rounds around whose rows it has in each of them; None where there are no rounds.

    Attributes:
      facts: State fields beside the element's number, with their columns (None: set by a node); the parent's, if this space is ragged; also
        those of the space that it copies.
      decision: For rounds, and for several choices between the same functions: what makes them.
      meanings: What each of these fields says, for people.
      uses: If its elements are choices between the same functions, which uses of a combinator they are.
      is_part: Whether it has none or one of each of the parent's rows, as a branch has.
    """

    def __init__(
        self,
        parent: IndexSpace | None = None,
        dimension: str = "",
        sizes: Column | None = None,
        is_ragged: bool = False,
        copied: IndexSpace | None = None,
    ):
        self.parent = parent
        self.dimension = dimension
        self.sizes = sizes
        self.is_ragged = is_ragged
        if copied is None:
            self.facts: MutableMapping[str, Column | None] = {}
        else:
            self.facts = ChainMap({}, copied.facts)
        if parent is not None and is_ragged:
            self.facts = parent.facts
        self.copied = copied
        self.decision: Decision | None = None
        self.meanings: dict[str, str] = {}
        self.uses: Sequence[DrawPlace] = ()
        self.is_part = False
        self._inner: dict[str, IndexSpace] = {}
        self._copies: dict[IndexSpace, IndexSpace] = {}
        self._parts: dict[tuple[Column, int], IndexSpace] = {}
        if parent is not None and not is_ragged:
            is_loop = sizes is None
            self.meanings[self.index] = (
                "number of the round" if is_loop else f"number of the element along `{dimension}`"
            )

    def along(
        self,
        dimension: str,
        sizes: Column | None,
        is_ragged: bool = False,
    ) -> IndexSpace:
        """The space of the elements of a sequence that each row has; one for each dimension.

        Args:
          dimension: The sequence's name.
          sizes: How many elements each row has.
          is_ragged: Whether all elements of a row travel in one ragged message.
        """
        if sizes is not None and not self.is_known:
            return self.copy_of(self.outside.along(dimension, sizes, is_ragged))
        if dimension not in self._inner:
            # Messages carry fields of all spaces around: `w_n` of an outer sequence `w` is not that of an inner one.
            taken = {space.dimension for space in self.around()}
            taken |= {inner.dimension for space in self.around() for inner in space._inner.values()}
            taken |= {
                inner.dimension for inner in self._below()
            }  # they have the field of this one's length, too
            name = dimension
            while name in taken and not is_ragged:
                name = f"{name}_"
            self._inner[dimension] = IndexSpace(self, name, sizes, is_ragged)
        return self._inner[dimension]

    def copy_of(self, space: IndexSpace) -> IndexSpace:
        """The space of the same elements in each round: of a sequence that each row of the space outside has.

        Args:
          space: The sequence's space; its parent is `outside`.
        """
        if space not in self._copies:
            self._copies[space] = IndexSpace(
                self, space.dimension, space.sizes, space.is_ragged, space
            )
        return self._copies[space]

    def part(self, index: Column, number: int) -> IndexSpace:
        """The space of the rows for which a column has a value: of each row none, or one.

        Args:
          index: The column.
          number: The value.
        """
        if (index, number) not in self._parts:
            sizes = Column(
                self,
                lambda data: (index.of(data) == number).astype(np.int64),
            )
            part = IndexSpace(
                self,
                f"{self.dimension}_part{number}",
                sizes,
            )
            part.is_part = True
            self._parts[index, number] = part
        return self._parts[index, number]

    @property
    def outside(self) -> IndexSpace:
        """The same space without the innermost rounds around the space."""
        space = self.copied or self.parent
        assert space is not None
        return space

    @cached_property
    def known(self) -> IndexSpace:
        """The same space without any rounds around it: the instances decide on its rows."""
        return self if self.is_known else self.outside.known

    def around(self) -> list[IndexSpace]:
        """Lists this space and the spaces around, from the inside."""
        return [
            self,
            *(self.parent.around() if self.parent else ()),
        ]

    def _below(self) -> list[IndexSpace]:
        """The spaces within this one."""
        result = []
        for inner in self._inner.values():
            for below in (inner, *inner._below()):
                result.append(below)
        return result

    @property
    def carrier(self) -> IndexSpace:
        """The space whose states its messages carry: itself; for a ragged space, the one around it."""
        return self.parent if self.parent is not None and self.is_ragged else self

    @property
    def index(self) -> str:
        """The state field that numbers its elements."""
        return f"{self.dimension}_i"

    @property
    def size(self) -> str:
        """The state field with the number of elements, which is there once `add_size` has been called."""
        return f"{self.dimension}_n"

    def add_size(self) -> str:
        """Adds the state field with the number of elements to the space around, and returns the field's name.

        For a ragged space it is put where it does not change from round to round of a loop, so that states stay as they are in loops.
        """
        assert self.parent is not None
        where = self.parent
        sizes = self.sizes
        if self.is_ragged and sizes is not None:
            where = sizes.origin.space
            sizes = sizes.origin
        return where.fact(self.size, sizes, f"elements along `{self.dimension}`")

    @property
    def key(self) -> tuple[str, ...]:
        """The state fields that tell its messages apart, beside the instance."""
        space = self.carrier
        if space.parent is None:
            return ()
        return (*space.parent.key, space.index)

    @property
    def fields(self) -> tuple[str, ...]:
        """The state fields that its messages carry."""
        space = self.carrier
        if space.parent:
            return (*space.parent.fields, space.index, *space.facts)
        return tuple(space.facts)

    @cached_property
    def is_known(self) -> bool:
        """Tells whether the instances decide on the space's rows."""
        return self.parent is None or (self.sizes is not None and self.parent.is_known)

    @property
    def is_set(self) -> bool:
        """Tells whether the instances decide on the values of all fields, so that all messages of a row have the same."""
        return self.is_known and all(
            c is not None for space in self.around() for c in space.facts.values()
        )

    def fact(
        self,
        name: str,
        column: Column | None,
        meaning: str,
    ) -> str:
        """Adds a state field to all messages of the space; in a loop that reads a value, the instances' fields come in from outside.

        Args:
          name: The field.
          column: Its values; None if a node sets it.
          meaning: What it says, for people.

        Returns:
          The field's name.
        """
        home = self if column is None else self.known
        home.facts.setdefault(name, column)
        home.meanings.setdefault(name, meaning)
        return name

    def n_rows(self, data: Columns) -> int:
        """Counts the rows of a data set in this space."""
        known = self.known
        if known.parent is None:
            return len(data)
        return data.once(
            (known, "n_rows"),
            lambda: int(known.lengths(data).sum()),
        )

    def parents(self, data: Columns) -> np.ndarray:
        """Finds each row's row in the space around, `[rows]`."""
        around = self.known.parent
        assert around is not None
        return data.once(
            (self.known, "parents"),
            lambda: np.repeat(
                np.arange(around.n_rows(data)),
                self.lengths(data),
            ),
        )

    def parents_of(self, data: Columns, rows: np.ndarray) -> np.ndarray:
        """Finds the row in the space around of some rows.

        Args:
          data: The data set.
          rows: Numbers of rows here.
        """
        if 8 * len(rows) > self.n_rows(data):
            return self.parents(data)[rows]
        ends = wide(self.starts(data) + self.lengths(data))
        parent_rows = np.empty(len(rows), np.int64)
        find_parents(ends, wide(rows), parent_rows)
        return parent_rows

    def lengths(self, data: Columns) -> np.ndarray:
        """Counts the rows in each row of the space around, `[parent's rows]`."""
        sizes = self.known.sizes
        assert sizes is not None
        return data.once(
            (self.known, "lengths"),
            lambda: np.maximum(sizes.of(data), 0),
        )

    def starts(self, data: Columns) -> np.ndarray:
        """Finds the first row in each row of the space around, `[parent's rows]`."""
        return data.once(
            (self.known, "starts"),
            lambda: np.cumsum(self.lengths(data)) - self.lengths(data),
        )

    def first_rows(self, data: Columns) -> np.ndarray:
        """Finds the first row in each row of the space around, `[parent's rows]`; -1 where none is."""
        return np.where(
            self.lengths(data) > 0,
            self.starts(data),
            -1,
        )

    def numbers(self, data: Columns) -> np.ndarray:
        """Numbers the rows within their parents, `[rows]`."""

        def first():
            return np.repeat(self.starts(data), self.lengths(data))

        return data.once(
            (self.known, "numbers"),
            lambda: np.arange(self.n_rows(data)) - first(),
        )

    def rows_of(
        self,
        data: Columns,
        outer: IndexSpace,
        values: np.ndarray,
    ) -> np.ndarray:
        """A column of a space around this one, for each row here.

        Args:
          data: The data set.
          outer: The space around.
          values: `[outer's rows, ...]`.
        """
        known = self.known
        if known is outer.known:
            return values
        assert known.parent is not None
        return known.parent.rows_of(data, outer, values)[known.parents(data)]

    def rows_around(
        self,
        data: Columns,
        outer: IndexSpace,
        rows: np.ndarray,
    ) -> np.ndarray:
        """The row of a space around in which each of some rows is.

        Args:
          data: The data set.
          outer: The space around.
          rows: Numbers of rows here.
        """
        known = self.known
        if known is outer.known:
            return rows
        assert known.parent is not None
        return known.parent.rows_around(data, outer, known.parents_of(data, rows))

    def instances(self, data: Columns) -> np.ndarray:
        """`[rows]`: each row's instance."""
        return self.rows_of(
            data,
            self.around()[-1],
            np.arange(len(data)),
        )

    def __repr__(self) -> str:
        words = [
            f"{'all' if space.is_ragged else 'each'} {space.dimension}"
            for space in self.around()
            if space.parent
        ]
        return " of ".join([*words, "an instance"])


@dataclass(frozen=True)
class Guard:
    """A condition on rows: a state field has a value.

    Args:
      field: The state field.
      value: Its value.
      column: The field's values; None where a value that is read back decides.
      decision: What decides then.
    """

    field: str
    value: int
    column: Column | None
    decision: Decision | None = None


@dataclass(frozen=True)
class Region:
    """The rows of a space for which all guards hold: where something is computed.

    Args:
      space: The space.
      guards: The guards.
    """

    space: IndexSpace
    guards: tuple[Guard, ...] = ()

    def within(self, space: IndexSpace) -> Region:
        """The rows of an inner space that lie in this region's."""
        return Region(space, self.guards)

    def where(self, guard: Guard) -> Region:
        """The rows for which another guard holds, too."""
        return Region(self.space, (*self.guards, guard))

    @property
    def is_known(self) -> bool:
        """Tells whether the instances decide on the region's rows."""
        return self.space.is_known and all(guard.column is not None for guard in self.guards)

    @property
    def decisions(self) -> set[Decision]:
        """The run's decisions about the region's rows."""
        decisions = {guard.decision for guard in self.guards} | {
            space.decision for space in self.space.around()
        }
        return {decision for decision in decisions if decision is not None}

    @property
    def known(self) -> Region:
        """The possible rows in the known space: rows that no guard of the instances excludes."""
        if self.is_known:
            return self
        return Region(
            self.space.known,
            tuple(g for g in self.guards if g.column is not None),
        )

    @property
    def carrier(self) -> Region:
        """The rows whose states its messages carry: its own; for a ragged space, the rows of the space around."""
        return self.within(self.space.carrier)

    def __repr__(self) -> str:
        guards = [f"{guard.field} = {guard.value}" for guard in self.guards]
        return f"{self.space!r}" + (f" where {' and '.join(guards)}" if guards else "")

    def rows(self, data: Columns) -> np.ndarray | None:
        """Lists the numbers of the region's rows in its space; None for all. Where only the run decides, the possible rows."""
        known = self.known
        if known.guards:
            return data.once((known, "rows"), lambda: known._rows(data))
        return None

    def rows_where(self, data: Columns, holds: np.ndarray) -> np.ndarray:
        """Lists the numbers of the region's rows for which a condition holds.

        Args:
          data: The data.
          holds: `[rows of the space]`: the condition.
        """
        rows = self.rows(data)
        return np.flatnonzero(holds) if rows is None else rows[holds[rows]]

    def _rows(self, data: Columns) -> np.ndarray | None:
        holds: np.ndarray | None = None
        for guard in self.guards:
            assert guard.column is not None
            values = guard.column.inside(self.space).of(data)
            if len(values) and not values.strides[0]:  # the same for all rows
                if values[0] == guard.value:
                    continue
                return np.zeros(0, np.int64)
            one = values == guard.value
            holds = one if holds is None else holds & one
        return None if holds is None else np.flatnonzero(holds)
