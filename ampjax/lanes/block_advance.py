"""A lane program block by block: lanes keep their elements from one block to the next, so that none waits for the longest of a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from ampjax.lanes.argument_axes import n_elements
from ampjax.lanes.lane_program import LaneProgram
from ampjax.lanes.lane_state import LaneState, all_results, empty_state, hand_in, put, take_element
from ampjax.lanes.running import LanePace, LaneTurns, shared_values


class KeptLanes(NamedTuple):
    """The part of `LaneState` that lanes keep between two blocks, with a row for each lane.

    Args:
      pc: As there.
      element: The number of the element, counted from the first of the block that came last; below 0 for those of blocks before.
      registers: As there.
      trips: As there.
      is_cut: As there.
    """

    pc: Any
    element: Any
    registers: dict[int, Any]
    trips: Any
    is_cut: Any


class FinishedElements(NamedTuple):
    """Elements that were finished while a block was taken, in this order.

    Args:
      results: Flat results, `[n_lanes + block size, ...]` each, of which the first `n` count.
      numbers: The elements' numbers, counted from the first of the block.
      is_cut: Whether an element was given up.
      n: How many were finished.
    """

    results: list[Any]
    numbers: Any
    is_cut: Any
    n: Any


class _Carry(NamedTuple):
    """A state together with the finished elements."""

    state: LaneState
    numbers: Any
    n: Any


def idle_lanes(program: LaneProgram, n_lanes: int) -> KeptLanes:
    """Lanes before the first block.

    Args:
      program: The program.
      n_lanes: Number of lanes.
    """
    return _keep_lanes(empty_state(program, n_lanes, 0))


def advance(
    program: LaneProgram,
    pace: LanePace,
    kept: KeptLanes,
    args: Sequence[Any],
    n: Any,
    shift: Any,
    until: Any,
) -> tuple[KeptLanes, FinishedElements]:
    """Runs lanes until each element of a block has been taken, though not finished.

    Args:
      program: The program.
      pace: How it runs.
      kept: What lanes have kept.
      args: Values of the program's arguments; of one that is mapped those of a block.
      n: The number of elements in the block, which may be 0.
      shift: The number of elements in the block before.
      until: Lanes go on, too, as long as one of them has an element with a number below this one.
    """
    values = shared_values(program, args)
    turns = LaneTurns(program, pace, values)
    finished = program.finished
    room = n_elements(program.is_mapped, args) + pace.lanes
    # what lanes have kept; elements are counted from the block's first one
    state = empty_state(program, pace.lanes, room)
    state = state._replace(**kept._asdict())
    state = state._replace(element=state.element - shift)

    def goes_on(carry: _Carry) -> Any:
        state = carry.state
        is_busy = state.pc < finished
        is_wanted = is_busy & (state.element < until)
        is_left = state.next < n
        return is_left | jnp.any(is_wanted)

    def turn(carry: _Carry) -> _Carry:
        state = turns.items(program.body.items, carry.state)
        carry = carry._replace(state=state)
        return _change_elements(program, args, carry, n)

    carry = _Carry(
        state,
        jnp.zeros(room, jnp.int32),
        jnp.zeros((), jnp.int32),
    )
    # lanes that found no element in the block before take one of this block
    carry = _change_elements(program, args, carry, n)
    carry = lax.while_loop(goes_on, turn, carry)
    results = all_results(program, carry.state, values)
    ended = FinishedElements(
        results,
        carry.numbers,
        carry.state.all_cut,
        carry.n,
    )
    return _keep_lanes(carry.state), ended


def _change_elements(
    program: LaneProgram,
    args: Sequence[Any],
    carry: _Carry,
    n: Any,
) -> _Carry:
    """Hands in finished elements, and gives the next ones to free lanes."""
    finished = program.finished

    def wants(state: LaneState) -> Any:
        is_idle = state.pc > finished
        is_left = state.next < n
        return (state.pc == finished) | (is_idle & is_left)

    def change(carry: _Carry) -> _Carry:
        lane = jnp.argmax(wants(carry.state))
        lane = lane.astype(jnp.int32)
        # an idle lane writes, too, where the next result will be written over it: there is always one to come
        has_result = carry.state.pc[lane] == finished
        numbers = put(
            carry.numbers,
            carry.state.element[lane],
            carry.n,
        )
        state = hand_in(program, carry.state, lane, carry.n)
        state = take_element(program, args, state, lane, n)
        return _Carry(state, numbers, carry.n + has_result)

    return lax.while_loop(
        lambda carry: jnp.any(wants(carry.state)),
        change,
        carry,
    )


def _keep_lanes(state: LaneState) -> KeptLanes:
    return KeptLanes(
        state.pc,
        state.element,
        state.registers,
        state.trips,
        state.is_cut,
    )
