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

FINE_ROWS = 1 << 10
"""From so many rows on, padding costs more than compilations do: three more sizes stand between two powers of two."""

UNROLLED = 4
"""Missed updates that are made in one go: between them, numbers need not leave the processor's registers."""

Function = Callable[..., Any]
Find = Callable[[str, tuple[Any, ...]], Function]
"""Gives the function of a name for such arguments: the same for all, or one that was compiled for their shapes."""


def padded_size(n: int) -> int:
    """The number of rows that a kernel takes for `n` rows: at most twice as many, and above `FINE_ROWS` at most a quarter more.

    >>> [padded_size(n) for n in (1, 9, 1000, 1025, 10_135)]
    [8, 16, 1024, 1280, 10240]
    """
    power = max(
        MIN_ROWS,
        1 << (n - 1).bit_length(),
    )
    if power <= FINE_ROWS:
        return power
    step = power // 8
    return -(-n // step) * step


@functools.lru_cache(maxsize=64)
def jitted_functions(rule: RowRule) -> Mapping[str, Any]:
    """A rule's functions by name, jitted.

    Returns:
      `init`, `update`, `catch_up`, and for each round its `partials_name`.
    """
    turns = {}
    for turn in range(len(rule.rounds)):
        turns[partials_name(turn)] = functools.partial(rule.partials, turn)
    functions = {
        "init": rule.init,
        "update": rule.update,
        "catch_up": functools.partial(_missed_updates, rule),
    } | turns
    return {name: jax.jit(function) for name, function in functions.items()}


@functools.lru_cache(maxsize=64)
def kernels_for(rule: RowRule) -> RowKernels:
    """A rule's compiled functions, shared by all tables of the rule."""
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
        self.types = types
        self._find = find
        self._device = jax.local_devices(backend="cpu")[0]

    def init(self, rows: np.ndarray) -> list[np.ndarray]:
        """The first state of some rows.

        Args:
          rows: `[n, *row]`.

        Returns:
          The states, each `[n, ...]`.
        """
        return self._run("init", rows)

    def update(
        self,
        shared: Sequence[Any],
        rows: np.ndarray,
        state: Sequence[np.ndarray],
        grads: np.ndarray,
    ) -> list[np.ndarray]:
        """New rows and their state.

        Args:
          shared: The update's shared values.
          rows: `[n, *row]`, n a padded size.
          state: Their states, each `[n, ...]`.
          grads: Their gradients, `[n, *row]`, in the table's dtype.

        Returns:
          New rows, then new states, of the same shapes.
        """
        return self._run(
            "update",
            tuple(shared),
            rows,
            tuple(state),
            grads,
        )

    def partials(
        self,
        turn: int,
        shared: Sequence[Any],
        grads: np.ndarray,
        weights: np.ndarray,
        parameters: np.ndarray | None = None,
    ) -> list[np.ndarray]:
        """One round's reductions over some rows, each with a leading axis of parameters.

        Args:
          turn: The round.
          shared: Shared values for the round.
          grads: `[n, *row]`, n a padded size.
          weights: How often each row counts, `[n]`, int32; 0 where there is padding.
          parameters: By row which of the table's parameters it belongs to, `[n]`, int32; None if there is one.
        """
        return self._run(
            partials_name(turn),
            tuple(shared),
            grads,
            weights,
            parameters,
        )

    def catch_up(
        self,
        history: Sequence[np.ndarray],
        first: np.ndarray,
        stop: int,
        base: int,
        rows: np.ndarray,
        state: Sequence[np.ndarray],
    ) -> list[np.ndarray]:
        """Applies missed updates, with a zero gradient, to rows.

        Args:
          history: Shared values of past updates, each `[n, ...]`.
          first: For each row the first update that it missed, `[n]`, int32; `stop` where it missed none.
          stop: The number of updates in the history.
          base: The number of updates before the first of them.
          rows: `[n, *row]`, a padded size.
          state: Their state.

        Returns:
          New rows, then new states.
        """
        return self._run(
            "catch_up",
            tuple(history),
            first,
            np.int32(stop),
            np.int32(base % UNROLLED),
            rows,
            tuple(state),
        )

    def _run(
        self,
        name: str,
        *args: Any,
    ) -> list[np.ndarray]:
        with jax.default_device(self._device):
            result = []
            for array in jax.tree.leaves(self._find(name, args)(*args)):
                result.append(np.asarray(array))
            return result


def _missed_updates(
    rule: RowRule,
    history: Any,
    first: Any,
    stop: Any,
    base: Any,
    rows: Any,
    state: Any,
) -> Any:
    zeros = jnp.zeros_like(rows)

    def update(i: Any, carry: Any) -> Any:
        rows, state = carry
        # The rule sees update i's shared values and no gradient, for all rows at once.
        new = rule.update(
            [values[i] for values in history],
            rows,
            state,
            zeros,
        )
        # Keep the result only in rows that missed update i: the others have made it already,
        # and places before `first` or after `stop` only fill a turn.
        missed = (first <= i) & (i < stop)
        return jax.tree.map(
            lambda n, o: jnp.where(
                missed.reshape(-1, *[1] * (o.ndim - 1)),
                n,
                o,
            ),
            new,
            carry,
        )

    # Each update has its place among those in one go by its number: XLA may round in another way at another place.
    start = jnp.min(first) - (base + jnp.min(first)) % UNROLLED

    def several(turn: Any, carry: Any) -> Any:
        for place in range(UNROLLED):
            carry = update(start + turn * UNROLLED + place, carry)
        return carry

    # Turns in order, since each update begins with the state that the one before left.
    return jax.lax.fori_loop(
        0,
        -((start - stop) // UNROLLED),
        several,
        (rows, list(state)),
    )
