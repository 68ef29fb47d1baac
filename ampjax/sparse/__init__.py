"""Sparse variables: their detection, the step on pulled rows, and the sharded table that holds the rows."""

from typing import TYPE_CHECKING

from ampjax.moved_names import finder
from ampjax.sparse.detection.detect import find_sparse
from ampjax.sparse.table.sharded_table import Table
from ampjax.sparse.table.table_sharing import TableSharing

__all__ = [
    "Table",
    "TableSharing",
    "find_sparse",
]

_MOVED = {
    "ServerProcesses": "ampjax.sparse.servers.processes.ServerProcesses",
}
"""Names that were public up to version 0.2, and the new names of what they stand for."""


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # a type checker would take it for a promise of any name
    __getattr__ = finder(__name__, _MOVED)
