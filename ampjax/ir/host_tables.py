"""The protocols of tables in host memory whose rows are a node's parameters; `ampjax.sparse.table` implements them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np


class HostTable(Protocol):
    """A table `[n_rows, *row]` that pulls rows and updates them by their gradients, with an optimizer of its own."""

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
        """One update of some rows: gradients `[n, *row]` of ids `[n]`, those of one id summed. Gives the version after it."""
        ...

    def dense(self) -> np.ndarray:
        """A copy of all rows after all updates so far."""
        ...

    @property
    def opt_state(self) -> Any:
        """A copy of the optimizer's state."""
        ...


class SentTable(HostTable, Protocol):
    """A table that can be sent to another process, and brought from there."""

    @property
    def table(self) -> HostTable | None:
        """The table itself; None where its rows are not."""
        ...

    @property
    def version(self) -> int:
        """Updates so far."""
        ...

    @property
    def contents(self) -> object:
        """What differs whenever its rows may."""
        ...

    def as_files(self) -> dict[str, np.ndarray]:
        """All that it is: the bytes `[n]` of some files, by name."""
        ...

    def take_files(self, files: Mapping[str, np.ndarray]) -> None:
        """Becomes what another one gave as files."""
        ...
