"""What kernels are: jitted functions over arenas, called for one dispatch or, looped, for several in one call.

A kernel of a stage has four arguments:

    kernel(params, donated, read, per_dispatch) -> donated

`params` are the stage's parameters, a pytree for each parameterised node. `donated` is what the kernel changes in place: it returns the
same again. `read` is what it reads and leaves as it is. `per_dispatch` is what differs between the dispatches that it may be called for.

They are plain tuples where a kernel is called, and have names inside: with named tuples a call takes 1.2 us longer, with dataclasses 3.6
us, of 12 us (the least of 25 times 2,000 calls on a CPU). Parameters come first: behind what is donated, XLA copies them where they are
donated too.
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
    """What one dispatch brings to a kernel. Looped kernels get the same of several, stacked: `[MOST_COALESCED, ...]`.

    Args:
      host: The rows of each port whose payloads lie in host memory, `[k, *shape]`.
      pack: Slots, int32 `[n_lines, k]` (`sched.decisions.packs`).
      seeds: The random number of each row, uint32 `[k]`, if bodies are random and it trains; of `edges` stages `edge_kernels.Seeds`.
      scalars: Numbers of each node that an update needs, float32 `[nodes, 2]`; else None.
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
    """Makes a stage's `Kernel` of a function `(params, donated, read, per_dispatch)` that returns `donated`, changed.

    Args:
      loops: Whether it can be looped: each call then gets the `donated` that the last one returned.
      donates_params: Whether the parameters' buffers are used again, too.
      takes_sizes: Whether there is a fifth argument, known when the kernel is compiled.

    Returns:
      A decorator.
    """

    def make(function: Callable[..., Any]) -> Kernel:
        @functools.wraps(function)
        def once(params: Any, donated: Any, read: Any, per_dispatch: Any, *sizes: Any) -> Any:
            return function(params, donated, read, PerDispatch(*per_dispatch), *sizes)

        @functools.wraps(function)
        def looped(n: Any, params: Any, donated: Any, read: Any, per_dispatch: Any) -> Any:
            return _loop(once, n, params, donated, read, per_dispatch)

        static = (4,) if takes_sizes else ()
        jitted_once = jax.jit(once, donate_argnums=(0, 1) if donates_params else 1, static_argnums=static)
        return Kernel(jitted_once, jax.jit(looped, donate_argnums=2) if loops else None)

    return make


def jitted(*donated: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Makes a `Kernel` of a function of any few arguments, for one call at a time.

    Args:
      donated: The names of its donated arguments.

    Returns:
      A decorator.
    """
    return lambda function: Kernel(jax.jit(function, donate_argnames=donated))


def _loop(function: Callable[..., Any], n: Any, params: Any, donated: Any, read: Any, stacked: Any) -> Any:
    """Calls a function `n` times, each time with what the last call returned and with what the next dispatch brings."""

    def of_dispatch(i: Any) -> Any:
        return jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, i, keepdims=False), stacked)

    def step(i: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        per_dispatch, donated = state
        returned = function(params, donated, read, per_dispatch)
        return of_dispatch(jnp.minimum(i + 1, jnp.uint32(MOST_COALESCED - 1))), returned

    return jax.lax.fori_loop(jnp.uint32(0), n, step, (of_dispatch(0), donated))[1]
