"""An update of a table's rows with gradients, and of no others.

Plain SGD and Adagrad do not change a row without gradient (`jaxprs.zero_gradient` proves it). So an update need not pass over a whole word
table for the few rows of a minibatch. Knows neither which rows these are, nor when an update is due.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.optim.node_update import gradient_of
from ampjax.optim.split_by_rows import ALONE, split_alone
from ampjax.optim.split_transform import Split
from ampjax.optim.staleness_state import uses_staleness

CHUNK = 1_024
"""Rows in one call: a fixed number, since each other number would be compiled anew."""

DTYPES = frozenset(
    map(
        np.dtype,
        (np.float16, np.float32, np.float64),
    )
)
"""Dtypes of tables. bfloat16 is not among them: XLA's CPU kernels would convert the whole array for every row."""


class RowUpdate:
    """The update of `make_update` for some rows, in calls of `CHUNK` rows each, which donate their arguments.

    A row may come again, in one call or in a later one: its gradient is zero by then.

    Args:
      split: The transform, cut in two.
      gradient: `mean` or `sum` over the gradient rows.
    """

    def __init__(self, split: Split, gradient: str):
        self._split = split
        self._gradient = gradient
        self._rule = split.rules[ALONE]
        self._step = jax.jit(
            self._update_rows,
            donate_argnums=(0, 1, 2),
        )

    def __call__(
        self,
        table: Any,
        opt_state: Any,
        accumulator: Any,
        rows: np.ndarray,
        count: Any,
    ) -> Iterator[Any]:
        """Yields table, optimizer state and accumulator after each call. Only the last ones have all rows and the new shared state.

        Args:
          table: The parameters, `[n, *row]`.
          opt_state: As the transform's `init` makes it.
          accumulator: The sums of gradient rows, like the table.
          rows: All rows that may have a gradient, `[m]`, integers.
          count: A float scalar, the number of gradient rows.
        """
        state = self._split.state
        shared, by_table = state.split(opt_state)
        of_rows = by_table.get(ALONE, [])
        n_calls = max(1, -(-len(rows) // CHUNK))
        # Fill up with row 0: twice in one call it gets the same new value twice, and in a later call its gradient is zero.
        all_rows = np.zeros(n_calls * CHUNK, np.int32)
        all_rows[: len(rows)] = rows
        for chunk in all_rows.reshape(n_calls, CHUNK):
            table, of_rows, accumulator, new_shared = self._step(
                table, of_rows, accumulator, shared, chunk, count
            )
            # Every call begins with the same shared state; only the last one may hand out the new one.
            n_calls -= 1
            leaves = jax.tree.leaves(shared if n_calls else new_shared)
            yield table, state.fill(leaves, {ALONE: of_rows} if of_rows else None), accumulator

    def _update_rows(
        self,
        table: Any,
        of_rows: list[Any],
        accumulator: Any,
        shared: Any,
        rows: Any,
        count: Any,
    ) -> tuple[Any, list[Any], Any, Any]:
        _, new_shared, shared_values = self._split.update(
            None,
            shared,
            None,
            [],
        )

        # Read all rows before any is written, since the arrays are donated.
        old, totals, *states = (array[rows] for array in (table, accumulator, *of_rows))
        grads = gradient_of(old, totals, count, self._gradient)
        new, changed = self._rule.update(
            shared_values[ALONE],
            old,
            states,
            grads,
        )
        # Clear the sums with the rows, so that a row's gradient is used once.
        values = new, changed, jnp.zeros_like(totals)
        return *_put((table, of_rows, accumulator), rows, values), new_shared


def _put(arrays: Any, rows: Any, values: Any) -> Any:
    """Arrays with `values`, `[CHUNK, *row]` of each, at `rows` `[CHUNK]`.

    They are updated in place. Rows are written one after the other, since XLA's scatter takes sixty times as long. All arrays are written
    in one loop, so that it begins after everything has been read.
    """

    def step(i: Any, arrays: Any) -> Any:
        # Write row i of each array in place; a row that comes twice has the same value both times.
        return jax.tree.map(
            lambda a, v: jax.lax.dynamic_update_slice_in_dim(
                a,
                v[i][None],
                rows[i],
                0,
            ),
            arrays,
            values,
        )

    return jax.lax.fori_loop(0, CHUNK, step, arrays)


@functools.lru_cache(maxsize=64)
def make_row_update(
    tx: optax.GradientTransformation,
    gradient: str,
    shape: tuple[int, ...],
    dtype: np.dtype,
) -> RowUpdate | None:
    """The row update of a table that is all of a node's parameters.

    Args:
      tx: An optax transform.
      gradient: `mean` or `sum` over the gradient rows.
      shape: The table's, `[n, *row]`.
      dtype: The table's.

    Returns:
      The update. None if an update without gradient changes rows (momentum, decay), if rows depend on one another (clipping by a norm) or
      on the gradients' staleness, or if that can't be found out.
    """
    if np.dtype(dtype) not in DTYPES:
        return None
    try:
        split = split_alone(tx, shape, dtype)
        alone = (
            not split.n_rounds
            and split.rules[ALONE].zero_gradient_is_noop
            and not uses_staleness(tx, jax.ShapeDtypeStruct(shape, dtype))
        )
    except Exception:  # a user's transform may raise anything while it is traced: the update of whole tables will tell
        return None
    return RowUpdate(split, gradient) if alone else None
