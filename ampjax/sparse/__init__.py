"""Sparse variables: their detection, the step that reads pulled rows in their place, and the sharded table that holds them."""

from ampjax.sparse.detection.detect import find_sparse
from ampjax.sparse.servers.processes import ServerProcesses
from ampjax.sparse.table.sharded_table import Table

__all__ = [
    "ServerProcesses",
    "Table",
    "find_sparse",
]


def __dir__() -> list[str]:
    return __all__
