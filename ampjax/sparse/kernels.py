"""A rule's functions compiled for the host, for any number of rows with few compilations.

Rows come in as fresh NumPy arrays that nobody writes to later: JAX may alias them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.optim.rule import RowRule

MIN_ROWS = 8
"""The smallest number of rows that is compiled for; then powers of two."""


def padded_size(n: int) -> int:
    """The number of rows that `n` rows are padded to: a power of two, `MIN_ROWS` at least."""
    return max(MIN_ROWS, 1 << (n - 1).bit_length())


@functools.lru_cache(maxsize=64)
def kernels_of(rule: RowRule) -> Kernels:
    """A rule's compiled functions: tables of one rule share them."""
    return Kernels(rule)


class Kernels:
    """Update, reductions and catch-up of one table's rows on the CPU, compiled once for all its partitions.

    Args:
      rule: The optimizer's rule for the table.
    """

    def __init__(self, rule: RowRule):
        self.rule = rule
        self._device = jax.local_devices(backend="cpu")[0]
        self._init = jax.jit(rule.init)
        self._update = jax.jit(rule.update)
        self._partials = jax.jit(rule.partials, static_argnums=0)
        self._catch_up = jax.jit(self._missed_updates)

    def init(self, rows: np.ndarray) -> list[np.ndarray]:
        """The first state of some rows."""
        with jax.default_device(self._device):
            return [np.asarray(array) for array in self._init(rows)]

    def update(
        self, shared: Sequence[Any], rows: np.ndarray, state: Sequence[np.ndarray], grads: np.ndarray
    ) -> list[np.ndarray]:
        """New rows and their state; all arguments have a padded size."""
        with jax.default_device(self._device):
            new, changed = self._update(shared, rows, state, grads)
            return [np.asarray(new), *(np.asarray(array) for array in changed)]

    def partials(self, turn: int, shared: Sequence[Any], grads: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
        """One round's reductions; the arrays have a padded size, and padding has weight 0."""
        with jax.default_device(self._device):
            return [np.asarray(array) for array in self._partials(turn, shared, grads, weights)]

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
        with jax.default_device(self._device):
            new, changed = self._catch_up(history, first, np.int32(stop), rows, state)
            return [np.asarray(new), *(np.asarray(array) for array in changed)]

    def _missed_updates(self, history: Any, first: Any, stop: Any, rows: Any, state: Any) -> Any:
        zeros = jnp.zeros_like(rows)

        def body(i: Any, carry: Any) -> Any:
            rows, state = carry
            new = self.rule.update([values[i] for values in history], rows, state, zeros)
            return jax.tree.map(lambda n, o: jnp.where((first <= i).reshape(-1, *[1] * (o.ndim - 1)), n, o), new, carry)

        return jax.lax.fori_loop(jnp.min(first), stop, body, (rows, list(state)))
