"""The protocols of tables in host memory whose rows are a node's parameters; `ampjax.sparse.table` has the tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard

import numpy as np


class HostTable(Protocol):
    """A table `[n_rows, *row]` that pulls rows and updates rows by their gradients, with an optimizer of its own."""

    @property
    def shape(self) -> tuple[int, ...]:
        """`[n_rows, *row]`."""
        ...

    @property
    def dtype(self) -> np.dtype:
        """The rows' dtype."""
        ...

    def pull(self, row_ids: np.ndarray) -> np.ndarray:
        """Rows after all updates so far, `[n, *row]`, of ids `[n]` that may repeat."""
        ...

    def push(self, row_ids: np.ndarray, grads: np.ndarray) -> int:
        """Updates some rows once: gradients `[n, *row]` of ids `[n]`, summed for equal ids. Gives the version after the update."""
        ...

    def dense(self) -> np.ndarray:
        """A copy of all rows after all updates so far."""
        ...

    @property
    def opt_state(self) -> Any:
        """A copy of the optimizer's state."""
        ...


def is_table(value: Any) -> TypeGuard[HostTable]:
    """Tells a table in host memory from an array: rows of a table are pulled, and their gradients pushed.

    Args:
      value: Any value among parameters.
    """
    kind = type(value)
    return hasattr(kind, "pull") and hasattr(kind, "push")


class SentTable(HostTable, Protocol):
    """A table that can be sent to another process, and brought from there."""

    @property
    def table(self) -> HostTable | None:
        """The table; None in a process that does not hold the rows."""
        ...

    @property
    def version(self) -> int:
        """Updates so far."""
        ...

    @property
    def contents(self) -> object:
        """A token of the table's contents, which differs whenever a row may have changed; compare with `==`."""
        ...

    def as_files(self) -> dict[str, np.ndarray]:
        """The whole table as files: the bytes `[n]` of each, by name."""
        ...

    def take_files(self, files: Mapping[str, np.ndarray]) -> None:
        """Takes the rows and state that another table gave as files."""
        ...
