"""Kernels that carry out several dispatches in one call.

Dispatches of one stage often follow one another: a loop's cell, step by step. Each is little work, and its call costs the host as much as a kernel of a few dozen rows takes. So what
such a streak brings is stacked, and one call goes over it in a loop that XLA runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.engine.kernels.launch import Launch
from ampjax.sched.decisions.packs import STREAK

STACKED = 1 << 14
"""Bytes that a dispatch brings, at most, where it can be one of several: larger ones are work enough for a call of their own."""

COUNTS = [np.uint32(n) for n in range(STREAK + 1)]
"""Lengths of streaks as kernels are told them: made once, since every call needs one."""

Streak = Sequence[Launch]
"""Launches, one after the other, of one kernel and one size; parameters change after the last of them only."""


def n_coalesced(launch: Launch, behind: Iterable[Launch | None], can_coalesce: Callable[[Launch, Launch], bool]) -> int:
    """How many launches can be carried out in one call.

    Args:
      launch: The first.
      behind: Those behind it, in the order of issue; up to a None.
      can_coalesce: Whether one can be carried out together with the one before it, and with those that this was carried out with.
    """
    n = 1
    for following in islice(behind, STREAK - 1):
        if following is None or not can_coalesce(launch, following):
            break
        launch, n = following, n + 1
    return n


@dataclass(frozen=True, eq=False)
class Kernel:
    """A jitted function over arenas, to be called for one dispatch or for a streak of them.

    Args:
      once: `once(*arguments)`: for one dispatch.
      in_a_row: `in_a_row(n, *arguments)`: for `n` of them, with what they bring stacked, `[STREAK, ...]`; None if it can't.
    """

    once: Any
    in_a_row: Any = None


def kernel(
    changed: Sequence[int] = (), brought: Sequence[int] | None = None, static: Sequence[int] = ()
) -> Callable[[Callable[..., Any]], Kernel]:
    """Makes a `Kernel` of the function below it.

    Args:
      changed: Positions of the donated arguments.
      brought: Positions of the arguments that differ between dispatches. None: the kernel takes one dispatch at a time. Otherwise it returns the donated arguments in their order.
      static: Positions of those that are known when it is compiled.
    """

    def made(function: Callable[..., Any]) -> Kernel:
        once = jax.jit(function, donate_argnums=changed, static_argnums=static)
        if brought is None:
            return Kernel(once)
        loop = functools.partial(_in_a_row, function, changed, brought)
        return Kernel(once, jax.jit(loop, donate_argnums=[1 + place for place in changed]))

    return made


def _in_a_row(
    function: Callable[..., Any], changed: Sequence[int], brought: Sequence[int], n: Any, *arguments: Any
) -> Any:
    """Calls a function `n` times, each time with what the last one gave back and with what the next dispatch brings."""
    is_one = len(changed) == 1

    def at(i: Any) -> list[Any]:
        def slice_of(stacked: Any) -> Any:
            return jax.lax.dynamic_index_in_dim(stacked, i, keepdims=False)

        return [jax.tree.map(slice_of, arguments[place]) for place in brought]

    def step(i: Any, state: tuple[Any, ...]) -> tuple[Any, ...]:
        now, before = state
        given = list(arguments)
        for place, value in zip((*changed, *brought), (*before, *now), strict=True):
            given[place] = value
        found = function(*given)
        return at(jnp.minimum(i + 1, jnp.uint32(STREAK - 1))), (found,) if is_one else found

    _, state = jax.lax.fori_loop(jnp.uint32(0), n, step, (at(0), tuple([arguments[place] for place in changed])))
    return state[0] if is_one else state
