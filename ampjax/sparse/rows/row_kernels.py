"""An optimizer's functions on rows, compiled for the host, for any number of rows with few compilations.

Rows come in as fresh NumPy arrays that nobody writes to later: JAX may alias them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.optim.row_rule import RowRule, RowTypes

MIN_ROWS = 8
"""The smallest number of rows that is compiled for; then powers of two."""

Function = Callable[..., Any]
Find = Callable[[str, tuple[Any, ...]], Function]
"""Gives the function of a name for such arguments: the same for all, or one that was compiled for their shapes."""


def padded_size(n: int) -> int:
    """The number of rows that `n` rows are padded to: a power of two, `MIN_ROWS` at least."""
    return max(MIN_ROWS, 1 << (n - 1).bit_length())


@functools.lru_cache(maxsize=64)
def jitted_functions(rule: RowRule) -> Mapping[str, Any]:
    """A rule's functions by name, jitted."""
    turns = {partials_name(turn): functools.partial(rule.partials, turn) for turn in range(len(rule.rounds))}
    functions = {"init": rule.init, "update": rule.update, "catch_up": functools.partial(_missed_updates, rule)} | turns
    return {name: jax.jit(function) for name, function in functions.items()}


@functools.lru_cache(maxsize=64)
def kernels_for(rule: RowRule) -> RowKernels:
    """A rule's compiled functions: tables of one rule share them."""
    functions = jitted_functions(rule)
    return RowKernels(rule.types, lambda name, _: functions[name])


def partials_name(turn: int) -> str:
    """The name of one round's reductions."""
    return f"partials_{turn}"


class RowKernels:
    """Update, reductions and catch-up of one table's rows on the CPU, compiled once for all its partitions.

    Args:
      types: What rows and their state are.
      find: Where compiled functions come from.
    """

    def __init__(self, types: RowTypes, find: Find):
        self.types, self._find = types, find
        self._device = jax.local_devices(backend="cpu")[0]

    def init(self, rows: np.ndarray) -> list[np.ndarray]:
        """The first state of some rows."""
        return self._run("init", rows)

    def update(
        self, shared: Sequence[Any], rows: np.ndarray, state: Sequence[np.ndarray], grads: np.ndarray
    ) -> list[np.ndarray]:
        """New rows and their state; all arguments have a padded size."""
        return self._run("update", tuple(shared), rows, tuple(state), grads)

    def partials(self, turn: int, shared: Sequence[Any], grads: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
        """One round's reductions; the arrays have a padded size, and padding has weight 0."""
        return self._run(partials_name(turn), tuple(shared), grads, weights)

    def catch_up(
        self, history: Sequence[np.ndarray], first: np.ndarray, stop: int, rows: np.ndarray, state: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Rows after the updates with a zero gradient that they missed.

        Args:
          history: Shared values of past updates, each `[capacity, ...]`.
          first: For each row the first update that it missed, `[n]`, int32; `stop` where it missed none.
          stop: The number of updates in the history.
          rows: `[n, *row]`, a padded size.
          state: Their state.
        """
        return self._run("catch_up", tuple(history), first, np.int32(stop), rows, tuple(state))

    def _run(self, name: str, *args: Any) -> list[np.ndarray]:
        with jax.default_device(self._device):
            return [np.asarray(array) for array in jax.tree.leaves(self._find(name, args)(*args))]


def _missed_updates(rule: RowRule, history: Any, first: Any, stop: Any, rows: Any, state: Any) -> Any:
    zeros = jnp.zeros_like(rows)

    def body(i: Any, carry: Any) -> Any:
        rows, state = carry
        new = rule.update([values[i] for values in history], rows, state, zeros)
        return jax.tree.map(lambda n, o: jnp.where((first <= i).reshape(-1, *[1] * (o.ndim - 1)), n, o), new, carry)

    return jax.lax.fori_loop(jnp.min(first), stop, body, (rows, list(state)))
