"""Updates of neighbouring elements of whole sequences, as `xs.at[1:].set(ys)` and `jax.lax.dynamic_update_slice` do: a choice for each element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.batch_rules.carried_parts import changed_in_place, own_elements
from ampjax.frontend.batch_rules.sequence_steps import of_elements
from ampjax.frontend.batches.programs_of_rows import Run
from ampjax.frontend.batches.room_bodies import Body, is_static, type_of_atom
from ampjax.frontend.batches.row_lowering import Value
from ampjax.frontend.combinators.tracing import trace
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.draft.index_spaces import Column
from ampjax.frontend.draft.long_axes import element_type
from ampjax.frontend.draft.values import Constant, Elements, Static
from ampjax.frontend.jax_functions.element_operations import replace_numbers, update_of_axes
from ampjax.frontend.whole_sequences.cut_arrays import filled_array
from ampjax.frontend.whole_sequences.numbered_reads import check_numbers
from ampjax.frontend.whole_sequences.sequence_parts import length_of
from ampjax.jaxprs.primitives import bind

Numbers = Callable[[Any], np.ndarray]
"""From the data to an integer for each row of a space."""


def range_updated(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
    operations: Mapping[str, Callable[[Any, Any], Any]],
) -> list[Value] | None:
    """Updates elements from one on that the host knows, as JAX writes `xs.at[1:].add(ys)`; None for other updates.

    Args:
      body: Where.
      equation: JAX's `scatter`.
      values: The sequence, where the update begins, and the changes.
      operations: By the name of JAX's update: from an entry and its change to the new entry.
    """
    xs, at, _ = values
    source = equation.source
    numbers = source.params["dimension_numbers"]
    axes = tuple(numbers.scatter_dims_to_operand_dims)
    given, indices, update = map(
        type_of_atom,
        equation.inputs,
    )
    window = tuple(numbers.update_window_dims)
    if not is_static(at) or axes[:1] != (0,) or indices.shape != (len(axes),):
        return None
    if window != (*range(len(update.shape)),) or 0 in numbers.inserted_window_dims:
        return None
    column = body.low.host.column(
        at,
        body.region,
        indices,
    )
    one = element_type(given)
    is_whole = len(axes) == 1 and update.shape[1:] == one.shape
    operate = operations[source.primitive.name]
    inside = update_of_axes(
        source,
        lambda axes: tuple(axis - 1 for axis in axes if axis),
    )
    own = replace_numbers(
        inside.params["dimension_numbers"],
        update_window_dims=tuple(axis - 1 for axis in window if axis),
    )
    inside = inside.replace(params={**inside.params, "dimension_numbers": own})

    def change(x: Any, new: Any, start: Any) -> Any:
        if is_whole:
            return operate(x, new)
        (changed,) = bind(
            inside,
            [x, start[1:], new],
        )
        return changed

    def first(data: Any) -> np.ndarray:
        return column.of(data)[:, 0].astype(np.int64)

    made = _Change(
        change,
        update,
        [(at, indices)],
        equation.line,
        is_whole and source.primitive.name == "scatter",
    )
    return made.from_known(
        body,
        xs,
        values[2],
        given,
        first,
    )


def slice_updated(
    body: Body,
    equation: Equation,
    values: Sequence[Value],
) -> list[Value] | None:
    """Updates some elements as `jax.lax.dynamic_update_slice` does; from a computed one on only by an array."""
    xs, changes, start, *starts = values
    given, update, number, *kinds = map(
        type_of_atom,
        equation.inputs,
    )
    if not isinstance(xs, Elements):
        is_whole = all(
            isinstance(
                each,
                Constant,
            )
            and not each.value
            for each in starts
        )
        return (
            filled_array(
                body,
                equation,
                xs,
                changes,
                start,
            )
            if is_whole
            else None
        )
    if isinstance(xs.element, Elements):
        return None
    lengths = xs.space.lengths
    count = length_of(
        body,
        update.shape[0],
        [(changes, update)],
        equation.line,
    )
    region = body.region
    # an update that is longer than the sequence
    body.low.host.draft.checks.append(
        lambda data: check_numbers(
            data,
            region,
            count(data) - 1,
            count(data),
            lengths(data),
            equation.line,
        )
    )

    def change(x: Any, new: Any, *own: Any) -> Any:
        return (
            jax.lax.dynamic_update_slice(
                x,
                new,
                own,
            )
            if own
            else new
        )

    further = [
        *zip(
            starts,
            kinds,
            strict=True,
        )
    ]
    made = _Change(
        change,
        update,
        further,
        equation.line,
        not further,
    )
    if not is_static(start):
        return made.from_computed(
            body,
            xs,
            changes,
            given,
            (start, number),
        )
    column = body.low.host.column(
        start,
        body.region,
        number,
    )

    def first(data: Any) -> np.ndarray:
        most = np.maximum(
            lengths(data) - count(data),
            0,
        )
        return np.clip(
            column.of(data).astype(np.int64),
            0,
            most,
        )

    return made.from_known(
        body,
        xs,
        changes,
        given,
        first,
    )


@dataclass(frozen=True)
class _Change:
    """A change of neighbouring elements.

    Args:
      change: From an element, its change and further numbers to the new element.
      update: The type of the changes of all elements that are changed.
      further: The further numbers, which are the same for all elements, and their types.
      line: The user's line.
      is_set: Whether the new element is the change itself.
    """

    change: Callable[..., Any]
    update: Any
    further: Sequence[tuple[Value, Any]]
    line: str
    is_set: bool

    def _in_place(
        self,
        body: Body,
        xs: Elements,
        changes: Value,
        first: tuple[Value, Any],
        is_clamped: bool,
    ) -> list[Value] | None:
        """Changes elements of each row's own sequence by an array; None where rows have none of their own, or for a sequence of changes.

        Args:
          body: Where.
          xs: The sequence.
          changes: The changes.
          first: The first element's number, and its type.
          is_clamped: Whether that is an earlier one where there would be too few.
        """
        own = own_elements(body, xs)
        if own is None or isinstance(changes, Elements):
            return None
        n = self.update.shape[0]
        number = jax.ShapeDtypeStruct((), np.int32)
        begin = body.rows(*first)
        new = body.rows(changes, self.update)
        further = [body.rows(value, kind) for value, kind in self.further]
        room = Static(Column(body.space, lambda data: xs.space.lengths(data) - n))
        most = body.rows(room, number)

        def of_run(run: Run) -> tuple[Any, list[Any]]:
            start = run.get(begin).astype(np.int32)
            if is_clamped:
                start = jnp.clip(start, 0, jnp.maximum(run.get(most), 0))
            each = start[:, None] + jnp.arange(n)
            values = []
            for rows in further:
                one = run.get(rows)[:, None]
                values.append(jnp.broadcast_to(one, (len(one), n, *one.shape[2:])))
            return each, [*values, run.get(new)]

        def change(x: Any, *values: Any) -> Any:
            *own, new = values
            return self.change(x, new, *own)

        return [changed_in_place(body, xs, own, of_run, None if self.is_set else change)]

    def from_known(
        self,
        body: Body,
        xs: Elements,
        changes: Value,
        given: Any,
        first: Numbers,
    ) -> list[Value]:
        """Changes elements from one on that the host knows.

        Args:
          body: Where.
          xs: The sequence.
          changes: A sequence, or an array of changes.
          given: The sequence's type.
          first: The first element's number.
        """
        space = xs.space
        count = length_of(
            body,
            self.update.shape[0],
            [(changes, self.update)],
            self.line,
        )
        self._require(
            body,
            first,
            count,
            space.lengths,
        )
        begin = Static(Column(body.space, first)), jax.ShapeDtypeStruct((), np.int32)
        found = self._in_place(body, xs, changes, begin, is_clamped=False)
        if found is not None:
            return found

        def behind(data: Any) -> np.ndarray:
            return space.numbers(data) - first(data)[space.parents(data)]

        def is_changed(data: Any) -> np.ndarray:
            own = behind(data)
            return (own >= 0) & (own < count(data)[space.parents(data)])

        def nearest(data: Any) -> np.ndarray:
            most = np.maximum(
                count(data) - 1,
                0,
            )[space.parents(data)]
            return np.clip(
                behind(data),
                0,
                most,
            ).astype(np.int32)

        changed = Static(Column(space, is_changed))
        one = element_type(given)
        each = element_type(self.update)
        is_sequence = isinstance(changes, Elements)
        if is_sequence:
            start = changes.space.starts
            new = body.low.value_at(
                changes.element,
                changes.space,
                space,
                lambda data: start(data)[space.parents(data)] + nearest(data),
                ("changes", first),
            )
            closed = []
            kinds = []
        else:
            new = Static(Column(space, nearest))
            closed = [changes]
            kinds = [self.update]
            each = jax.ShapeDtypeStruct(
                (),
                np.int32,
            )
        n = len(closed)

        def of_one(*args: Any) -> Any:
            own = args[n:-3]
            x, new, is_changed = args[-3:]
            new = new if is_sequence else args[0][new]
            # where nothing changes there is no change, of which a product might not be finite
            new = jnp.where(
                is_changed,
                new,
                jnp.ones_like(new),
            )
            return jnp.where(
                is_changed,
                self.change(x, new, *own),
                x,
            )

        own = [value for value, _ in self.further]
        types = [kind for _, kind in self.further]
        mask = jax.ShapeDtypeStruct(
            (),
            np.bool_,
        )
        traced = trace(
            of_one,
            *kinds,
            *types,
            one,
            each,
            mask,
        )[0]
        rows = [xs.element, new, changed]
        return of_elements(
            body,
            space,
            traced,
            [*closed, *own],
            rows,
            of_whole=True,
        )

    def from_computed(
        self,
        body: Body,
        xs: Elements,
        changes: Value,
        given: Any,
        start: tuple[Value, Any],
    ) -> list[Value] | None:
        """Changes elements from a computed one on, or earlier where there would be too few; None for a sequence of changes."""
        if isinstance(changes, Elements):
            return None
        found = self._in_place(body, xs, changes, start, is_clamped=True)
        if found is not None:
            return found
        space = xs.space
        n = self.update.shape[0]

        def of_one(changes: Any, start: Any, *args: Any) -> Any:
            own = args[:-3]
            x, number, length = args[-3:]
            behind = number - jnp.clip(
                start.astype(np.int32),
                0,
                length - n,
            )
            is_changed = (behind >= 0) & (behind < n)
            new = self.change(
                x,
                changes[jnp.clip(behind, 0, n - 1)],
                *own,
            )
            return jnp.where(is_changed, new, x)

        def lengths(data: Any) -> np.ndarray:
            return space.lengths(data)[space.parents(data)].astype(np.int32)

        number = jax.ShapeDtypeStruct(
            (),
            np.int32,
        )
        own = [value for value, _ in self.further]
        types = [kind for _, kind in self.further]
        one = element_type(given)
        begin, kind = start
        traced = trace(
            of_one,
            self.update,
            kind,
            *types,
            one,
            number,
            number,
        )[0]
        numbers = Static(
            Column(
                space,
                lambda data: space.numbers(data).astype(np.int32),
            )
        )
        rows = [
            xs.element,
            numbers,
            Static(
                Column(
                    space,
                    lengths,
                )
            ),
        ]
        return of_elements(
            body,
            space,
            traced,
            [changes, begin, *own],
            rows,
            of_whole=True,
        )

    def _require(
        self,
        body: Body,
        first: Numbers,
        count: Numbers,
        lengths: Numbers,
    ) -> None:
        """Adds the checks that the elements are there that are changed."""
        region = body.region

        def check(data: Any) -> None:
            n = count(data)
            own = first(data)
            check_numbers(
                data,
                region,
                own,
                n,
                lengths(data),
                self.line,
            )
            check_numbers(
                data,
                region,
                own + n - 1,
                n,
                lengths(data),
                self.line,
            )

        body.low.host.draft.checks.append(check)
