"""Sparse variables: their detection, the step on pulled rows, and the sharded table that holds the rows."""

from ampjax.sparse.detection.detect import find_sparse
from ampjax.sparse.servers.processes import ServerProcesses
from ampjax.sparse.table.sharded_table import Table
from ampjax.sparse.table.table_sharing import TableSharing

__all__ = [
    "ServerProcesses",
    "Table",
    "TableSharing",
    "find_sparse",
]


def __dir__() -> list[str]:
    return __all__
