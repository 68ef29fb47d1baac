"""Cotangents of a function of many elements: some elements at a time, those together that make about as many trips of their loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from ampjax.jaxprs.primitives import opened
from ampjax.jaxprs.replaced_loops import WhileLoop, with_loops
from ampjax.lanes.lane_state import take
from ampjax.lanes.linear_pairs import FloatParts
from ampjax.lanes.reversible_loops import reversible_loop
from ampjax.lanes.running import merge
from ampjax.lanes.splitting import splits


def pulled_back(
    jaxpr: Any,
    is_mapped: Sequence[bool],
    args: Sequence[Any],
    trips: Any,
    rows: int,
    parts: FloatParts,
    cotangents: Sequence[Any],
) -> list[Any]:
    """Cotangents of arguments.

    Args:
      jaxpr: The function of one element, whose constants are its first arguments.
      is_mapped: By argument, whether each element has its own.
      args: The arguments; of one that is mapped `[n, ...]`.
      trips: How many trips of loops each element makes, `[n]`, or about so.
      rows: How many elements are computed at a time.
      parts: Which arguments and results have cotangents.
      cotangents: Those of such results, `[n, ...]` each.

    Returns:
      The cotangents of such arguments; of those that elements share, summed over the elements.
    """
    n = trips.shape[0]
    own = [i for i in parts.of_args if is_mapped[i]]
    shared = [i for i in parts.of_args if not is_mapped[i]]
    rows = min(rows, n)

    def pull(part: Sequence[Any], cotangents: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Cotangents of what some elements have, and of what all share."""
        whole = lambda *part: _of_part(jaxpr, is_mapped, part)
        found = jax.vjp(parts.of(whole, part), *parts.own(part))[1](list(cotangents))
        by_arg = dict(zip(parts.of_args, found, strict=True))
        return [by_arg[i] for i in own], [by_arg[i] for i in shared]

    if rows == n:
        of_own, of_shared = pull(args, cotangents)
        return _by_argument(parts.of_args, own, of_own, shared, of_shared)

    # elements in the order of their trips; the last part is filled up with the last element, which then has no cotangent
    n_parts = -(-n // rows)
    order = jnp.argsort(trips)
    places = jnp.arange(n_parts * rows).reshape(n_parts, rows)

    def next_part(sums: list[Any], places: Any) -> tuple[list[Any], list[Any]]:
        elements = order[jnp.minimum(places, n - 1)]
        part = [x[elements] if mapped else x for x, mapped in zip(args, is_mapped, strict=True)]
        is_there = places < n
        given = [merge(is_there, x[elements], jnp.zeros_like(x[elements])) for x in cotangents]
        of_own, of_shared = pull(part, given)
        return [a + b for a, b in zip(sums, of_shared, strict=True)], of_own

    zeros = [jnp.zeros_like(args[i]) for i in shared]
    of_shared, of_parts = lax.scan(next_part, zeros, places)
    # back to where the elements were
    back = jnp.argsort(order)
    of_own = [x.reshape(-1, *x.shape[2:])[back] for x in of_parts]
    return _by_argument(parts.of_args, own, of_own, shared, of_shared)


def _by_argument(
    wanted: Sequence[int],
    own: Sequence[int],
    of_own: Sequence[Any],
    shared: Sequence[int],
    of_shared: Sequence[Any],
) -> list[Any]:
    """Cotangents in the order of the arguments."""
    found = dict(zip([*own, *shared], [*of_own, *of_shared], strict=True))
    return [found[i] for i in wanted]


def _of_part(jaxpr: Any, is_mapped: Sequence[bool], args: Sequence[Any]) -> list[Any]:
    """Results of some elements, `[rows, ...]` each, whose loops can be differentiated backwards."""
    n_constants = len(jaxpr.constvars)
    rows = next(x.shape[0] for x, mapped in zip(args, is_mapped, strict=True) if mapped)

    def one(*args: Any) -> list[Any]:
        return with_loops(jaxpr, args[:n_constants], args[n_constants:], reversible_loop)

    if rows == 1:
        alone = [x[0] if mapped else x for x, mapped in zip(args, is_mapped, strict=True)]
        return [jnp.expand_dims(x, 0) for x in one(*alone)]

    def together(*args: Any) -> list[Any]:
        return with_loops(jaxpr, args[:n_constants], args[n_constants:], _vmapped_loop)

    axes = tuple(0 if mapped else None for mapped in is_mapped)
    batched, constants = opened(jax.make_jaxpr(jax.vmap(together, in_axes=axes))(*args))
    return with_loops(batched, constants, args, reversible_loop)


def _vmapped_loop(
    loop: WhileLoop,
    asked: Sequence[Any],
    closed: Sequence[Any],
    carry: Sequence[Any],
) -> list[Any]:
    """Runs a loop that `vmap` is about to batch."""
    n_asked = len(asked)
    n_fixed = n_asked + len(closed)

    @custom_vmap
    def run(*args: Any) -> list[Any]:
        return loop.plain(args[:n_asked], args[n_asked:n_fixed], args[n_fixed:])

    @run.def_vmap
    def _(size: int, is_batched: Sequence[bool], *args: Any) -> tuple[list[Any], list[bool]]:
        axes = [0 if batched else None for batched in is_batched]
        if splits(loop.eqn, is_batched):
            step = _in_step(loop, axes[:n_asked], axes[n_asked:n_fixed])
            first = []
            for x, batched in zip(args[n_fixed:], is_batched[n_fixed:], strict=True):
                first.append(x if batched else jnp.broadcast_to(x, (size, *x.shape)))
            last = step.plain(args[:n_asked], args[:n_fixed], first)
        else:
            whole = lambda args: loop.plain(args[:n_asked], args[n_asked:n_fixed], args[n_fixed:])
            last = jax.vmap(whole, in_axes=(axes,))(list(args))
        return last, [True] * len(last)

    return run(*asked, *closed, *carry)


def _in_step(loop: WhileLoop, of_asked: Sequence[Any], of_closed: Sequence[Any]) -> WhileLoop:
    """A loop of several elements, until the last one has ended. The constants of its test are also the first ones of its body."""
    n_asked = len(of_asked)
    tests = jax.vmap(lambda asked, carry: loop.test(asked, carry), in_axes=(list(of_asked), 0))
    bodies = jax.vmap(lambda closed, carry: loop.body(closed, carry), in_axes=(list(of_closed), 0))

    def test(asked: Sequence[Any], carry: Sequence[Any]) -> Any:
        return jnp.any(tests(list(asked), list(carry)))

    def body(constants: Sequence[Any], carry: Sequence[Any]) -> list[Any]:
        # an element that has ended goes on with the numbers of one that has not: at its own last carry derivatives may be infinite
        goes_on = tests(list(constants[:n_asked]), list(carry))
        one = jnp.argmax(goes_on)
        filled = [merge(goes_on, x, take(x, one)[None]) for x in carry]
        after = bodies(list(constants[n_asked:]), filled)
        # and keeps its own
        return [merge(goes_on, new, old) for new, old in zip(after, carry, strict=True)]

    return WhileLoop(loop.eqn, test, body)
