"""The part of one table at one server: some partitions, their state, and the updates of their rows.

Whatever comes in has been checked. It may have come from another process, and what goes out may go there: arrays and plain data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ampjax.optim.row_rule import RowTypes
from ampjax.sparse.narrow.narrow_rows import NarrowRows
from ampjax.sparse.rows.byte_counts import ByteCounts, Columns, cut
from ampjax.sparse.rows.catching_up import CatchUp
from ampjax.sparse.rows.gradient_buffer import GradientBuffer, Rows
from ampjax.sparse.rows.partition import Partition, Selection
from ampjax.sparse.rows.partition_layout import PartitionLayout
from ampjax.sparse.rows.row_gradients import refuse_new_rows
from ampjax.sparse.rows.row_jobs import JobPool
from ampjax.sparse.rows.row_kernels import RowKernels
from ampjax.sparse.rows.row_updates import RowJob, compute_rows, reduce_rows
from ampjax.sparse.rows.shared_history import SharedHistory


@dataclass(frozen=True)
class PartSettings:
    """The arguments of a part. `servers/protocol.py` has a list of their names, too, for server processes.

    Args:
      layout: The table's rows and partitions.
      partitions: The numbers of those that are in this part.
      types: The types of rows and of their optimizer state.
      history: Shared values of past updates, and their number; copied.
      n_servers: How many servers share the machine's cores.
      folder: Where arrays are mapped files; None for ordinary memory.
      narrow: How rows are kept in eight bits; None where they are kept as they are.
    """

    layout: PartitionLayout
    partitions: tuple[int, ...]
    types: RowTypes
    history: SharedHistory
    n_servers: int
    folder: Path | None = None
    narrow: NarrowRows | None = None


class ServerNeeds(NamedTuple):
    """The messages that a part awaits before a call, where its clients do not wait for one another.

    Args:
      updates: Updates that have been made in it.
      update: An update's number.
      clients: Clients that have pushed to that one.
      pulls: Announced pulls that have been answered.
    """

    updates: int = 0
    update: int = -1
    clients: int = 0
    pulls: int = 0


class ServerPart:
    """Partitions of a table on one server, empty at first. Clients call its public methods by name.

    It has more than 15 methods, since each request of a client is one.

    Args:
      settings: What is in it.
      kernels: The optimizer's compiled functions.
      traffic: The counts to which its pulls and pushes are added.
    """

    def __init__(self, settings: PartSettings, kernels: RowKernels, traffic: ByteCounts):
        layout = settings.layout
        history = settings.history
        self._types = settings.types
        # Eight bits have no infinity: it is refused, and not rounded.
        self._checks_new_rows = not settings.types.check_finite or settings.narrow is not None
        self._layout = layout
        self._kernels = kernels
        self._traffic = traffic
        self._history = copy.deepcopy(history)
        seen = history.version if history.max_lag else None
        result = {}
        for p in settings.partitions:
            result[p] = Partition(
                p,
                layout.size(p),
                settings.types,
                seen,
                settings.folder,
                settings.narrow,
                layout.n_partitions,
            )
        self._partitions = result
        self._jobs = JobPool(self._partitions, settings.n_servers)
        partitions = list(self._partitions.values())
        self._catch_up = CatchUp(
            kernels,
            self._history,
            partitions,
            layout.n_rows,
            self._jobs.run,
        )
        self._n_updates = self._n_pulls = 0
        self._buffers: dict[int, GradientBuffer] = {}
        self._prepared: dict[int, Callable[[], None]] = {}

    def is_ready(self, needs: ServerNeeds) -> bool:
        """Tells whether all messages that a call needs have come, by whatever way."""
        if needs.update in self._buffers:
            pushed = self._buffers[needs.update].n_clients
        else:
            pushed = 0
        has_read = self._n_pulls >= needs.pulls
        return has_read and self._n_updates >= needs.updates and pushed >= needs.clients

    # ---- some rows ---------------------------------------------------------------------------------------------------

    def pull(
        self,
        rows: Mapping[int, np.ndarray],
        wire_dtype: np.dtype,
        columns: Columns = None,
        announced: bool = False,
    ) -> dict[int, np.ndarray]:
        """Reads rows of some partitions, or some columns of them, in the dtype of the wire.

        Args:
          rows: By partition the numbers of its rows, `[n]`, each once.
          wire_dtype: The dtype in which they travel.
          columns: Which of their columns travel; None for all.
          announced: Whether later updates wait until these rows have been read (`ServerNeeds.pulls`).

        Returns:
          By partition, fresh arrays `[n, *row]`.
        """
        self._n_pulls += announced
        self._catch_up.rows(self._jobs.select(rows))
        width = cut(np.empty((0, *self._types.shape)), columns).shape[1:]
        result = {}
        for p, local in rows.items():
            result[p] = np.empty(
                (len(local), *width),
                wire_dtype,
            )

        def read(span: Mapping[int, slice]) -> None:
            for p, some in span.items():
                self._partitions[p].read(
                    rows[p][some],
                    columns,
                    out=result[p][some],
                )

        nbytes = sum(sent.nbytes for sent in result.values())
        self._jobs.run(
            read,
            self._jobs.spans(
                {p: len(local) for p, local in rows.items()},
                nbytes,
            ),
        )
        for p, local in rows.items():
            self._traffic.add(local, pulled=result[p])
        return result

    def receive(
        self,
        update: int,
        work: Mapping[int, Rows],
        columns: Columns = None,
        client: int | None = None,
    ) -> None:
        """Keeps one client's row gradients for an update, as whole rows: zero where nothing came.

        Args:
          update: The update's number.
          work: By partition its rows, each once, and their gradients as they have travelled.
          columns: Which columns have travelled; None for all.
          client: The client's number, where several push to one update; None for the next number.
        """
        empty = GradientBuffer(self._types, self._layout)
        buffer = self._buffers.setdefault(update, empty)
        for p, (local, grads) in work.items():
            self._traffic.add(local, pushed=grads)
            whole = grads
            if columns is not None:
                whole = np.zeros(
                    (len(grads), *self._types.shape),
                    grads.dtype,
                )
                cut(whole, columns)[:] = grads
            buffer.add(p, local, whole, client)

    def send(
        self,
        update: int,
        wire_dtype: np.dtype,
    ) -> dict[int, Rows]:
        """Reads the gradients gathered for an update, in the dtype of the wire.

        Args:
          update: The update's number.
          wire_dtype: The dtype in which gradients travel.

        Returns:
          By partition its rows and the sums of their gradients.

        Raises:
          TableError: If a sum has overflowed.
        """
        result = {}
        for p, (local, grads) in self.rows(update).items():
            result[p] = (local, grads.astype(wire_dtype, copy=False))
        for local, grads in result.values():
            self._traffic.add(local, pulled=grads)
        return result

    # ---- updates -----------------------------------------------------------------------------------------------------

    def rows(self, update: int) -> dict[int, Rows]:
        """Sums an update's gradients.

        Returns:
          By touched partition its rows, each once in rising order, and the sums of their gradients, in the table's dtype.

        Raises:
          TableError: If a sum has overflowed.
        """
        if update in self._buffers:
            return self._buffers[update].rows()
        return {}

    def partials(
        self,
        update: int,
        turn: int,
        shared: Sequence[Any],
    ) -> list[list[np.ndarray]]:
        """Computes one round's reductions over all rows of this part, one piece for each thread.

        Returns:
          For each piece the reductions, in the order of the rule's.
        """
        jobs = self._jobs.cut_between_partitions(self.rows(update)) or [
            RowJob(
                Selection(()),
                (),
            )
        ]
        of_jobs = [self._parameters(job.rows) for job in jobs]
        touched = np.bincount(
            np.concatenate(of_jobs),
            minlength=len(self._types.starts),
        )
        counts = [
            self._n_rows - touched,
            *[np.zeros_like(touched)] * (len(jobs) - 1),
        ]
        return self._jobs.run(
            lambda *work: reduce_rows(
                self._kernels,
                work[0],
                turn,
                shared,
                *work[1:],
            ),
            jobs,
            counts,
            of_jobs,
        )

    def _parameters(self, rows: Selection) -> np.ndarray:
        """Finds the number of the parameter to which each row belongs."""
        return (
            np.searchsorted(
                self._types.starts,
                self._row_ids(rows),
                "right",
            )
            - 1
        )

    def _row_ids(self, rows: Selection) -> np.ndarray:
        """The table's numbers of some rows, `[n]`."""
        ids = [np.zeros(0, np.int64)]
        for part, local in rows.parts:
            ids.append(self._layout.row_ids(part.index, local))
        return np.concatenate(ids)

    @cached_property
    def _n_rows(self) -> np.ndarray:
        """By parameter, how many of its rows are in here."""
        stops = [*self._types.starts[1:], self._layout.n_rows]
        spans = []
        for p in self._partitions:
            for stop in stops:
                spans.append(self._layout.within(p, 0, stop)[1])
        counts = np.array([span.stop - span.start for span in spans]).reshape(
            len(self._partitions), -1
        )
        return np.diff(counts.sum(0), prepend=0)

    def prepare(self, update: int, shared: Sequence[Any]) -> None:
        """Computes an update of touched rows; no row changes before `commit`.

        Raises:
          TableError: If gradients were not checked, or rows are kept in eight bits, and a new row is not finite.
        """
        self._catch_up.before_update(shared)

        def new_rows(job: RowJob) -> list[np.ndarray]:
            self._catch_up.rows(job.rows)
            new = compute_rows(self._kernels, job, shared)
            if self._checks_new_rows:
                self._require_finite(job, new[0])
            return new

        jobs = self._jobs.cut(self.rows(update))
        results = self._jobs.run(new_rows, jobs)

        def write() -> None:
            self._history.append(shared)
            self._jobs.run(
                lambda job, new: job.rows.write(new, self._history.version),
                jobs,
                results,
            )

        self._prepared[update] = write

    def _require_finite(self, job: RowJob, new: np.ndarray) -> None:
        """Checks new rows, padded, where gradients were not checked, or rows have no code for infinity."""
        new_rows = new[: len(job.rows)]
        if not np.isfinite(new_rows).all():
            refuse_new_rows(
                new_rows,
                np.concatenate(job.grads),
                self._row_ids(job.rows),
                self._types.row_name,
            )

    def commit(self, update: int) -> None:
        """Makes an update that was prepared, if nothing has changed since. Its gradients can still be read."""
        self._prepared.pop(update)()
        self._n_updates += 1

    def drop(self, update: int) -> None:
        """Forgets an update. May be called from any thread."""
        self._buffers.pop(update, None)
        self._prepared.pop(update, None)

    # ---- all rows ----------------------------------------------------------------------------------------------------

    def read(
        self, start: int, stop: int, n_arrays: int | None = None
    ) -> dict[int, list[np.ndarray]]:
        """Reads this part's share of rows start to stop of the table.

        Args:
          start: The first row.
          stop: The row after the last.
          n_arrays: How many arrays; None for all.

        Returns:
          By partition parameters in stored form, states and counts: views.
        """
        result = {}
        for p, part in self._partitions.items():
            result[p] = [
                array[self._layout.within(p, start, stop)[1]]
                for array in part.everything[:n_arrays]
            ]
        return result

    def write(
        self,
        start: int,
        stop: int,
        rows: Mapping[int, Sequence[np.ndarray]],
    ) -> None:
        """Replaces this part's share of rows start to stop of the table.

        Args:
          start: The first row.
          stop: The row after the last.
          rows: By partition, arrays as `read` gives them. Rows from outside lack the last array, the counts, which stay as they are.
        """
        for p, arrays in rows.items():
            _, places = self._layout.within(p, start, stop)
            part = self._partitions[p]
            for array, new in zip(part.everything, arrays, strict=False):
                array[places] = new
            if part.changed is not None:
                part.changed[places] = True

    def note_changes(self) -> None:
        """Begins to note changed rows, and forgets earlier notes."""
        for part in self._partitions.values():
            part.changed = np.zeros(part.n_rows, bool)

    def read_changes(
        self, start: int, stop: int, n_arrays: int
    ) -> dict[int, tuple[np.ndarray, list[np.ndarray]]]:
        """Reads this part's share of the noted rows from start to stop.

        Args:
          start: The first row of the table.
          stop: The row after the last.
          n_arrays: How many arrays of each.

        Returns:
          By partition the rows' numbers in the table, `[n]`, and copies of their parameters, in stored form, and states.
        """
        result = {}
        for p, part in self._partitions.items():
            _, places = self._layout.within(p, start, stop)
            assert part.changed is not None
            local = places.start + np.flatnonzero(part.changed[places])
            arrays = [array[local] for array in part.arrays[:n_arrays]]
            result[p] = (self._layout.row_ids(p, local), arrays)
        return result

    def assign(self, work: Mapping[int, tuple[np.ndarray, Sequence[np.ndarray]]]) -> None:
        """Replaces some rows of some partitions; new rows have missed no update.

        Args:
          work: By partition the numbers of its rows, `[n]`, each once, and their parameters, in stored form, and states, `[n, ...]` each.
        """
        for p, (local, arrays) in work.items():
            self._partitions[p].put(local, arrays, self._history.version)

    def settle(self) -> None:
        """Catches up all rows, so that the history is no longer needed."""
        self._catch_up.settle()

    def history(self) -> SharedHistory:
        """Shared values of past updates."""
        return self._history
