"""The messages between a runner and its workers, and their form on the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ampjax.cluster.wire.trees import Form, TreeForms, by_fields
from ampjax.errors import TableError
from ampjax.optim.row_rule import RowState, RowTypes
from ampjax.optim.split_transform import Totals
from ampjax.parallel.homes.row_homes import Reading
from ampjax.sparse.rewrite.unique_ids import UniqueRows
from ampjax.sparse.rows.byte_counts import ByteCounts
from ampjax.sparse.rows.partition_layout import PartitionLayout, SplitKey
from ampjax.sparse.table.row_client import SplitPlace


class RowWork(NamedTuple):
    """A worker's task for one table in a step.

    Args:
      rows: The rows that it pulls.
      size: How many there are with padding: the same at all workers, whose programs are one.
      reading: What of them has to travel.
      update: The number of the update to which it pushes their gradients; None if another replica pushes for it.
      updates: Updates that must have been made at the servers before it pulls.
      early: Which of the rows it may also pull before the last of these updates, which leaves them as they are, `[k]`; None for none.
    """

    rows: UniqueRows
    size: int
    reading: Reading
    update: int | None
    updates: int
    early: np.ndarray | None = None


class StepWork(NamedTuple):
    """One replica's share of a step, without the parts that depend on the update before the step.

    Args:
      number: The step's number, for this run of processes.
      batch: The leaves of its part of the batch; of keys, their integers.
      tables: By table.
    """

    number: int
    batch: Sequence[np.ndarray]
    tables: Mapping[str, RowWork]


class Go(NamedTuple):
    """Lets a worker take a step.

    Args:
      number: The step's.
      work: The worker's share; None if it has it already (`Ahead`).
      adopts: Whether the update that was proposed in the last step is made first.
      params: The leaves of dense variables, where they are at servers; None where the worker has them.
      is_followed: Whether an `Ahead` follows, which the worker reads while it computes.
    """

    number: int
    work: StepWork | None
    adopts: bool = False
    params: Sequence[np.ndarray] | None = None
    is_followed: bool = False


class Ahead(NamedTuple):
    """The next step's share, whose rows the worker requests while the present step is computed. If another step follows, the share is forgotten.

    Args:
      work: The share; None if there is none after all.
    """

    work: StepWork | None


class StepDone(NamedTuple):
    """A worker's report of its share. So far nothing has changed, except that row gradients wait at their servers.

    Args:
      number: The step's.
      loss: The loss; reduced over replicas, unless dense variables are at servers.
      aux: The leaves of the loss function's second result.
      finite: Whether the loss and then each dense variable's gradient is.
      traffic: By table and server, what has gone there and come back.
      pushes: By table and server, how many replicas' row gradients it has sent there.
      shared: By table, the values that its update needs, where they depend on dense variables only; None where they don't.
      error: Why its row gradients can't be applied.
      grads: The leaves of dense gradients, its own share, where dense variables are at servers.
    """

    number: int
    loss: np.ndarray
    aux: Sequence[np.ndarray]
    finite: np.ndarray
    traffic: Mapping[str, Mapping[int, ByteCounts]]
    pushes: Mapping[str, Mapping[int, int]]
    shared: Mapping[str, Sequence[np.ndarray]] | None = None
    error: TableError | None = None
    grads: Sequence[np.ndarray] = ()


class Places(NamedTuple):
    """The new places of tables' rows.

    Args:
      tables: By table.
    """

    tables: Mapping[str, SplitPlace]


class WriteVariables(NamedTuple):
    """Other dense variables.

    Args:
      params: The leaves of dense parameters.
      state: The leaves of the optimizer's shared state.
    """

    params: Sequence[np.ndarray]
    state: Sequence[np.ndarray]


class Question(NamedTuple):
    """A question to the first worker; the others are in the same state.

    Args:
      number: The question's.
      name: `read` (dense parameters and shared state), `gradients` (of the last step) or `shared` (values for a round of reductions).
      turn: The round.
      totals: The reductions of earlier rounds.
    """

    number: int
    name: str
    turn: int = 0
    totals: Totals = ()


class Propose(NamedTuple):
    """A request for the update of dense variables by the last step's gradients. Nothing changes yet; the first worker reports the tables' needs.

    Args:
      number: The question's number.
      totals: The reductions of all rounds.
    """

    number: int
    totals: Totals


class Adopt(NamedTuple):
    """Makes the update that was proposed in the last step. Nobody answers."""


class WorkerAnswer(NamedTuple):
    """The first worker's answer.

    Args:
      number: The question's.
      value: What was asked for.
    """

    number: int
    value: Any


TREES = TreeForms(
    *(
        by_fields(kind, *kind._fields)
        for kind in (
            RowWork,
            StepWork,
            Go,
            Ahead,
            StepDone,
            Places,
            WriteVariables,
            Question,
            Propose,
            Adopt,
            WorkerAnswer,
            Reading,
            SplitPlace,
            SplitKey,
            RowTypes,
        )
    ),
    by_fields(UniqueRows, "ids", "inverse"),
    by_fields(ByteCounts, "pulled", "pushed", "indices"),
    by_fields(PartitionLayout, "n_rows", "n_partitions"),
    by_fields(RowState, "name", "shape", "dtype"),
    Form(
        TableError,
        lambda error: (error.where, error.expected, error.got, error.fix),
        TableError,
    ),
)
"""The types that a message may contain."""
