"""Kernels: jitted functions over arenas, called for one dispatch or, looped, for several in one call.

Mathematics on single rows needs no kernel of its own: it is the body of an `npt`. A kernel is for another way to move or combine rows. It is
registered nowhere: the runner of a stage (`engine/kinds`) makes it and calls it. `copy_kernels.py` has the smallest ones. A kernel is made so:

    @shared                                    # equal arguments, which must be hashable: the same kernel, compiled once for equal graphs
    def double(wiring: Wiring) -> Kernel:
        @jitted("values")                      # any arguments, some of them donated; or `@kernel`, with the four below
        def double(values, read, slots): ...
        return double                          # the runner keeps `k = double(wiring)` and calls `k.once(values, read, slots)`

What a `@kernel` takes and returns:

    kernel(params, donated, read, per_dispatch) -> donated

`params` are the stage's parameters, a pytree for each parameterised node. `donated` are the arrays that the kernel changes in place; it
returns them. `read` are the arrays that it only reads. `per_dispatch` are the arrays that differ from dispatch to dispatch. In return, with
`loops=True`, it can be looped, and `StageArrays.call` calls it. A `@jitted` function is called as the runner likes.

The caller passes plain tuples; inside the kernel they have names. A call takes 12 us; with named tuples it would take 1.2 us longer, with
dataclasses 3.6 us (the least of 25 times 2,000 calls on a CPU). Parameters come first: if they are donated and came after other donated
arguments, XLA would copy them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ampjax.sched.decisions.packs import MOST_COALESCED


class PerDispatch(NamedTuple):
    """The arrays of one dispatch. Looped kernels get the stacked arrays of several dispatches: `[MOST_COALESCED, ...]`.

    Args:
      host: The rows of each port whose payloads lie in host memory, `[k, *shape]`.
      pack: Slots, int32 `[n_lines, k]` (`sched.decisions.packs`).
      seeds: In training, if bodies are random: the random number of each row, uint32 `[k]`; for `edges` stages an `edge_kernels.Seeds`.
      scalars: If the kernel makes updates, the numbers that these need for each node, float32 `[nodes, 2]`; else None.
      edges: The edges of an `edges` stage, as `edge_sizes.PaddedEdges`.
    """

    host: Any
    pack: Any
    seeds: Any = None
    scalars: Any = None
    edges: Any = None


@dataclass(frozen=True, eq=False)
class Kernel:
    """A jitted function, for one dispatch or for several.

    Args:
      once: `once(*arguments)`: for one dispatch.
      looped: `looped(n, *arguments)`: for `n` of them, with `per_dispatch` stacked; None if there is no such function.
    """

    once: Any
    looped: Any = None


def kernel(
    loops: bool = False, donates_params: bool = False, takes_sizes: bool = False
) -> Callable[[Callable[..., Any]], Kernel]:
    """Makes a stage's `Kernel` from a function `(params, donated, read, per_dispatch)` that returns the changed `donated`.

    Args:
      loops: Whether it can be looped: each iteration then gets the `donated` that the last one returned.
      donates_params: Whether the parameters are donated, too.
      takes_sizes: Whether there is a fifth argument, which is static.

    Returns:
      A decorator.
    """

    def make(function: Callable[..., Any]) -> Kernel:
        @functools.wraps(function)
        def once(
            params: Any,
            donated: Any,
            read: Any,
            per_dispatch: Any,
            *sizes: Any,
        ) -> Any:
            return function(params, donated, read, PerDispatch(*per_dispatch), *sizes)

        @functools.wraps(function)
        def looped(
            n: Any,
            params: Any,
            donated: Any,
            read: Any,
            per_dispatch: Any,
        ) -> Any:
            return _loop(once, n, params, donated, read, per_dispatch)

        static = (4,) if takes_sizes else ()
        jitted_once = jax.jit(
            once, donate_argnums=(0, 1) if donates_params else 1, static_argnums=static
        )
        return Kernel(jitted_once, jax.jit(looped, donate_argnums=2) if loops else None)

    return make


def jitted(*donated: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Makes a `Kernel` that can't be looped from a function of any arguments.

    Args:
      donated: The names of its donated arguments.

    Returns:
      A decorator.
    """
    return lambda function: Kernel(jax.jit(function, donate_argnames=donated))


def _loop(
    function: Callable[..., Any],
    n: Any,
    params: Any,
    donated: Any,
    read: Any,
    stacked: Any,
) -> Any:
    """Calls a function `n` times, each time with the last call's result and the arrays of the next dispatch."""

    def of_dispatch(i: Any) -> Any:
        return jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False),
            stacked,
        )

    def step(
        i: Any,
        state: tuple[Any, Any],
    ) -> tuple[Any, Any]:
        per_dispatch, donated = state
        returned = function(params, donated, read, per_dispatch)
        # The next dispatch's arrays are taken out here, at the end of a step; after the last one
        # any will do.
        return of_dispatch(jnp.minimum(i + 1, jnp.uint32(MOST_COALESCED - 1))), returned

    return jax.lax.fori_loop(jnp.uint32(0), n, step, (of_dispatch(0), donated))[1]
