"""Cotangents of a function of many elements, some elements at a time: elements whose loops have similar numbers of trips go together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from ampjax.jaxprs.primitives import opened
from ampjax.lanes.argument_axes import n_elements
from ampjax.lanes.lane_state import take
from ampjax.lanes.reversible_loops import reversible_loop
from ampjax.lanes.rewriting.linear_pairs import FloatParts
from ampjax.lanes.rewriting.replaced_equations import Replacement, WhileLoop, with_loops
from ampjax.lanes.running import merge
from ampjax.lanes.splitting import splits


def pull_back_elements(
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
    of_elements = []
    shared = []
    for i in parts.of_args:
        if is_mapped[i]:
            of_elements.append(i)
        else:
            shared.append(i)
    rows = min(rows, n)

    def pull(
        part: Sequence[Any],
        cotangents: Sequence[Any],
    ) -> tuple[list[Any], list[Any]]:
        """Computes cotangents of own arguments and of shared ones."""
        whole = lambda *part: _of_part(jaxpr, is_mapped, part)
        floats = parts.of(whole, part)
        _, back = jax.vjp(floats, *parts.own(part))
        gradients = back(list(cotangents))
        by_arg = dict(zip(parts.of_args, gradients, strict=True))
        of_own = [by_arg[i] for i in of_elements]
        of_shared = [by_arg[i] for i in shared]
        return of_own, of_shared

    def join_operands(
        of_own: Sequence[Any],
        of_shared: Sequence[Any],
    ) -> list[Any]:
        by_place = dict(zip(of_elements, of_own, strict=True))
        by_place |= dict(zip(shared, of_shared, strict=True))
        return [by_place[i] for i in parts.of_args]

    if rows == n:
        return join_operands(*pull(args, cotangents))

    zeros = [jnp.zeros_like(args[i]) for i in shared]
    return join_operands(*_pull_in_parts(pull, is_mapped, args, trips, rows, cotangents, zeros))


def _pull_in_parts(
    pull: Callable[[Sequence[Any], Sequence[Any]], tuple[list[Any], list[Any]]],
    is_mapped: Sequence[bool],
    args: Sequence[Any],
    trips: Any,
    rows: int,
    cotangents: Sequence[Any],
    zeros: list[Any],
) -> tuple[list[Any], list[Any]]:
    """Computes the cotangents of own arguments and of shared ones, some elements at a time, in the order of their trips.

    Args:
      pull: The same of some elements at once.
      is_mapped: By argument, whether each element has its own.
      args: The arguments.
      trips: How many trips each element makes, `[n]`.
      rows: How many elements are computed at a time.
      cotangents: Those of the results, `[n, ...]` each.
      zeros: Cotangents of nothing, of shared arguments.
    """
    n = trips.shape[0]
    # elements in the order of their trips; the last part is filled up with the last element, which then has no cotangent
    n_parts = -(-n // rows)
    order = jnp.argsort(trips)
    places = jnp.arange(n_parts * rows)
    places = places.reshape(n_parts, rows)

    def next_part(
        sums: list[Any],
        places: Any,
    ) -> tuple[list[Any], list[Any]]:
        here = jnp.minimum(places, n - 1)
        elements = order[here]
        part = []
        for x, mapped in zip(args, is_mapped, strict=True):
            part.append(x[elements] if mapped else x)
        is_there = places < n
        operands = []
        for x in cotangents:
            own_rows = x[elements]
            nothing = jnp.zeros_like(own_rows)
            operands.append(merge(is_there, own_rows, nothing))
        of_own, of_shared = pull(part, operands)
        sums = [a + b for a, b in zip(sums, of_shared, strict=True)]
        return sums, of_own

    of_shared, of_parts = lax.scan(next_part, zeros, places)
    # back to where the elements were
    back = jnp.argsort(order)
    of_own = []
    for x in of_parts:
        in_order = x.reshape(-1, *x.shape[2:])
        of_own.append(in_order[back])
    return of_own, of_shared


def _of_part(
    jaxpr: Any,
    is_mapped: Sequence[bool],
    args: Sequence[Any],
) -> list[Any]:
    """Results of some elements, `[rows, ...]` each, whose loops can be differentiated backwards."""
    n = len(jaxpr.constvars)

    def run(
        replacement: Replacement,
        *args: Any,
    ) -> list[Any]:
        return with_loops(jaxpr, args[:n], args[n:], replacement)

    if n_elements(is_mapped, args) == 1:
        alone = []
        for x, mapped in zip(args, is_mapped, strict=True):
            alone.append(x[0] if mapped else x)
        results = run(reversible_loop, *alone)
        return [jnp.expand_dims(x, 0) for x in results]

    together = jax.vmap(
        partial(run, _vmap_loop),
        in_axes=_axes(is_mapped),
    )
    whole = jax.make_jaxpr(together)(*args)
    batched, constants = opened(whole)
    return with_loops(batched, constants, args, reversible_loop)


def _vmap_loop(
    loop: WhileLoop,
    asked: Sequence[Any],
    closed: Sequence[Any],
    carry: Sequence[Any],
) -> list[Any]:
    """Runs a loop under `vmap`, with one body for all elements if the elements end at different times."""
    n_asked = len(asked)
    n_fixed = n_asked + len(closed)

    def plain(*args: Any) -> list[Any]:
        return loop.plain(
            args[:n_asked],
            args[n_asked:n_fixed],
            args[n_fixed:],
        )

    run = custom_vmap(plain)

    @run.def_vmap
    def _(
        size: int,
        is_batched: Sequence[bool],
        *args: Any,
    ) -> tuple[list[Any], list[bool]]:
        axes = _axes(is_batched)
        is_new = [True] * len(carry)
        if not splits(loop.eqn, is_batched):
            alike = jax.vmap(plain, in_axes=axes)
            return alike(*args), is_new
        # each element has a carry of its own
        first = []
        for x, axis in zip(args[n_fixed:], axes[n_fixed:], strict=True):
            if axis is None:
                x = jnp.broadcast_to(x, (size, *x.shape))
            first.append(x)
        step = _in_step(
            loop,
            axes[:n_asked],
            axes[n_asked:n_fixed],
        )
        last = step.plain(args[:n_asked], args[:n_fixed], first)
        return last, is_new

    return run(*asked, *closed, *carry)


def _axes(is_mapped: Sequence[bool]) -> tuple[int | None, ...]:
    """The axis of elements of each argument, for `jax.vmap`."""
    return tuple(0 if mapped else None for mapped in is_mapped)


def _in_step(
    loop: WhileLoop,
    of_asked: Sequence[Any],
    of_closed: Sequence[Any],
) -> WhileLoop:
    """A loop of several elements, until the last one has ended. The constants of its test are also the first ones of its body."""
    n = len(of_asked)
    tests = jax.vmap(
        loop.test,
        in_axes=(list(of_asked), 0),
    )
    bodies = jax.vmap(
        loop.body,
        in_axes=(list(of_closed), 0),
    )

    def test(
        asked: Sequence[Any],
        carry: Sequence[Any],
    ) -> Any:
        goes_on = tests(list(asked), list(carry))
        return jnp.any(goes_on)

    def body(
        constants: Sequence[Any],
        carry: Sequence[Any],
    ) -> list[Any]:
        goes_on = tests(list(constants[:n]), list(carry))
        # an element that has ended computes with the numbers of one that has not: at its own last carry derivatives may be infinite
        one = jnp.argmax(goes_on)
        filled = []
        for x in carry:
            row = take(x, one)
            filled.append(merge(goes_on, x, row[None]))
        after = bodies(list(constants[n:]), filled)
        # and keeps its own
        kept = []
        for new, old in zip(after, carry, strict=True):
            kept.append(merge(goes_on, new, old))
        return kept

    return WhileLoop(loop.eqn, test, body)
