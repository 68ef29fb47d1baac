"""A transform that a table has for itself: cut in two like those of many variables, of which the table is then the only one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampjax.errors import TableError
from ampjax.optim.row_rule import RowRule, Values
from ampjax.optim.split_rows import ALONE, split_alone
from ampjax.optim.split_transform import Split
from ampjax.sparse.rows.pending_update import Pending


@dataclass(frozen=True)
class OwnRows:
    """A table's rows as `update_all` wants them, where the transform whose parts it joins is the table's own."""

    check: Callable[[Pending], None]
    partials: Callable[[int, Pending, Values], list[np.ndarray]]
    prepare: Callable[[Pending, Values], Callable[[], int]]


def rule_of(tx: Any, shape: tuple[int, ...], dtype: np.dtype) -> tuple[Split | None, RowRule]:
    """A transform's split for one table, and its rule; no split where the rule is given."""
    if not isinstance(tx, RowRule):
        split = split_alone(tx, shape, dtype)
        return split, split.rules[ALONE]
    if (tx.shape, tx.dtype) != (shape[1:], dtype):
        wanted = f"rows of {tx.dtype}{list(tx.shape)}, as the rule was made for"
        raise TableError("values", wanted, f"{dtype}{list(shape[1:])}", "Make the rule from these values.")
    return None, tx
