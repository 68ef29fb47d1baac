"""One update of dense parameters and tables together, as the whole optax transform would make it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ampjax.optim.split_transform import Split

Tree = Any


class RowTable(Protocol):
    """What a step asks of a table; `ampjax.sparse.Table` is one."""

    def check(self, pending: Any, /) -> None:
        """Raises where `prepare` would."""
        ...

    def partials(self, turn: int, pending: Any, shared: Any, /) -> list[np.ndarray]:
        """This round's reductions over the whole table."""
        ...

    def prepare(self, pending: Any, shared: Any, /) -> Callable[[], int]:
        """Computes new rows; gives what writes them."""
        ...


def update_all(
    split: Split, tables: Mapping[str, RowTable], params: Tree, state: Tree, grads: Tree, pending: Mapping[str, Any]
) -> tuple[Tree, Tree]:
    """One update of everything: reductions at the tables, the shared part once, rows at the tables.

    Args:
      split: The transform, cut in two.
      tables: For each of the split's tables the table, made from its rule.
      params: Dense parameters, None in place of tables.
      state: Shared state, None in place of row-wise leaves.
      grads: Dense gradients, None in place of tables.
      pending: For each table its row gradients, from `Table.aggregate`.

    Returns:
      New dense parameters and new shared state. The tables have changed in place.

    Raises:
      TableError: If gradients of a table can't be applied. Nothing has changed after this or any other error but a `ServerError`.
    """
    for name, table in tables.items():
        table.check(pending[name])
    shared_of, update = split.jitted
    totals: list[dict[str, list[np.ndarray]]] = []
    for turn in range(split.n_rounds):
        shared = shared_of(turn, params, state, grads, totals)
        totals.append({name: table.partials(turn, pending[name], shared[name]) for name, table in tables.items()})
    params, state, shared = update(params, state, grads, totals)
    for write in [table.prepare(pending[name], shared[name]) for name, table in tables.items()]:
        write()
    return params, state
