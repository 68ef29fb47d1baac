"""Bodies, to which steps are added: a place in a program, with values as steps there read values, and the equations of functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.batches.inverse_reads import read
from ampjax.frontend.batches.length_uses import Extremes, LengthUses
from ampjax.frontend.batches.programs_of_rows import (
    Block,
    Room,
    Rows,
    Run,
    Slot,
    View,
    derived_if,
    run_again,
    run_block,
    sheltered,
)
from ampjax.frontend.batches.row_lowering import Loop, RowLowering, Value
from ampjax.frontend.batches.row_tables import Place, RowTables
from ampjax.frontend.combinators.tracing import Call, Traced, type_of
from ampjax.frontend.deduction.equations import Atom, Equation, Known, Name, equations_for, flatten
from ampjax.frontend.deduction.known_values import KnownValues
from ampjax.frontend.deduction.opened_functions import Opened
from ampjax.frontend.deduction.turned_products import with_products_straight
from ampjax.frontend.draft.index_spaces import Column, Guard, IndexSpace, Region
from ampjax.frontend.draft.long_axes import is_in_front, is_sequence, length_name
from ampjax.frontend.draft.payload_types import from_raw, raw_type
from ampjax.frontend.draft.row_origins import RowOrigin, rows_at
from ampjax.frontend.draft.values import Constant, Elements, Static
from ampjax.frontend.jax_functions.numbered_products import with_numbered_products
from ampjax.frontend.loops.masked_rows import derived_where
from ampjax.frontend.loops.table_products import (
    LEAVES_OUT_AXES,
    is_small,
    read_of_product,
    reads_rows,
)
from ampjax.jaxprs.primitives import is_inexact, shape_text


class Body:
    """A place in a program, where steps are added.

    It has more than 15 methods: how values are read here, and how functions are run, are each in several parts.

    Args:
      low: The lowering.
      block: The block.
      room: The room.
      is_sure: Whether the block runs only where some row of the room counts.
    """

    def __init__(
        self,
        low: RowLowering,
        block: Block,
        room: Room,
        is_sure: bool = False,
    ):
        self.low = low
        self.block = block
        self.room = room
        self.is_sure = is_sure

    @property
    def space(self) -> IndexSpace:
        """The room's space."""
        return self.room.space

    @property
    def region(self) -> Region:
        """The room as a region, for computations on the host."""
        guards = []
        if not self.room.is_known:
            guards.append(Guard("", 1, None))
        for frame in self.room.frame.around():
            guard = self.low.guards.get(frame)
            if guard is not None:
                guards.append(guard)
        return Region(self.space, tuple(guards))

    def at(self, room: Room) -> Body:
        """The same block in another room."""
        return Body(self.low, self.block, room)

    def bare(self) -> Room:
        """The room with all rows."""
        room = self.room
        if room.mask is None:
            return room
        return self.block.once(
            (room.place, "bare"),
            lambda: self.low.room(room.frame, room.space),
        )

    def inside(self, space: IndexSpace) -> Body:
        """Returns the body of a space of elements, as far as the rows around the elements count.

        Args:
          space: The space; its parent is this one.
        """
        return self.at(
            self.block.once(
                (self.room, space),
                lambda: self._inside(space),
            )
        )

    def _inside(self, space: IndexSpace) -> Room:
        room = self.room
        low = self.low
        mask = room.mask
        if mask is None:
            return low.room(room.frame, space)
        plain = low.room(room.frame, space)
        parents = self.parents(space)
        counts = Rows(jax.ShapeDtypeStruct((), np.bool_), plain)

        def compute(run: Run) -> list[Any]:
            around = jnp.append(run.get(mask), False)
            return [around[run.slots[parents]]]

        self.block.add([counts], compute)
        return low.room(room.frame, space, counts, room.is_known, room.runs_empty)

    def parents(self, space: IndexSpace) -> Slot:
        """The array of the batch that says around which row each element is.

        Args:
          space: The elements' space.
        """
        place = self._lies_at(space)
        return self.low.slot(
            ("parents", place[1]),
            place[0],
            lambda tables: tables.parents(*place),
        )

    def numbers(self, space: IndexSpace) -> Slot:
        """The array of the batch that says which element of its row each element is; of a copy that fills up, another's.

        Args:
          space: The elements' space.
        """
        place = self._lies_at(space)
        own = place[1]
        return self.low.slot(
            ("numbers", own),
            place[0],
            lambda tables: tables.column(*place, own.numbers(tables.data).astype(np.int32)),
        )

    def _lies_at(self, space: IndexSpace) -> Place:
        """Finds where the elements of a space lie: copies in a loop may lie where the originals do, alike at all levels."""
        frame = self.room.frame
        while space is not frame.space:
            original = frame.alongside(space)
            if original is None:
                break
            assert frame.outer is not None
            frame = frame.outer
            space = original
        return frame, space

    def lengths(self, space: IndexSpace) -> Rows:
        """The number of elements that each row, or the row around, has of a space."""
        around = space.parent
        assert around is not None

        def of_rows(data: Any) -> np.ndarray:
            return self.space.rows_of(data, around, space.lengths(data))

        number = jax.ShapeDtypeStruct((), np.int32)
        return self.block.once(
            ("lengths", space, self.room),
            lambda: self.rows(Static(Column(self.space, of_rows)), number),
        )

    def rows_and_starts(
        self,
        home: Body,
        xs: Elements,
        kind: Any,
    ) -> tuple[Rows, Callable[[Run], Any]]:
        """The elements of sequences, for reads by computed numbers: an array, and from a run to the place where the sequence of each row begins.

        Args:
          home: The rows that read: those of this room, or elements of them.
          xs: The sequence, of arrays, that each row of this room has.
          kind: The type of an element.
        """
        if not home.room.frame.is_in_steps:
            source = self._shipped_whole(xs, kind) or self.low.contiguous(xs)
            if source is not None:
                assert source.rows.room is not None
                slot = home.starts(source.rows.room.place)
                return source.rows, lambda run: run.slots[slot]
        values = self.inside(xs.space).rows(xs.element, kind)
        elements = self.parents(xs.space)
        around = None if home.space is self.space else self.parents(home.space)

        def starts(run: Run) -> Any:
            own = jnp.arange(run.size(home.room)) if around is None else run.slots[around]
            return jnp.searchsorted(run.slots[elements], own)

        return values, starts

    def starts(self, place: Place) -> Slot:
        """The array of the batch that says where the sequence of each row begins, or of the row around.

        Args:
          place: Where the elements of each sequence lie one after the other, as in the array that `RowLowering.contiguous` finds.
        """
        space = place[1]
        around = space.parent
        assert around is not None

        def every(data: Any) -> np.ndarray:
            first = space.first_rows(data)
            own = self.space.rows_of(data, around, np.arange(around.n_rows(data)))
            return rows_at(first, own)

        def some(data: Any, rows: np.ndarray) -> np.ndarray:
            own = self.space.rows_around(data, around, rows)
            return rows_at(space.first_rows(data), own)

        return self.low.reads(
            place,
            self.room.place,
            RowOrigin(self.space, every, some),
            ("first of", space),
        )

    def _shipped_whole(self, xs: Elements, kind: Any) -> View | None:
        """A sequence that the host knows, as one array for all rounds of a loop; None for any other."""
        low = self.low
        if not isinstance(xs.element, Static):
            return None
        space = low.original(xs.space) if xs.element in low.across else xs.space
        element = low.across.get(xs.element, xs.element)
        whole = self.at(low.room(low.root, space))
        return View(whole.rows(element, kind), space)

    # -- values as operands of this room

    def operand(self, value: Value, kind: Any) -> Rows | Constant:
        """Brings a value to this room, as rows of this room or as an array that is the same for all rows.

        Args:
          value: A value that is no sequence.
          kind: Its type.
        """
        if isinstance(value, Constant):
            return value
        if isinstance(value, Static):
            column = value.column
            return self.block.once(
                (column, self.room),
                lambda: self._ship(column, kind),
            )
        assert isinstance(value, View)
        if value.rows.room is None:
            return value.rows
        return self.block.once(
            (value.rows, value.space, value.origin, self.room),
            lambda: self._bring(value),
        )

    def rows(self, value: Value, kind: Any) -> Rows:
        """A value as rows of this room.

        Args:
          value: A value that is no sequence.
          kind: Its type.
        """
        found = self.operand(value, kind)
        if isinstance(found, Rows) and found.room is not None:
            return found
        if isinstance(found, Rows):
            found = self._stop_derivative(found)
        each = Rows(kind, self.room)
        room = self.room

        def compute(run: Run) -> list[Any]:
            one = found.value if isinstance(found, Constant) else run.get(found)
            return [repeated(one, run.size(room))]

        self.block.add([each], compute)
        return each

    def _ship(self, column: Column, kind: Any) -> Rows:
        room = self.room
        space = self.space
        frame = room.frame
        own = column.inside(space)
        lies = raw_type(kind)

        def make(tables: RowTables) -> np.ndarray:
            return tables.column(
                frame,
                space,
                np.asarray(own.of(tables.data), lies.dtype),
            )

        slot = self.low.slot(("column", column, space), frame, make)
        out = Rows(kind, room)
        mask = room.mask

        def compute(run: Run) -> list[Any]:
            values = from_raw(jnp.asarray(run.slots[slot]), kind.dtype)
            return [values if mask is None else sheltered(values, run.get(mask))]

        self.block.add([out], compute)
        return out

    def _bring(self, view: View) -> Rows:
        """Brings a computed value from elsewhere: reads the value by row number, and shelters its rows if fewer rows count here."""
        source = view.rows.room
        room = self.room
        assert source is not None
        if source is room and self.space is view.space and view.origin is None:
            return view.rows
        is_here = view.origin is None and view.space is source.space
        is_same = is_here and source.place == room.place
        there = view.rows if is_same or self._is_beside(view) else self._read(view, source)
        mask = room.mask
        if mask is None:
            return there
        out = Rows(there.aval, room)
        self.block.add(
            [out],
            lambda run: [sheltered(run.get(there), run.get(mask))],
        )
        return out

    def _is_beside(self, view: View) -> bool:
        """Whether a value from around a loop has its rows at the same places as the loop's rows that read the value."""
        frame = self.room.frame
        is_inner = self.space is not frame.space
        # of a sequence from around, elements are copies, one for each step of the loop
        original = self.low.across.get(view) if is_inner and view.space is self.space else view
        if original is None or original.origin is not None or view.rows.room is None:
            return False
        place = frame.outer, frame.alongside(self.space)
        return original.space is view.rows.room.space and view.rows.room.place == place

    def _read(self, view: View, source: Room) -> Rows:
        room = self.room
        loop = self.low.loops.get(room.frame)
        if loop is not None and loop.has_state(view.rows):
            return loop.recalled(view, room)
        way = (view.space, view.origin)
        origin = view.reads(self.space)
        slot = self.low.reads(
            source.place,
            room.place,
            origin,
            way,
        )
        readers = self.low.readers(
            source.place,
            room.place,
            origin,
            way,
        )
        out = Rows(view.rows.aval, room)
        is_outside = source.frame is not room.frame and (
            source.frame in room.frame.around() or (loop is not None and loop.states is not None)
        )
        if loop is not None and is_outside and not self._is_carried(view.rows, loop):
            loop.reads.append((out, view.rows, slot, readers))
            loop.block.give([out])
            return out
        by_whom = readers if room.frame.outer is None else None

        def compute(run: Run) -> list[Any]:
            own = None if by_whom is None else run.slots[by_whom]
            return [read(run.get(view.rows), run.slots[slot], own)]

        self.block.add([out], compute)
        return self._stop_derivative(out)

    def _stop_derivative(self, rows: Rows) -> Rows:
        """Stops the derivative of an outer array where no row of the room is there."""
        there = self._needed
        return rows if there is None else self.derived_where(there, rows)

    @property
    def _needed(self) -> Slot | Rows | None:
        """The mask or array of the rows there, if steps here run even where none is."""
        if not self._may_lack_rows:
            return None
        return self.room.there if self.room.mask is None else self.room.mask

    def derived_where(self, there: Slot | Rows, rows: Rows) -> Rows:
        """An array, without a derivative where nothing is there.

        Args:
          there: The array of the batch, or the mask, that says what is there.
          rows: The array.
        """
        if not is_inexact(rows.aval.dtype):
            return rows

        def added() -> Rows:
            out = Rows(rows.aval, rows.room)

            def compute(run: Run) -> list[Any]:
                return [_stop_derivative_in(run, there, run.get(rows))]

            self.block.add([out], compute)
            return out

        return self.block.once((rows, there, "derived"), added)

    def _all_derived(self, operands: Sequence[Rows | Constant]) -> list[Rows | Constant]:
        """Stops the derivatives of an equation's operands that are the same for all rows, where no row is there."""
        result: list[Rows | Constant] = []
        for each in operands:
            if isinstance(each, Rows) and each.room is None:
                result.append(self._stop_derivative(each))
            else:
                result.append(each)
        return result

    @property
    def _may_lack_rows(self) -> bool:
        """Whether steps here run even where no row of the room is there; loops and choices leave their steps out then."""
        room = self.room
        return room.runs_empty or (room.mask is None and room.frame.outer is None)

    def _is_carried(self, rows: Rows, loop: Loop) -> bool:
        """Says whether an array changes from step to step of a loop, or is made in the loop."""
        block: Block | None = self.block
        while block is not None and block is not loop.block:
            if block.owns(rows):
                return True
            block = block.outer
        return loop.block.owns(rows)

    # -- functions

    def run(
        self,
        function: Traced,
        values: Sequence[Value],
    ) -> list[Value]:
        """Adds the steps of a function.

        Args:
          function: The function.
          values: What its variables are.

        Returns:
          What its results are.
        """
        given = []
        for v in values:
            given.append(
                self.low.copied(
                    v,
                    self.space,
                )
                if isinstance(v, Elements)
                else v
            )
        names = [Name(variable.aval) for variable in function.variables]
        atoms: dict[Any, Atom] = dict(zip(function.variables, names, strict=True))
        flat, results = flatten(function, atoms)
        equations = with_numbered_products(with_products_straight(flat), results)
        env: dict[Name, Value] = dict(zip(names, given, strict=True))
        known = {name: value for name, value in env.items() if _is_known(value)}
        host = KnownValues(
            self.low.host,
            self.region,
            Opened(equations, results, known),
        )
        steps = _Equations(self, host, env)
        wanted = equations_for(equations, results)
        for call, part in groupby(wanted, lambda equation: equation.place.rematerialized):
            together = [*part]
            if call is None:
                for equation in together:
                    steps.add(equation)
            else:
                steps.add_again(call, together, _read_elsewhere(wanted, results, together))
        steps.end(results)
        return [steps.value(atom) for atom in results]

    def evaluated(
        self,
        equation: Equation,
        operands: Sequence[Rows | Constant],
    ) -> list[Rows]:
        """Adds the step of an equation of JAX.

        Args:
          equation: The equation.
          operands: Its operands.
        """
        is_each = list(map(_is_of_rows, operands))
        room = self.room if any(is_each) or equation.draws else None
        of_rows = [each for each in operands if _is_of_rows(each)]
        is_read = room is not None and not any(is_inexact(each.aval.dtype) for each in of_rows)
        if room is not None and not is_read:
            operands = self._all_derived(operands)
        outputs = [Rows(name.aval, room) for name in equation.outputs]
        keys = _Keys(self) if equation.draws else None
        product = self._product_of_table(equation, operands)

        def compute(run: Run) -> list[Any]:
            if product is not None and product.is_small(run):
                return [product.compute(run)]
            values = []
            for each in operands:
                values.append(each.value if isinstance(each, Constant) else run.get(each))
            if room is None:
                return equation.evaluate(None, values)
            axes = [0 if each else None for each in is_each]
            if keys is not None and run.key is not None:
                draw = jax.vmap(equation.evaluate, in_axes=(0, axes))
                return draw(keys.of(run), values)
            if not axes:
                return [repeated(each, run.size(room)) for each in equation.evaluate(None, [])]
            return jax.vmap(
                lambda *row: equation.evaluate(None, row),
                in_axes=axes,
            )(*values)

        self.block.add(outputs, compute)
        if is_read and any(map(_is_for_all_rows, operands)):
            results = [self._stop_derivative(each) for each in outputs]
        else:
            results = outputs
        self._note_read(equation, operands, results[0] if len(results) == 1 else None)
        return results

    def _note_read(
        self,
        equation: Equation,
        operands: Sequence[Rows | Constant],
        result: Rows | None,
    ) -> None:
        """Notes an array of rows read from a table: a product of the table may be cheaper than products of its rows."""
        if result is None or self.room.frame.is_in_steps:
            return
        reads = self.low.table_reads
        if reads_rows(equation.source):
            table, numbers, *_ = operands
            if isinstance(table, Constant) or table.room is not None or not _is_of_rows(numbers):
                return
            reads[result] = _TableRead(equation.source, table, numbers, self._needed)
        elif equation.source.primitive.name in LEAVES_OUT_AXES and operands[0] in reads:
            reads[result] = reads[operands[0]]

    def _product_of_table(
        self,
        equation: Equation,
        operands: Sequence[Rows | Constant],
    ) -> _TableProduct | None:
        """The product of rows of a table by one matrix for all rows, or None."""
        if equation.source.primitive.name != "dot_general":
            return None
        for side in (0, 1):
            row = operands[side]
            read = self.low.table_reads.get(row)
            if read is None or _is_of_rows(operands[1 - side]):
                continue
            # not several rows, nor one in another shape
            if not _is_of_rows(row) or row.aval.shape != read.table.aval.shape[1:]:
                continue
            if self.block.sees(read.table) and self.block.sees(read.numbers):
                return _TableProduct(equation, read, side, operands[1 - side], self.room)
        return None

    def view(self, rows: Rows) -> View:
        """Returns an array that an equation here gives, as a value.

        Args:
          rows: The array.
        """
        return View(rows, self.space)

    def _has_elements(self, room: Room) -> bool:
        """Whether each row has elements in an inner room, as an element of the same sequence."""
        around = room.space.parent
        if around is None or around is not self.space:
            return False
        return self.low.original(room.space) is self.low.original(around)

    def guarded(
        self,
        room: Room,
        build: Callable[[Body], list[Value]],
        may_be_empty: Callable[[], bool] = lambda: True,
    ) -> list[Value]:
        """Adds a block that is left out where no row of its room counts.

        Args:
          room: The room.
          build: Adds the block's steps, and gives results.
          may_be_empty: Whether there may be no such row, as is known when the program runs.

        Returns:
          The results, as they are seen from here.
        """
        if self.is_sure and self._has_elements(room):
            return build(Body(self.low, self.block, room, is_sure=True))
        inner = Block(self.block)
        results = build(Body(self.low, inner, room, is_sure=True))
        outputs: list[Rows] = []
        for value in [*results, *(each for report in inner.reports for each in report.values)]:
            _note_outputs(value, inner, outputs)
        self.block.reports += inner.reports
        if inner.steps:
            self.block.add(
                outputs,
                lambda run: run_block(run, inner, room, outputs, may_be_empty()),
            )
        return results


@dataclass(frozen=True)
class _TableRead:
    """A read of rows of a table.

    Args:
      equation: The read, of one row.
      table: The table.
      numbers: The numbers of the rows.
      there: What says which rows are there; None where some are.
    """

    equation: Any
    table: Rows
    numbers: Rows
    there: Slot | Rows | None


@dataclass(frozen=True)
class _TableProduct:
    """A product of rows read from a table.

    Args:
      equation: The product, of one row.
      read: The read.
      side: Which factor is the row.
      other: The other factor, which is the same for all rows.
      room: Where the rows are.
    """

    equation: Equation
    read: _TableRead
    side: int
    other: Rows | Constant
    room: Room

    def is_small(self, run: Run) -> bool:
        """Tells whether the table has far fewer rows than are read."""
        return is_small(
            run.size(self.room),
            len(run.get(self.read.table)),
        )

    def compute(self, run: Run) -> Any:
        """The product of each row."""
        read = self.read
        table = run.get(read.table)
        if read.there is not None:
            table = _stop_derivative_in(run, read.there, table)
        other = self.other.value if isinstance(self.other, Constant) else run.get(self.other)

        def product(row: Any) -> Any:
            factors = [other, other]
            factors[self.side] = row
            return self.equation.evaluate(None, factors)[0]

        return read_of_product(
            read.equation,
            table,
            run.get(read.numbers),
            jax.vmap(product),
        )


def _stop_derivative_in(run: Run, there: Slot | Rows, values: Any) -> Any:
    """An array in a run, without a derivative where nothing is there."""
    if isinstance(there, Slot):
        return derived_if(run.slots[there], values)
    # A mask may differ from round to round, but the array does not.
    return derived_where(jnp.any(run.get(there)), values)


class _Equations:
    """The equations of one function, while a body turns the equations into steps.

    Args:
      body: Where.
      host: What is known of values on the host.
      env: What variables are.
    """

    def __init__(
        self,
        body: Body,
        host: KnownValues,
        env: dict[Name, Value],
    ):
        self._body = body
        self._host = host
        self._env = env
        self._lengths = LengthUses(body.low, body.region)
        self._extremes = Extremes(body.low, body.region)
        for name, value in env.items():
            self._note(name, value)

    def value(self, atom: Atom) -> Value:
        """Returns the value of an atom."""
        if isinstance(atom, Known):
            return Constant(atom.value)
        found = self._host.env.get(atom)
        return self._env[atom] if found is None else found

    def add(self, equation: Equation) -> None:
        """Adds the steps of an equation, or computes the equation's results on the host."""
        call = equation.call
        if not self._body.low.is_in_operation:
            self._extremes.see(equation, [self.value(atom) for atom in equation.inputs])
        if call is not None:
            self._combine(equation, call)
        elif not self._of_sequence(equation) and not self._host.take_early(equation):
            self._compute(equation)
        self._lengths.see(equation, [self.value(name) for name in equation.outputs])

    def add_again(
        self,
        call: Any,
        equations: Sequence[Equation],
        given: Sequence[Name],
    ) -> None:
        """Adds the steps of a function under `jax.checkpoint`, as a block whose values the backward pass computes again.

        Args:
          call: The call of the function.
          equations: Its equations.
          given: Which of their results others read.
        """
        body = self._body
        inner = Block(body.block)
        self._body = Body(body.low, inner, body.room, body.is_sure)
        for equation in equations:
            self.add(equation)
        self._body = body
        outputs: list[Rows] = []
        for name in given:
            _note_outputs(self.value(name), inner, outputs)
        for report in inner.reports:
            for value in report.values:
                _note_outputs(value, inner, outputs)
        body.block.reports += inner.reports
        settings = {name: call.params[name] for name in ("prevent_cse", "policy")}
        body.block.add(outputs, lambda run: run_again(run, inner, outputs, settings))

    def end(self, results: Sequence[Atom]) -> None:
        """Notes the results of the function."""
        self._lengths.end(results)
        if not self._body.low.is_in_operation:
            self._extremes.end(results)

    def _note(self, name: Name, value: Value) -> None:
        """Notes the value of a variable."""
        self._env[name] = value
        if _is_known(value):
            self._host.env[name] = value
        if isinstance(value, Elements):
            self._body.low.lengths.note(value.space, length_name(name.aval))

    def _of_sequence(self, equation: Equation) -> bool:
        """Adds the steps of an operation of JAX on or to a whole sequence, if a rule for the operation exists."""
        values = [self.value(atom) for atom in equation.inputs]
        is_one = any(isinstance(value, Elements) for value in values)
        is_one |= any(is_sequence(name.aval) for name in equation.outputs)
        is_one |= equation.source.primitive.name == "dim_as_value"
        if not is_one or equation.draws:
            return False
        with self._body.low.in_operation(equation):
            results = self._body.low.of_sequences(self._body, equation, values)
        for name, value in zip(equation.outputs, results or (), strict=results is not None):
            self._note(name, value)
        return results is not None

    def _combine(self, equation: Equation, call: Call) -> None:
        rule = self._body.low.rules.get(call.kind)
        if rule is None:
            fix = "Compile the model with `amp.compile`, or write it with other combinators."
            raise GraphError(
                call.line, "what a batch as one function can hold", f"`amp.{call.kind}`", fix
            )
        for atom in equation.inputs[sum(call.n_closed) :]:
            require_in_front(type_of_atom(atom), call.line)
        results = rule(
            self._body,
            call,
            [self.value(atom) for atom in equation.inputs],
        )
        for name, value in zip(equation.outputs, results, strict=True):
            self._note(name, value)

    def _compute(self, equation: Equation) -> None:
        body = self._body
        give = body.rows if equation.draws else body.operand
        operands = []
        for atom in equation.inputs:
            operands.append(give(self.value(atom), type_of_atom(atom)))
        outputs = body.evaluated(equation, operands)
        for name, rows in zip(equation.outputs, outputs, strict=True):
            self._env[name] = body.view(rows)


class _Keys:
    """Keys of a place where random numbers are drawn: one for each row.

    Args:
      body: The place.
    """

    def __init__(self, body: Body):
        low = body.low
        frame, space = body.room.place
        low.n_draws += 1
        self._number = low.n_draws

        def numbers(tables: RowTables) -> np.ndarray:
            bounds = tables.bounds(space)
            every = np.arange(bounds[-1]) - bounds[:-1].repeat(np.diff(bounds))
            return tables.column(frame, space, every.astype(np.uint32))

        self._rows = low.slot(("numbers", space), frame, numbers)

    def of(self, run: Run) -> Any:
        """The keys in a run."""
        own = jax.random.fold_in(run.key, self._number)
        return jax.vmap(jax.random.fold_in, in_axes=(None, 0))(
            own,
            run.slots[self._rows],
        )


def repeated(value: Any, n: int) -> Any:
    """A value once for each of so many rows."""
    one = jnp.asarray(value)
    return jnp.broadcast_to(one, (n, *one.shape))


def type_of_atom(atom: Atom) -> Any:
    """Returns the type of an atom's value."""
    return atom.aval if isinstance(atom, Name) else type_of(atom.value)


def require_in_front(kind: Any, line: str) -> None:
    """Checks that a sequence that leaves JAX's own operations has the axes that are each example's own first.

    Args:
      kind: Its type.
      line: The user's line.

    Raises:
      GraphError: If it has not.
    """
    if is_in_front(kind):
        return
    order = sorted(
        range(len(kind.shape)),
        key=lambda axis: isinstance(kind.shape[axis], int),
    )
    raise GraphError(
        line,
        "a sequence with the axes that count elements first",
        f"`{shape_text(kind)}`",
        f"Turn it round before: `jnp.transpose(x, {tuple(order)})`.",
    )


def _is_of_rows(value: Rows | Constant) -> TypeGuard[Rows]:
    """Whether a value is computed for each row of a room."""
    return isinstance(value, Rows) and value.room is not None


def _is_for_all_rows(value: Rows | Constant) -> bool:
    """Whether a value is computed once for all rows."""
    return isinstance(value, Rows) and value.room is None


def is_static(value: Value) -> bool:
    """Whether a value follows from the examples alone, and is no sequence."""
    return isinstance(value, Static | Constant)


def _is_known(value: Value) -> bool:
    """Whether the host knows a value, or the values of a sequence."""
    if isinstance(value, Elements):
        return _is_known(value.element)
    return isinstance(value, Static | Constant)


def _read_elsewhere(
    equations: Sequence[Equation],
    results: Sequence[Atom],
    some: Sequence[Equation],
) -> list[Name]:
    """Lists the results of some equations that other equations read, or that a function gives.

    Args:
      equations: All equations.
      results: What the function gives.
      some: Some of the equations.
    """
    read: set[Atom] = set(results)
    for equation in equations:
        if equation not in some:
            read.update(equation.inputs)
    found = []
    for equation in some:
        found += [name for name in equation.outputs if name in read]
    return found


def _note_outputs(
    value: Value,
    block: Block,
    outputs: list[Rows],
) -> None:
    """Notes the arrays of a block that a value is made of."""
    if isinstance(value, Elements):
        _note_outputs(value.element, block, outputs)
    elif isinstance(value, View) and block.owns(value.rows) and value.rows not in outputs:
        outputs.append(value.rows)
