"""The arrays of a loop in steps, and the loop: a forward pass that keeps values for the backward pass, and the backward pass.

States lie in one array, the arena, side by side, and so does what is kept: each step writes one contiguous slice of each. The backward pass writes
the cotangents of all that a row read, and its own one, as one slice of one array; a step reads there, by numbers from the host, what the readers of
its states have left. Constants' cotangents are computed behind the loop, for all rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.frontend.loops.level_bodies import LevelBody
from ampjax.frontend.loops.packed_rows import Kept, Packed
from ampjax.frontend.loops.step_tables import StepTables
from ampjax.jaxprs.wide_sums import sum_dtype
from ampjax.lanes.rewriting.linear_pairs import derivative, linear_pair


@dataclass(frozen=True, eq=False)
class StepArrays:
    """A loop in steps as a function of arrays.

    Args:
      body: Its body.
      read: For each state that the body reads: the number of the read, and of the state.
      states: The types of the states, of a row.
      n_before: How many states there are before it.
      n_rows: How many rows it computes at most, copies included.
      tables: What the host tells; the arrays in it are given anew in each call.
    """

    body: LevelBody
    read: Sequence[tuple[int, int]]
    states: Sequence[Any]
    n_before: int
    n_rows: int
    tables: StepTables

    def __call__(
        self,
        moving: Sequence[Any],
        rows: Sequence[Any],
        before: Any,
        fixed: Sequence[Any],
        fixed_rows: Sequence[Any],
    ) -> Any:
        """The arena after the loop.

        Args:
          moving: Constants that have a gradient.
          rows: Rows that have one.
          before: The states before, `[states before, numbers]`.
          fixed: Constants that have no gradient.
          fixed_rows: Rows that have none.
        """
        other = (*fixed, *fixed_rows, *self.tables.arrays())

        @jax.custom_jvp
        def loop(own: Any, other: Any) -> Any:
            return self._run(own, other, False)[0]

        loop.defjvp(self._derivative)
        return loop((*moving, *rows, before), other)

    def _run(
        self,
        own: Sequence[Any],
        other: Sequence[Any],
        is_kept: bool,
    ) -> tuple[Any, list[Any]]:
        """Computes the arena and the kept values from the operands with a gradient and the operands without."""
        tables, given = self._parted(own[:-1], other)
        return self._forward(tables, given, own[-1], is_kept)

    def _parted(
        self,
        own: Sequence[Any],
        other: Sequence[Any],
    ) -> tuple[StepTables, tuple[list[Any], ...]]:
        """Parts operands into the host's tables, and constants and rows, each with and without a gradient."""
        parts = self.body.parts
        n_fixed = parts.n_fixed
        n_other = n_fixed + parts.n_fixed_rows
        given = (
            list(own[: parts.n_moving]),
            list(other[:n_fixed]),
            list(own[parts.n_moving :]),
            list(other[n_fixed:n_other]),
        )
        return self.tables.with_arrays(other[n_other:]), given

    def _derivative(self, primals: Any, tangents: Any) -> tuple[Any, Any]:
        """The arena, and its change: a linear function with a transpose of its own."""
        own, other = primals
        n_own = len(own) - 1
        n_given = n_own + len(other)

        # The derivative of this one, too, is asked for where a gradient is differentiated.
        @jax.custom_jvp
        def run(own: Any, other: Any) -> Any:
            return self._run(own, other, True)

        @run.defjvp
        def rule(primals: Any, tangents: Any) -> Any:
            alone = lambda own: self._run(own, primals[1], True)
            return run(*primals), derivative(alone, primals[:1], tangents[:1])

        arena, kept = run(own, other)

        def push(given: Sequence[Any], changes: Sequence[Any]) -> list[Any]:
            start = given[n_given][: self.n_before]
            whole = lambda own: self._run(own, given[n_own:n_given], False)[0]
            before = (*given[:n_own], start)
            return [jax.jvp(whole, (before,), (tuple(changes),))[1]]

        def pull(given: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
            arena, *kept = given[n_given:]
            tables, parts = self._parted(given[:n_own], given[n_own:n_given])
            return self._backward(tables, parts, arena, kept, cotangents[0])

        given = [*own[:-1], *other, arena, *kept]
        changes = linear_pair(push, pull, given, [*tangents[0]], [arena])
        return arena, changes[0]

    @property
    def _is_small(self) -> bool:
        """Whether steps compute little, including steps with the most rows."""
        return self.body.is_small(self.tables.sizes[0])

    # -- forwards

    def _forward(
        self, tables: StepTables, given: tuple[list[Any], ...], before: Any, is_kept: bool
    ) -> tuple[Any, list[Any]]:
        """Computes the arena, and the kept values of each row."""
        layout = Packed(tuple(kind.shape for kind in self.states))
        kept_layout = Kept(self.body.kept_types(self.n_rows)) if is_kept else Kept([])
        smallest = tables.sizes[-1]

        def computed(size: int, first: Any, arena: Any) -> tuple[Any, list[Any]]:
            inputs = self._inputs(tables, given, arena, size, first)
            states, kept = self.body.forward(size, inputs, is_kept)
            return layout.pack(states), kept_layout.pack(kept)

        # Rows that no step computes are copies of the first one, so that what is computed of them is finite.
        # Rows of the first step read states from before the loop, or none.
        there = before if self.n_before else jnp.zeros((1, layout.width), before.dtype)
        row, kept_row = computed(smallest, 0, there)
        arena = jnp.concatenate([before, self._copies(row)])
        kept = [self._copies(x) for x in kept_row]

        def step(size: int, first: Any, carry: Any) -> Any:
            arena, kept = carry
            # What the rows read lies in steps before this one.
            row, new = computed(size, first, arena)
            # Each array is written once, in place: all that the step reads of it has been read by now.
            arena = jax.lax.dynamic_update_slice_in_dim(
                arena,
                row,
                self.n_before + first,
                0,
            )
            written = []
            for old, x in zip(kept, new, strict=True):
                written.append(jax.lax.dynamic_update_slice_in_dim(old, x, first, 0))
            return arena, written

        return tables.over(step, (arena, kept), is_small=self._is_small)

    def _copies(self, rows: Any) -> Any:
        """The first of some rows, for each row of the loop."""
        return jnp.broadcast_to(
            rows[:1],
            (self.n_rows, rows.shape[1]),
        )

    def _inputs(
        self, tables: StepTables, given: tuple[list[Any], ...], arena: Any, size: int, first: Any
    ) -> list[Any]:
        """The body's inputs for some neighbouring rows."""
        moving, fixed, rows, fixed_rows = given
        layout = Packed(tuple(kind.shape for kind in self.states))
        found = []
        for at in tables.reads:
            own_at = _rows(at, first, size)
            found.append(layout.unpack(_taken(arena, own_at)))
        reads = [found[i][s] for i, s in self.read]
        own = [_rows(x, first, size) for x in rows]
        fixed_own = [_rows(x, first, size) for x in fixed_rows]
        return [*moving, *fixed, *reads, *own, *fixed_own]

    # -- backwards

    def _backward(
        self,
        tables: StepTables,
        given: tuple[list[Any], ...],
        arena: Any,
        kept: Sequence[Any],
        cotangent: Any,
    ) -> list[Any]:
        """Cotangents of constants and rows, and of the states before."""
        layout = Packed(tuple(kind.shape for kind in self.states))
        kept_layout = Kept(self.body.kept_types(self.n_rows))
        n_reads = len(tables.reads)
        is_added = tables.readers.shape[1] == 0

        def of_reads(size: int, first: Any, own: Any) -> list[Any]:
            """Computes cotangents of the states that some rows read, from the cotangents of the rows' own states."""
            found = self.body.backward(
                size,
                self._inputs(tables, given, arena, size, first),
                layout.unpack(_rows(arena, self.n_before + first, size)),
                kept_layout.unpack([_rows(x, first, size) for x in kept]),
                layout.unpack(own),
                True,
            )
            by_read = []
            for number in range(n_reads):
                parts = [jnp.zeros((size, *kind.shape), arena.dtype) for kind in self.states]
                for (i, s), value in zip(self.read, found, strict=True):
                    if i == number:
                        parts[s] = value
                by_read.append(layout.pack(parts))
            return by_read

        if is_added:
            own, before = self._by_adding(tables, cotangent, of_reads)
        else:
            own, before = self._by_reading(tables, cotangent, of_reads)
        inputs = self._inputs(
            tables,
            given,
            arena,
            self.n_rows,
            0,
        )
        rest = self.body.backward(
            self.n_rows,
            inputs,
            layout.unpack(arena[self.n_before :]),
            kept_layout.unpack(kept),
            layout.unpack(own),
            False,
        )
        return [*rest, before]

    def _by_reading(
        self, tables: StepTables, cotangent: Any, of_reads: Callable[..., list[Any]]
    ) -> tuple[Any, Any]:
        """Computes cotangents of all states: each step reads the cotangents that the readers of its states have left."""
        n = len(tables.reads) + 1
        width = cotangent.shape[1]

        def total(first: Any, size: int, left: Any) -> Any:
            found = _rows(cotangent, first, size)
            readers = _rows(tables.readers, first, size)
            for number in range(readers.shape[1]):
                found = found + _taken(left, readers[:, number])
            return found

        def step(size: int, first: Any, left: Any) -> Any:
            # All readers of these states are in later steps, which are done.
            own = jax.lax.optimization_barrier(
                total(
                    self.n_before + first,
                    size,
                    left,
                )
            )
            rows = jnp.stack(
                [*of_reads(size, first, own), own],
                axis=1,
            )
            # One slice holds all that the step leaves.
            flat = rows.reshape(size * n, width)
            return jax.lax.dynamic_update_slice_in_dim(
                left,
                flat,
                first * n,
                0,
            )

        start = jnp.zeros(
            ((self.n_rows + 1) * n, width),
            cotangent.dtype,
        )
        left = tables.over(
            step,
            start,
            reverse=True,
            is_small=self._is_small,
        )
        own = left.reshape(
            self.n_rows + 1,
            n,
            width,
        )[: self.n_rows, n - 1]
        return own, total(0, self.n_before, left)

    def _by_adding(
        self, tables: StepTables, cotangent: Any, of_reads: Callable[..., list[Any]]
    ) -> tuple[Any, Any]:
        """Computes cotangents of all states: each step adds to the cotangents of the states that the step has read."""
        dtype = cotangent.dtype
        wide = sum_dtype(dtype)

        def step(size: int, first: Any, every: Any) -> Any:
            # All readers of these states are in later steps, which are done.
            own = jax.lax.optimization_barrier(
                _rows(
                    every,
                    self.n_before + first,
                    size,
                ).astype(dtype)
            )
            for at, value in zip(
                tables.reads,
                of_reads(
                    size,
                    first,
                    own,
                ),
                strict=True,
            ):
                every = every.at[_rows(at, first, size)].add(
                    value.astype(wide),
                    mode="promise_in_bounds",
                )
            return every

        every = tables.over(
            step,
            cotangent.astype(wide),
            reverse=True,
            is_small=self._is_small,
        ).astype(dtype)
        return every[self.n_before :], every[: self.n_before]


def _rows(
    values: Any,
    first: Any,
    size: int,
) -> Any:
    """Neighbouring rows."""
    if isinstance(first, int) and first == 0 and values.shape[0] == size:
        return values
    return jax.lax.dynamic_slice_in_dim(values, first, size)


def _taken(values: Any, at: Any) -> Any:
    """Rows by their numbers."""
    return values.at[at].get(mode="promise_in_bounds")
