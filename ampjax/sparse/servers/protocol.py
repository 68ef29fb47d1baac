"""The messages between a table's clients and its server processes, and their form on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import ShapedArray

from ampjax.cluster.wire.trees import Form, TreeForms, by_fields
from ampjax.errors import AmpError, ServerError, TableError
from ampjax.optim.row_rule import RowState, RowTypes
from ampjax.sparse.narrow.narrow_rows import NarrowRows
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.rows.partition_layout import PartitionLayout, SplitKey
from ampjax.sparse.rows.server_part import PartSettings, ServerNeeds
from ampjax.sparse.rows.shared_history import SharedHistory
from ampjax.sparse.servers.exports import ExportedFunction, Shapes


class Request(NamedTuple):
    """A client's request.

    Args:
      key: The table and split.
      method: `open`, or a method of `ServerPart`.
      args: Its arguments.
      number: The request's number; its answer has it too. A server that is asked again for the last one answers from memory.
      dropped: Updates that are no longer referenced.
      closed: Splits that are no longer referenced.
      forgotten: Tables that are no longer referenced.
      needs: Requests of other clients that must have arrived before; until then this one waits at the server.
      is_silent: Whether it has no answer. An error then ends the server.
    """

    key: SplitKey
    method: str
    args: Sequence[Any]
    number: int = 0
    dropped: Sequence[tuple[SplitKey, int]] = ()
    closed: Sequence[SplitKey] = ()
    forgotten: Sequence[int] = ()
    needs: ServerNeeds | None = None
    is_silent: bool = False


class FunctionRequest(NamedTuple):
    """A request for a function of an optimizer, without which a server can't go on (see `exports.export_function`).

    Args:
      rule: The number of the optimizer's rule.
      name: The function's name.
      shapes: The shapes of its arguments.
    """

    rule: int
    name: str
    shapes: Shapes


class ServerAnswer(NamedTuple):
    """A server's answer.

    Args:
      number: The request's.
      result: What the method returned.
      error: The error that it raised instead.
      traffic: The table's bytes so far, as this server counted them.
      notes: The traceback of an error that nobody foresaw.
    """

    number: int
    result: Any
    error: AmpError | None
    traffic: ByteCounts
    notes: str = ""


def _error(kind: type[AmpError]) -> Form:
    return by_fields(kind, "where", "expected", "got", "fix")


def _history(
    max_lag: int,
    base: int,
    length: int,
    values: Sequence[np.ndarray],
) -> SharedHistory:
    result = SharedHistory(max_lag, base)
    result.length = length
    result.values = [np.array(value) for value in values]
    return result


TREES = TreeForms(
    *(
        by_fields(kind, *kind._fields)
        for kind in (
            SplitKey,
            Request,
            FunctionRequest,
            ServerAnswer,
            ExportedFunction,
            RowTypes,
            ServerNeeds,
        )
    ),
    by_fields(
        PartSettings,
        "layout",
        "partitions",
        "types",
        "history",
        "n_servers",
        "folder",
        "narrow",
    ),
    by_fields(NarrowRows, "row_dtype", "shape", "seed"),
    by_fields(PartitionLayout, "n_rows", "n_partitions"),
    by_fields(RowState, "name", "shape", "dtype"),
    by_fields(ByteCounts, "pulled", "pushed", "indices"),
    by_fields(jax.ShapeDtypeStruct, "shape", "dtype"),
    by_fields(ShapedArray, "shape", "dtype", "weak_type"),
    Form(
        SharedHistory,
        lambda h: (h.max_lag, h.base, h.length, h.values),
        _history,
    ),
    _error(ServerError),
    _error(TableError),
)
"""The types that a message may contain."""
