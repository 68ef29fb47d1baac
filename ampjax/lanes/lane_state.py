"""The state of all lanes while a lane program runs, and how a finished lane hands in its results and takes the next element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from ampjax.jaxprs.primitives import value_of
from ampjax.lanes.argument_axes import n_elements
from ampjax.lanes.lane_program import LaneProgram


class LaneState(NamedTuple):
    """The arrays that a turn changes, each with a row for each lane unless said otherwise.

    Args:
      pc: The number of the block where the lane stands; the number of blocks if its element is finished, one more if it has none.
      element: The number of its element.
      registers: By variable its rows.
      trips: Trips of loops that its element has made.
      is_cut: Whether the element was given up.
      next: The next element that no lane has yet; a single number.
      results: Those of all elements, `[n, ...]` each.
      all_trips: Trips by element, `[n]`.
      all_cut: Whether given up, by element, `[n]`.
      runs: How often each block ran, `[n_blocks]`.
      since: What the clock showed when the lane took its element.
      spans: By element its lane, and what the clock showed when the lane took it and when it had finished, `[n, 3]`; zeros unless a clock is given.
    """

    pc: Any
    element: Any
    registers: dict[int, Any]
    trips: Any
    is_cut: Any
    next: Any
    results: list[Any]
    all_trips: Any
    all_cut: Any
    runs: Any
    since: Any
    spans: Any


def zeros(shape: Sequence[int], aval: Any) -> Any:
    """Zeros in an array of any dtype, keys of random numbers included.

    Args:
      shape: The axes in front.
      aval: The type of what is behind them.
    """
    whole = (*shape, *aval.shape)
    return lax.full(whole, 0, aval.dtype)


def first_state(
    program: LaneProgram,
    args: Sequence[Any],
    values: dict[Any, Any],
    n_lanes: int,
) -> LaneState:
    """The state before the first turn: lane i has element i.

    Args:
      program: The program.
      args: Values of its arguments; of one that is mapped `[n, ...]`.
      values: Values of what lanes share.
      n_lanes: Number of lanes.
    """
    n = n_elements(program.is_mapped, args)
    lane = jnp.arange(n_lanes, dtype=jnp.int32)
    element = jnp.minimum(lane, n - 1)
    empty = empty_state(program, n_lanes, n)
    registers = dict(empty.registers)
    for number, arg in _mapped_registers(program, args):
        registers[number] = arg[element]
    n_taken = min(n_lanes, n)
    return empty._replace(
        pc=jnp.where(lane < n, 0, program.idle),
        element=element,
        registers=registers,
        next=jnp.asarray(n_taken, jnp.int32),
    )


def _mapped_registers(
    program: LaneProgram,
    args: Sequence[Any],
) -> Iterator[tuple[int, Any]]:
    """Yields the number of each register that holds an argument of the element's own, and the argument for all elements."""
    values = zip(program.inputs, program.is_mapped, args, strict=True)
    for var, mapped, arg in values:
        if mapped and var in program.numbers:
            yield program.numbers[var], arg


def empty_state(
    program: LaneProgram,
    n_lanes: int,
    n: int,
) -> LaneState:
    """The state of lanes without elements.

    Args:
      program: The program.
      n_lanes: Number of lanes.
      n: How many results there is room for.
    """
    registers = {}
    for number, var in enumerate(program.registers):
        registers[number] = zeros((n_lanes,), var.aval)
    results = []
    for atom in varying_results(program):
        results.append(zeros((n,), atom.aval))
    return LaneState(
        pc=jnp.full(n_lanes, program.idle, jnp.int32),
        element=jnp.zeros(n_lanes, jnp.int32),
        registers=registers,
        trips=jnp.zeros(n_lanes, jnp.int32),
        is_cut=jnp.zeros(n_lanes, bool),
        next=jnp.zeros((), jnp.int32),
        results=results,
        all_trips=jnp.zeros(n, jnp.int32),
        all_cut=jnp.zeros(n, bool),
        runs=jnp.zeros(len(program.blocks), jnp.int32),
        since=jnp.zeros(n_lanes, jnp.int32),
        spans=jnp.zeros((n, 3), jnp.int32),
    )


def varying_results(program: LaneProgram) -> list[Any]:
    """Lists the atoms of the results that differ from element to element.

    Args:
      program: The program.
    """
    return [v for v in program.results if _varies(v, program)]


def _varies(atom: Any, program: LaneProgram) -> bool:
    return not isinstance(atom, jex.Literal) and atom in program.numbers


def all_results(
    program: LaneProgram,
    state: LaneState,
    values: dict[Any, Any],
) -> list[Any]:
    """Collects the program's results, `[n, ...]` each; a result that all elements share is repeated.

    Args:
      program: The program.
      state: The state behind the last turn.
      values: Values of what lanes share.
    """
    n = state.all_trips.shape[0]
    mapped = iter(state.results)
    in_order = []
    for atom in program.results:
        if _varies(atom, program):
            in_order.append(next(mapped))
        else:
            aval: Any = atom.aval
            value = cast(value_of(atom, values), aval)
            shape = (n, *aval.shape)
            in_order.append(jnp.broadcast_to(value, shape))
    return in_order


def change_elements(
    program: LaneProgram,
    args: Sequence[Any],
    state: LaneState,
    clock: Any = None,
) -> LaneState:
    """Hands in the results of finished lanes, one lane after another, and gives each the next element.

    Args:
      program: The program.
      args: Values of its arguments.
      state: The state behind a turn.
      clock: A number to note beside elements, if they are to be followed.
    """
    finished = program.finished
    n = state.all_trips.shape[0]

    def change(state: LaneState) -> LaneState:
        # the first finished lane, and where its results go
        lane = jnp.argmax(state.pc == finished)
        lane = lane.astype(jnp.int32)
        element = state.element[lane]
        state = hand_in(program, state, lane, element)
        if clock is not None:
            since = state.since[lane]
            span = jnp.stack([lane, since, clock])
            state = state._replace(
                since=put(state.since, clock, lane),
                spans=put(state.spans, span, element),
            )
        # its next element, or none
        return take_element(program, args, state, lane, n)

    return lax.while_loop(
        lambda state: jnp.any(state.pc == finished),
        change,
        state,
    )


def hand_in(
    program: LaneProgram,
    state: LaneState,
    lane: Any,
    place: Any,
) -> LaneState:
    """Writes down the results of a lane's element.

    Args:
      program: The program.
      state: The state.
      lane: The lane.
      place: Where they go among all results.
    """
    numbers = program.numbers
    results = []
    atoms = varying_results(program)
    for array, atom in zip(state.results, atoms, strict=True):
        register = state.registers[numbers[atom]]
        result = take(register, lane)
        results.append(put(array, result, place))
    trips = state.trips[lane]
    is_cut = state.is_cut[lane]
    return state._replace(
        results=results,
        all_trips=put(state.all_trips, trips, place),
        all_cut=put(state.all_cut, is_cut, place),
    )


def take_element(
    program: LaneProgram,
    args: Sequence[Any],
    state: LaneState,
    lane: Any,
    n: Any,
) -> LaneState:
    """Gives a lane the next element, or none if there is no more.

    Args:
      program: The program.
      args: Values of its arguments.
      state: The state.
      lane: The lane.
      n: The number of elements.
    """
    last = jnp.maximum(n - 1, 0)
    new = jnp.clip(state.next, 0, last)
    is_there = state.next < n
    registers = dict(state.registers)
    for number, arg in _mapped_registers(program, args):
        row = take(arg, new)
        registers[number] = put(registers[number], row, lane)
    pc = jnp.where(is_there, 0, program.idle)
    no_trips = jnp.zeros((), jnp.int32)
    is_cut = jnp.zeros((), bool)
    return state._replace(
        pc=put(state.pc, pc, lane),
        element=put(state.element, new, lane),
        registers=registers,
        trips=put(state.trips, no_trips, lane),
        is_cut=put(state.is_cut, is_cut, lane),
        next=state.next + is_there,
    )


def take(array: Any, row: Any) -> Any:
    """A row of an array.

    Args:
      array: `[n, ...]`.
      row: Its number.
    """
    return lax.dynamic_index_in_dim(array, row, keepdims=False)


def put(
    array: Any,
    value: Any,
    row: Any,
) -> Any:
    """An array with another row.

    Args:
      array: `[n, ...]`.
      value: The row.
      row: Its number.
    """
    typed = cast(value, array)
    return lax.dynamic_update_index_in_dim(array, typed, row, 0)


def cast(value: Any, kind: Any) -> Any:
    """A value as an array of a type; a literal has no dtype of its own.

    Args:
      value: The value.
      kind: The type, or an array of its dtype.
    """
    if jnp.issubdtype(kind.dtype, jax.dtypes.prng_key):
        return value
    return jnp.asarray(value, kind.dtype)
