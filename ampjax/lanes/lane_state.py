"""The state of all lanes while a lane program runs, and how a finished lane hands in its results and takes the next element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from ampjax.jaxprs.primitives import value_of
from ampjax.lanes.lane_program import LaneProgram


class LaneState(NamedTuple):
    """What a turn changes: an array with a row for each lane, unless said otherwise.

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


def zeros(shape: Sequence[int], aval: Any) -> Any:
    """Zeros in an array of any dtype, keys of random numbers included.

    Args:
      shape: The axes in front.
      aval: The type of what is behind them.
    """
    return lax.full((*shape, *aval.shape), 0, aval.dtype)


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
    n = next(arg.shape[0] for arg, mapped in zip(args, program.is_mapped, strict=True) if mapped)
    lane = jnp.arange(n_lanes, dtype=jnp.int32)
    registers = {}
    for number, var in enumerate(program.registers):
        registers[number] = zeros((n_lanes,), var.aval)
    numbers = program.numbers
    for var, mapped, arg in zip(program.inputs, program.is_mapped, args, strict=True):
        if mapped and var in numbers:
            registers[numbers[var]] = arg[jnp.minimum(lane, n - 1)]
    results = []
    for atom in varying_results(program):
        results.append(zeros((n,), atom.aval))
    n_blocks = len(program.blocks)
    return LaneState(
        pc=jnp.where(lane < n, 0, n_blocks + 1),
        element=jnp.minimum(lane, n - 1),
        registers=registers,
        trips=jnp.zeros(n_lanes, jnp.int32),
        is_cut=jnp.zeros(n_lanes, bool),
        next=jnp.asarray(min(n_lanes, n), jnp.int32),
        results=results,
        all_trips=jnp.zeros(n, jnp.int32),
        all_cut=jnp.zeros(n, bool),
        runs=jnp.zeros(n_blocks, jnp.int32),
    )


def varying_results(program: LaneProgram) -> list[Any]:
    """The atoms of those results of which each element has its own.

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
    """The program's results, `[n, ...]` each: those that all elements share, too.

    Args:
      program: The program.
      state: The state behind the last turn.
      values: Values of what lanes share.
    """
    n = state.all_trips.shape[0]
    own = iter(state.results)
    found = []
    for atom in program.results:
        if _varies(atom, program):
            found.append(next(own))
        else:
            aval: Any = atom.aval
            value = cast(value_of(atom, values), aval)
            found.append(jnp.broadcast_to(value, (n, *aval.shape)))
    return found


def change_elements(program: LaneProgram, args: Sequence[Any], state: LaneState) -> LaneState:
    """Hands in the results of finished lanes, one lane after another, and gives each the next element.

    Args:
      program: The program.
      args: Values of its arguments.
      state: The state behind a turn.
    """
    finished = len(program.blocks)
    n = state.all_trips.shape[0]
    numbers = program.numbers
    sources = [numbers[atom] for atom in varying_results(program)]
    own = []
    for var, mapped, arg in zip(program.inputs, program.is_mapped, args, strict=True):
        if mapped and var in numbers:
            own.append((numbers[var], arg))

    def change(state: LaneState) -> LaneState:
        # the first finished lane, and where its results go
        lane = jnp.argmax(state.pc == finished).astype(jnp.int32)
        element = state.element[lane]
        results = []
        for array, source in zip(state.results, sources, strict=True):
            results.append(put(array, take(state.registers[source], lane), element))
        # its next element, or none
        new = jnp.minimum(state.next, n - 1)
        is_there = state.next < n
        registers = dict(state.registers)
        for number, arg in own:
            registers[number] = put(registers[number], take(arg, new), lane)
        pc = put(state.pc, jnp.where(is_there, 0, finished + 1), lane)
        return state._replace(
            pc=pc,
            element=put(state.element, new, lane),
            registers=registers,
            trips=put(state.trips, jnp.zeros((), jnp.int32), lane),
            is_cut=put(state.is_cut, jnp.zeros((), bool), lane),
            next=state.next + is_there,
            results=results,
            all_trips=put(state.all_trips, state.trips[lane], element),
            all_cut=put(state.all_cut, state.is_cut[lane], element),
        )

    return lax.while_loop(lambda state: jnp.any(state.pc == finished), change, state)


def take(array: Any, row: Any) -> Any:
    """A row of an array.

    Args:
      array: `[n, ...]`.
      row: Its number.
    """
    return lax.dynamic_index_in_dim(array, row, keepdims=False)


def put(array: Any, value: Any, row: Any) -> Any:
    """An array with another row.

    Args:
      array: `[n, ...]`.
      value: The row.
      row: Its number.
    """
    return lax.dynamic_update_index_in_dim(array, cast(value, array), row, 0)


def cast(value: Any, kind: Any) -> Any:
    """A value as an array of a type; a literal has no dtype of its own.

    Args:
      value: The value.
      kind: The type, or an array of its dtype.
    """
    if jnp.issubdtype(kind.dtype, jax.dtypes.prng_key):
        return value
    return jnp.asarray(value, kind.dtype)
