"""While loops with a derivative in reverse direction, for any number of trips.

Forward a loop keeps its first carry and counts its trips. Backward it goes from the last trip to the first, and computes the carry before each again from the
nearest that it has kept. Which ones it keeps follows A. Griewank and A. Walther, "Algorithm 799: revolve", ACM TOMS 26, 2000: with s carries no trip is computed
more than r times again, in a loop of up to (s + r)! / (s! r!) trips.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ampjax.jaxprs.primitives import is_inexact, opened
from ampjax.lanes.lane_state import put, take
from ampjax.lanes.rewriting.linear_pairs import FloatParts, changes_by_pair, fill_tangents
from ampjax.lanes.rewriting.replaced_equations import WhileLoop, with_loops

SLOTS = 64
"""Carries that a loop keeps at a time while it goes back: trips of loops up to 64 are computed once again, up to 2,080 at most twice, up to 45,760 three times."""

_TIMES = 16
"""How often trips are computed again, at most, in loops that the plan is made for; with eight times 64 carries suffice for any number of trips."""

_MOST = np.iinfo(np.int32).max


class _WayBack(NamedTuple):
    """The state of a loop on the way back.

    Args:
      end: Trips that are left.
      top: The slot of the last carry kept.
      places: By slot, the trips before its carry.
      slots: The carries, `[SLOTS, ...]` each.
      of_carry: Cotangents of the inexact part of the carry behind trip `end`.
      of_closed: Those of the inexact ones of the body's constants, so far.
    """

    end: Any
    top: Any
    places: Any
    slots: list[Any]
    of_carry: list[Any]
    of_closed: list[Any]


def reversible_loop(
    loop: WhileLoop,
    asked: Sequence[Any],
    closed: Sequence[Any],
    carry: Sequence[Any],
) -> list[Any]:
    """Runs a loop in a form that JAX differentiates backwards, but not forwards.

    Args:
      loop: The loop.
      asked: The test's constants.
      closed: The body's constants.
      carry: What it carries into its first trip.
    """
    if not any(_floats(carry)):
        return loop.plain(asked, closed, carry)

    @jax.custom_vjp
    def run(
        asked: Any,
        closed: Any,
        carry: Any,
    ) -> list[Any]:
        return loop.plain(asked, closed, carry)

    def forward(
        asked: Any,
        closed: Any,
        carry: Any,
    ) -> Any:
        changes = _Changes(tuple(x.perturbed for x in closed))
        asked, closed, carry = jax.tree.map(
            lambda x: x.value,
            (asked, closed, carry),
        )

        def trip(state: Any) -> Any:
            n, carry = state
            return n + 1, loop.body(closed, carry)

        n, last = lax.while_loop(
            lambda state: loop.test(asked, state[1]),
            trip,
            (jnp.zeros((), jnp.int32), carry),
        )
        return last, (changes, closed, carry, n)

    def backward(kept: Any, cotangents: Any) -> Any:
        changes, closed, carry, n = kept
        cts = [fill_tangents(ct) for ct in cotangents]
        of_closed, of_carry = _go_back(
            loop.body,
            closed,
            changes.of_closed,
            carry,
            n,
            cts,
        )
        return [None] * len(asked), of_closed, of_carry

    run.defvjp(forward, backward, symbolic_zeros=True)
    return run(list(asked), list(closed), list(carry))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=(),
    meta_fields=("of_closed",),
)
@dataclass(frozen=True)
class _Changes:
    """Flags of the variables of a derivative.

    Args:
      of_closed: By constant of the body, whether it is.
    """

    of_closed: tuple[bool, ...]


def differentiable(function: Callable[..., Sequence[Any]]) -> Callable[..., list[Any]]:
    """A flat function, while loops included, in a form that JAX differentiates in both directions, again and again.

    Args:
      function: The function.
    """

    @jax.custom_jvp
    def compute(*args: Any) -> list[Any]:
        return list(function(*args))

    @compute.defjvp
    def _(primals: Any, tangents: Any) -> Any:
        results = compute(*primals)
        changes = changes_by_pair(
            function,
            transpose,
            primals,
            tangents,
            results,
        )
        return results, changes

    def transpose(
        parts: FloatParts,
        arguments: Sequence[Any],
        cotangents: Sequence[Any],
    ) -> Sequence[Any]:
        n = len(arguments)

        def pull(*operands: Any) -> list[Any]:
            args = operands[:n]
            whole = jax.make_jaxpr(function)(*args)
            jaxpr, constants = opened(whole)

            def run(*args: Any) -> list[Any]:
                return with_loops(jaxpr, constants, args, reversible_loop)

            floats = parts.of(run, args)
            _, back = jax.vjp(floats, *parts.own(args))
            return back(list(operands[n:]))

        return differentiable(pull)(*arguments, *cotangents)

    return compute


def _floats(values: Sequence[Any]) -> list[bool]:
    """Tells for each value whether there are cotangents for such values."""
    return [is_inexact(jax.typeof(x).dtype) for x in values]


def _select(
    values: Sequence[Any],
    wanted: Sequence[bool],
) -> list[Any]:
    """The wanted ones among some values."""
    return [x for x, is_wanted in zip(values, wanted, strict=True) if is_wanted]


def _join_operands(
    values: Sequence[Any],
    wanted: Sequence[bool],
    chosen: Sequence[Any],
) -> list[Any]:
    """Some values, with the wanted ones replaced."""
    left = iter(chosen)
    joined = []
    for x, is_wanted in zip(values, wanted, strict=True):
        joined.append(next(left) if is_wanted else x)
    return joined


def _go_back(
    body: Callable[[Sequence[Any], Sequence[Any]], list[Any]],
    closed: Sequence[Any],
    is_asked: Sequence[bool],
    first: Sequence[Any],
    n: Any,
    cotangents: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """Cotangents of a body's constants and of the first carry; None where there is none.

    Args:
      body: The body.
      closed: Its constants.
      is_asked: By constant, whether its cotangent is needed.
      first: The first carry.
      n: The number of trips.
      cotangents: Of the last carry.
    """
    in_carry = _floats(first)
    in_closed = []
    for asked, is_float in zip(is_asked, _floats(closed), strict=True):
        in_closed.append(asked and is_float)
    floats_closed = _select(closed, in_closed)
    reach = jnp.asarray(_reach(SLOTS))
    keep_next = lambda way: _keep_next(way, lambda carry: body(closed, carry), reach)

    def trip_back(way: _WayBack) -> _WayBack:
        # keeps carries until the last one kept is the one before the last trip
        is_far = lambda way: way.end - way.places[way.top] > 1
        way = lax.while_loop(is_far, keep_next, way)
        start = [take(slot, way.top) for slot in way.slots]

        def trip(
            carry: list[Any],
            constants: list[Any],
        ) -> list[Any]:
            operands = _join_operands(closed, in_closed, constants)
            whole = _join_operands(start, in_carry, carry)
            return _select(body(operands, whole), in_carry)

        # takes the cotangents back over this trip, and forgets the carry before it
        floats = _select(start, in_carry)
        pull = jax.vjp(trip, floats, floats_closed)[1]
        of_carry, added = pull(way.of_carry)
        sums = [a + b for a, b in zip(way.of_closed, added, strict=True)]
        return way._replace(
            end=way.end - 1,
            top=way.top - 1,
            of_carry=of_carry,
            of_closed=sums,
        )

    # the first carry is in all slots until others are kept
    slots = []
    for x in first:
        slots.append(jnp.broadcast_to(x, (SLOTS, *x.shape)))
    way = _WayBack(
        end=n,
        top=jnp.zeros((), jnp.int32),
        places=jnp.zeros(SLOTS, jnp.int32),
        slots=slots,
        of_carry=_select(cotangents, in_carry),
        of_closed=[jnp.zeros_like(x) for x in floats_closed],
    )
    way = lax.while_loop(lambda way: way.end > 0, trip_back, way)
    of_closed = _join_operands(
        [None] * len(closed),
        in_closed,
        way.of_closed,
    )
    of_carry = _join_operands(
        [None] * len(first),
        in_carry,
        way.of_carry,
    )
    return of_closed, of_carry


def _keep_next(
    way: _WayBack,
    advance: Callable[[Sequence[Any]], list[Any]],
    reach: jax.Array,
) -> _WayBack:
    """Makes some trips from the last carry kept, without keeping anything on the way, and keeps the carry at their end.

    Args:
      way: The way back so far.
      advance: From a carry to the next one.
      reach: See `_reach`.
    """
    n_trips = _trips_to_next(way, reach)
    start = [take(slot, way.top) for slot in way.slots]
    none = jnp.zeros((), jnp.int32)

    def trip(state: Any) -> Any:
        n_made, carry = state
        return n_made + 1, advance(carry)

    _, reached = lax.while_loop(
        lambda state: state[0] < n_trips,
        trip,
        (none, start),
    )
    # the carry that it has reached gets the next slot
    top = way.top + 1
    place = way.places[way.top] + n_trips
    slots = []
    for slot, x in zip(way.slots, reached, strict=True):
        slots.append(put(slot, x, top))
    return way._replace(
        top=top,
        places=put(way.places, place, top),
        slots=slots,
    )


def _trips_to_next(way: _WayBack, reach: jax.Array) -> Any:
    """The number of trips from the last carry kept to the next."""
    left = way.end - way.places[way.top]
    free = SLOTS - 1 - way.top
    # how often a trip has to be computed again at most; the table has a column in front for -1
    again = jnp.sum(reach[free, 1:] < left)
    fewer = jnp.maximum(free - 1, 0)
    behind = reach[fewer, again + 1]
    before = reach[free, again - 1]
    wanted = jnp.maximum(left - behind, before)
    # under `vmap` this is also asked where nothing is left
    wanted = jnp.maximum(wanted, 1)
    return jnp.minimum(wanted, left - 1)


def _reach(n_slots: int) -> np.ndarray:
    """The longest loops that go back with a number of free slots and a number of repetitions of a trip.

    Returns:
      By free slots, and by times from -1, `[n_slots, n_times]`.
    """
    rows = []
    for free in range(n_slots):
        row = [0]
        for times in range(_TIMES):
            longest = math.comb(free + times, times)
            row.append(min(longest, _MOST))
        rows.append(row)
    return np.asarray(rows, np.int32)
