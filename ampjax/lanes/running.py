"""Runs a lane program: one XLA loop, in each turn of which the blocks run where some lane stands, innermost loops several times.

A block is guarded by a loop of at most one trip, not by `lax.cond`: XLA changes what a loop carries in place, where a choice would copy whole arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ampjax.jaxprs.primitives import value_of
from ampjax.lanes.lane_program import LaneBlock, LaneLoop, LaneProgram, take_steps
from ampjax.lanes.lane_state import (
    LaneState,
    all_results,
    cast,
    change_elements,
    first_state,
    take,
    zeros,
)


class FinishedLanes(NamedTuple):
    """The results of a program, and counts of its run.

    Args:
      results: The results, `[n, ...]` each.
      trips: Trips of loops by element, `[n]`; zeros unless they were counted.
      is_cut: By element, whether it was given up, `[n]`.
      runs: How often each block ran, `[n_blocks]`.
      spans: By element the lane that had it, and how many trips each lane had computed when it took it and when it had finished, `[n, 3]`; zeros unless counted.
    """

    results: list[Any]
    trips: Any
    is_cut: Any
    runs: Any
    spans: Any


class LanePace(NamedTuple):
    """The settings of a program's run.

    Args:
      lanes: Number of lanes.
      trips: Trips of an innermost loop between looks at what is around it; 0 goes on until no lane is in it, in every loop, as `jax.vmap` does.
      most: Trips of loops after which an element is given up; None for no bound.
      counts: Whether trips and runs of blocks are counted.
    """

    lanes: int
    trips: int
    most: int | None = None
    counts: bool = False


def run(
    program: LaneProgram,
    pace: LanePace,
    args: Sequence[Any],
) -> FinishedLanes:
    """Computes a program for all elements.

    Args:
      program: The program.
      pace: How.
      args: Values of its arguments: of one that is mapped `[n, ...]` with n at least 1.
    """
    values = shared_values(program, args)
    turns = LaneTurns(program, pace, values)
    finished = program.finished

    def turn(state: LaneState) -> LaneState:
        state = turns.items(program.body.items, state)
        if pace.counts:
            clock = trips_computed(program, state.runs)
        else:
            clock = None
        return change_elements(program, args, state, clock)

    state = first_state(program, args, values, pace.lanes)
    state = lax.while_loop(
        lambda state: jnp.any(state.pc < finished),
        turn,
        state,
    )
    return FinishedLanes(
        all_results(program, state, values),
        state.all_trips,
        state.all_cut,
        state.runs,
        state.spans,
    )


def shared_values(
    program: LaneProgram,
    args: Sequence[Any],
) -> dict[Any, Any]:
    """Values that all lanes share, by variable.

    Args:
      program: The program.
      args: Values of its arguments.
    """
    values = dict(program.constants)
    for var, mapped, arg in zip(program.inputs, program.is_mapped, args, strict=True):
        if not mapped:
            values[var] = arg
    take_steps(program.prologue, values)
    return values


def trips_computed(program: LaneProgram, runs: Any) -> Any:
    """The trips of loops that each lane has computed, for its element or for none.

    Args:
      program: The program.
      runs: How often each block ran, `[n_blocks]`.
    """
    is_trip = [block.is_trip for block in program.blocks]
    trips = jnp.where(jnp.asarray(is_trip), runs, 0)
    return jnp.sum(trips, dtype=jnp.int32)


class LaneTurns:
    """Runs parts of a program on a state.

    Args:
      program: The program.
      pace: How it runs.
      values: Values of what lanes share.
    """

    def __init__(
        self,
        program: LaneProgram,
        pace: LanePace,
        values: dict[Any, Any],
    ):
        self._pace = pace
        self._values = values
        self._numbers = program.numbers
        self._finished = program.finished
        self._counts = pace.counts or pace.most is not None

    def items(
        self,
        items: Sequence[LaneBlock | LaneLoop],
        state: LaneState,
    ) -> LaneState:
        """Runs blocks and loops in order, each where some lane stands there."""
        for item in items:
            if isinstance(item, LaneLoop):
                state = self._loop(item, state)
            else:
                state = self._once(item, state)
        return state

    def _loop(self, loop: LaneLoop, state: LaneState) -> LaneState:
        """Runs a loop's items several times, as long as some lane is in the loop; once in a turn if there are loops inside."""
        numbers = [block.number for block in loop.blocks]
        first = min(numbers)
        last = max(numbers)
        most = self._pace.trips
        only = loop.items[0] if len(loop.items) == 1 else None

        def goes_on(carry: Any) -> Any:
            n, state = carry
            is_inside = (state.pc >= first) & (state.pc <= last)
            goes = jnp.any(is_inside)
            return goes & (n < most) if most else goes

        def trip(carry: Any) -> Any:
            n, state = carry
            # of a loop of a single block it is known that some lane stands there
            if isinstance(only, LaneBlock):
                state = self._block(only, state)
            else:
                state = self.items(loop.items, state)
            return n + 1, state

        if most and not loop.is_innermost:
            return self.items(loop.items, state)
        none = jnp.zeros((), jnp.int32)
        _, state = lax.while_loop(goes_on, trip, (none, state))
        return state

    def _once(self, block: LaneBlock, state: LaneState) -> LaneState:
        """Runs a block if some lane stands there."""

        def goes_on(carry: Any) -> Any:
            is_first, state = carry
            return is_first & jnp.any(state.pc == block.number)

        def run(carry: Any) -> Any:
            _, state = carry
            return jnp.zeros((), bool), self._block(block, state)

        is_first = jnp.ones((), bool)
        _, state = lax.while_loop(goes_on, run, (is_first, state))
        return state

    def _block(self, block: LaneBlock, state: LaneState) -> LaneState:
        """Computes a block for all lanes, and keeps the results of the lanes that stand there."""
        stands = state.pc == block.number
        # the registers that the block reads, by number
        inputs = {}
        for var in block.reads():
            if var in self._numbers:
                number = self._numbers[var]
                inputs[number] = state.registers[number]
        if block.sees_all:
            # XLA would compute what does not change before the loop that guards the block, where no lane may stand here
            inputs, _ = lax.optimization_barrier((inputs, stands))
            # lanes elsewhere get the rows of a lane that stands here
            one = jnp.argmax(stands)
            for number, x in inputs.items():
                row = take(x, one)
                inputs[number] = merge(stands, x, row[None])
        # each lane computes the block
        rows = (inputs, state.trips, state.is_cut)
        computed = jax.vmap(
            lambda rows: self._compute(block, *rows),
            axis_size=self._pace.lanes,
        )(rows)
        changed, puts, pc, trips, is_cut = computed
        # lanes that stand here get new registers: first cleared arrays, then results, then rows of arrays
        registers = dict(state.registers)
        if self._pace.most is not None:
            for var in block.clears:
                number = self._numbers[var]
                registers[number] = merge(
                    stands,
                    zeros(stands.shape, var.aval),
                    registers[number],
                )
        for number, value in changed.items():
            old = registers[number]
            registers[number] = merge(stands, value, old)
        if puts:
            numbers = [self._numbers[put.array] for put in block.puts]
            arrays = [registers[number] for number in numbers]
            written = put_rows(arrays, stands, puts)
            registers.update(zip(numbers, written, strict=True))
        # they go on to their next blocks
        state = state._replace(
            registers=registers,
            pc=jnp.where(stands, pc, state.pc),
        )
        if self._counts:
            state = state._replace(
                trips=jnp.where(stands, trips, state.trips),
                is_cut=jnp.where(stands, is_cut, state.is_cut),
            )
        if self._pace.counts:
            runs = state.runs.at[block.number].add(1)
            state = state._replace(runs=runs)
        return state

    def _compute(
        self,
        block: LaneBlock,
        inputs: dict[int, Any],
        trips: Any,
        is_cut: Any,
    ) -> tuple[dict[int, Any], list[tuple[Any, Any]], Any, Any, Any]:
        """Computes a block for one lane: new values of registers, rows to write, the next block, trips, and whether the element is given up."""
        values = dict(self._values)
        for var in block.reads():
            if var in self._numbers:
                values[var] = inputs[self._numbers[var]]
        take_steps(block.steps, values)
        changed = {}
        for var in block.defines():
            if var in self._numbers:
                changed[self._numbers[var]] = values[var]
        for var, atom in block.assigns:
            number = self._numbers[var]
            changed[number] = cast(value_of(atom, values), var.aval)
        puts = []
        for put in block.puts:
            place = value_of(put.place, values)
            kind = row_type(put.array.aval)
            row = cast(value_of(put.row, values), kind)
            puts.append((place, row))
        # how many trips the element has made, and whether it may make another one
        if block.is_trip:
            trips = trips + 1
        choice = block.choice
        if choice is not None:
            choice = jnp.asarray(value_of(choice, values))
        if block.is_test and self._pace.most is not None:
            is_over = trips >= self._pace.most
            is_cut = is_cut | (choice & is_over)
            choice = choice & ~is_over
        target = self._target(block, choice)
        return changed, puts, target, trips, is_cut

    def _target(self, block: LaneBlock, choice: Any) -> Any:
        """The number of the next block."""
        numbers = []
        for target in block.targets:
            if target is None:
                numbers.append(self._finished)
            else:
                numbers.append(target.number)
        if choice is None or len(set(numbers)) == 1:
            return jnp.asarray(numbers[0], jnp.int32)
        if len(numbers) == 2:
            number = jnp.where(choice, numbers[1], numbers[0])
            return number.astype(jnp.int32)
        table = jnp.asarray(numbers, jnp.int32)
        index = jnp.clip(choice, 0, len(numbers) - 1)
        return take(table, index)


def merge(
    stands: Any,
    new: Any,
    old: Any,
) -> Any:
    """Rows of lanes that stand somewhere, and the old ones of all others.

    Args:
      stands: By lane, whether it does.
      new: `[n_lanes, ...]`.
      old: `[n_lanes, ...]`.
    """
    ones = [1] * (old.ndim - 1)
    mask = stands.reshape(-1, *ones)
    return jnp.where(mask, new, old)


def put_rows(
    arrays: Sequence[Any],
    stands: Any,
    rows: Sequence[tuple[Any, Any]],
) -> list[Any]:
    """Writes a row into each of some arrays, lane by lane, in place.

    Args:
      arrays: `[n_lanes, length, ...]` each.
      stands: By lane, whether it writes.
      rows: For each array by lane the place, `[n_lanes]`, and the row, `[n_lanes, ...]`.
    """

    def write(carry: Any) -> Any:
        left, arrays = carry
        # the first lane that is left writes its row into each array
        lane = jnp.argmax(left).astype(jnp.int32)
        zero = jnp.zeros_like(lane)
        written = []
        for array, (place, row) in zip(arrays, rows, strict=True):
            inside = [zero] * (array.ndim - 2)
            starts = (lane, take(place, lane), *inside)
            update = take(row, lane)[None, None]
            new = lax.dynamic_update_slice(array, update, starts)
            written.append(new)
        return left.at[lane].set(False), written

    _, written = lax.while_loop(
        lambda carry: jnp.any(carry[0]),
        write,
        (stands, list(arrays)),
    )
    return written


def row_type(aval: Any) -> Any:
    """The type of a row of an array.

    Args:
      aval: The array's type.
    """
    return aval.update(shape=aval.shape[1:])
