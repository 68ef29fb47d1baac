"""The sharded sparse table: rows and their optimizer state on the host, in partitions, on servers (Parallax §3, §4).

Owns what a table's calls mean: checks, duplicates, the transform's shared state, files. Rows and what travels are the shards', arithmetic
is the rule's. Knows nothing of models, replicas or devices.
"""

from __future__ import annotations

import contextlib
import hashlib
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jaxtyping import Float, Int

from ampjax.errors import TableError
from ampjax.optim.row_rule import RowRule, RowState, Values
from ampjax.optim.split_by_rows import ALONE, split_alone
from ampjax.optim.split_transform import Split
from ampjax.optim.split_update import SharedVariables, prepare_update
from ampjax.sparse.narrow.narrow_rows import ROW_DTYPES, parameter_dtype, stored_arrays
from ampjax.sparse.rows import row_blocks
from ampjax.sparse.rows.byte_counts import ByteCounts, Columns
from ampjax.sparse.rows.new_rows import checked_new_rows, first_states
from ampjax.sparse.rows.row_gradients import checked_ids, ready_to_push
from ampjax.sparse.rows.row_kernels import kernels_for
from ampjax.sparse.rows.shared_history import SharedHistory
from ampjax.sparse.servers.all_servers import LocalServers
from ampjax.sparse.servers.processes import ServerProcesses
from ampjax.sparse.table import table_files
from ampjax.sparse.table.pending_update import PendingUpdate
from ampjax.sparse.table.row_client import SplitPlace
from ampjax.sparse.table.saved_rows import SavedForm
from ampjax.sparse.table.shards import Connection, Shards
from ampjax.sparse.table.shared_folder import PlaceTaken, SharedFolder, opening, shared_facts
from ampjax.sparse.table.table_settings import (
    MAX_LAG,
    MAX_LAG_IN_FILES,
    TableSettings,
    check_values,
    checked_columns,
    checked_partitions,
    checked_wire,
    settings_of_saved,
)
from ampjax.sparse.table.table_sharing import TableSharing
from ampjax.utils.interrupts import uninterrupted


class Table:
    """A sharded table `[n_rows, *row]` in host memory, for parameters of which each step touches few rows.

    `pull` gives rows, `push` updates rows by an optax transform. Row r is in partition `r % P`; partitions are spread over servers evenly by
    size. Calls may come from any thread; one runs at a time. A call that raises changes nothing, except for a `ServerError`: if one server
    has ended, others may have made an update already, and the table must be loaded again (`load`).

    It has more than 15 methods, since it is the only object that users of tables need, and ten of them only describe it. `Shards` handles rows at
    servers, and `PendingUpdate` updates under way.

    Args:
      values: The first rows, `[n_rows, *row]`, float32, bfloat16 or float16: an array or anything with `shape`, `dtype` and
        slices of rows. It is read in blocks and copied.
      tx: An optax transform that works row by row; or a `RowRule` of `optim.split_by_rows.split_rows`, where the table is one of many
        variables under one transform. Then `apply` needs that transform's shared values.
      partitions: P, in `[1, n_rows]`.
      servers: A number of servers, or for each partition its server.
      mode: What happens to rows that an update does not touch. `lazy`: nothing, as in other frameworks' sparse
        optimizers. `faithful`: the missed updates are made when a row is next used, so that the table always equals plain optax on
        the whole array. If a zero gradient changes nothing (SGD, Adagrad), both are the same.
      wire_dtype: The dtype of rows and gradients between client and server; the table's, if None. `bfloat16` halves bytes.
      folder: A folder for arrays larger than memory: they are mapped files in a new subfolder, which is removed
        with the table. None: ordinary memory.
      max_lag: In `faithful` mode, the most updates that a row may miss. With each update, one in so many rows catches up. None: 64, or 1024
        where rows are in mapped files.
      processes: Server processes; server s of the table is process number s. The table behaves the same. None: its servers
        are in this process.
      sharing: How processes of this machine share the table in `folder`, which is then the table's own, and stays. None: the table is this
        process's.
      row_dtype: How float32 rows are kept in eight bits, with a scale for each row: `int8`, `float8_e4m3fn` or `float8_e5m2`. They are read and
        updated as float32, and new rows are rounded up or down at random. In mode `lazy`, or where a zero gradient changes nothing. None: they are
        kept as they are.
      rounding_seed: Decides the random numbers, which are the same in each run, for any number of partitions and servers.

    Raises:
      TableError: If values, settings or the transform do not fit.
      ServerError: If a server's process has ended; all calls that need rows raise it, too.

    >>> table = Table(np.ones((4, 2), np.float32), optax.sgd(0.5), partitions=2)
    >>> table.push([1, 3, 1], np.ones((3, 2), np.float32))
    1
    >>> table.pull([1, 2]).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """

    def __init__(
        self,
        values: Any,
        tx: optax.GradientTransformation | RowRule,
        *,
        partitions: int = 1,
        servers: int | Sequence[int] = 1,
        mode: str = "lazy",
        wire_dtype: Any = None,
        folder: str | Path | None = None,
        max_lag: int | None = None,
        processes: ServerProcesses | None = None,
        sharing: TableSharing | None = None,
        row_dtype: str | None = None,
        rounding_seed: int = 0,
    ):
        check_values(values)
        n_rows = values.shape[0]
        dtype = np.dtype(values.dtype)
        if max_lag is None:
            max_lag = MAX_LAG if folder is None else MAX_LAG_IN_FILES
        settings = TableSettings(
            n_rows,
            dtype,
            partitions,
            servers,
            mode,
            wire_dtype,
            folder,
            max_lag,
            processes,
            sharing,
            row_dtype,
            rounding_seed,
        )
        split, rule = _split_and_rule(tx, tuple(values.shape), dtype)
        with _place_for(settings, rule) as shared:
            self._start(settings, tx, split, rule, shared)
            takes_over = isinstance(sharing, PlaceTaken) and shared is sharing.place
            if shared is None or shared.is_new or takes_over:
                self._shards.fill(row_blocks.of_values(values, kernels_for(self.rule)))
            if takes_over and self._variables is not None:
                self._set_shared_leaves(jax.tree.leaves(self._variables.state))

    def _start(
        self,
        settings: TableSettings,
        tx: Any,
        split: Split | None,
        rule: RowRule,
        shared: SharedFolder | None,
        version: int = 0,
    ) -> None:
        """Sets everything but the rows."""
        _check_mode(settings, rule)
        self._tx = tx
        no_params = split and split.params.fill([])  # the table is the transform's only variable
        self._variables = split and SharedVariables(split, no_params, split.init(no_params))
        self._origin = object()
        self._settings = settings
        self._connection = Connection(rule, settings.processes or LocalServers(), shared=shared)
        self._forget = self._forgotten_with_it()
        history = SharedHistory(0 if self.untouched_rows_stay else settings.max_lag, version)
        self._shards = Shards(settings, settings.partitions, self._connection, history)
        self._changes_since: str | None = None

    def _forgotten_with_it(self) -> weakref.finalize:
        """Lets servers forget the rows when the table goes."""
        forget = weakref.finalize(
            self, self._connection.servers.forget_table, self._connection.table
        )
        forget.atexit = False
        return forget

    # ---- what it is --------------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """`[n_rows, *row]`."""
        return (self.n_rows, *self.rule.shape)

    @property
    def dtype(self) -> np.dtype:
        """The rows' dtype."""
        return self._settings.dtype

    @property
    def n_rows(self) -> int:
        """Rows in the table."""
        return self._settings.n_rows

    @property
    def n_partitions(self) -> int:
        """P."""
        return self._shards.layout.n_partitions

    @property
    def n_servers(self) -> int:
        """The number of servers."""
        return len(self._connection.counts)

    @property
    def placement(self) -> tuple[int, ...]:
        """For each partition its server."""
        return self._shards.placement

    @property
    def version(self) -> int:
        """Updates applied so far."""
        return self._shards.version

    @property
    def settings(self) -> dict[str, Any]:
        """The present settings, as arguments of `load`. Another table with the settings of a shared table takes over its place in the folder."""
        settings = self._settings
        names = (
            "mode",
            "wire_dtype",
            "folder",
            "max_lag",
            "processes",
            "row_dtype",
            "rounding_seed",
        )
        placed = {"partitions": self.n_partitions, "servers": self.placement}
        shared = self._connection.shared
        placed["sharing"] = None if shared is None else shared.successor
        return placed | {name: getattr(settings, name) for name in names}

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, in stored form, and of the optimizer state."""
        of_row = 0
        for shape, dtype in self._shards.stored_arrays:
            of_row += row_blocks.row_bytes(shape, dtype)
        return self.n_rows * of_row

    @property
    def transform(self) -> optax.GradientTransformation | RowRule:
        """The transform, or the rule, with which the table was made."""
        return self._tx

    @property
    def rule(self) -> RowRule:
        """The optimizer's rule for rows."""
        return self._connection.rule

    @property
    def traffic(self) -> tuple[list[ByteCounts], list[ByteCounts]]:
        """Bytes so far for each server: the clients' counts, and the servers' counts."""
        connection = self._connection
        with connection.lock:
            at_servers = []
            for server in range(self.n_servers):
                at_servers.append(connection.servers.traffic(connection.table, server))
            return [count.copy() for count in connection.counts], [
                count.copy() for count in at_servers
            ]

    def __repr__(self) -> str:
        shape = " x ".join(str(n) for n in self.shape)
        where = f"partitions {self.n_partitions}, servers {self.n_servers}"
        kept = self._settings.row_dtype
        dtype = self.dtype if kept is None else f"{self.dtype} in {kept}"
        return f"Table({shape} {dtype}, {where}, {self._settings.mode}, version {self.version})"

    def __reduce__(self) -> Any:
        fix = "Save it with `save` and load it with `Table.load`; `dense` and `opt_state` give copies of its rows."
        raise TableError(
            "table, copy or pickle", "a table that stays where it is", "a request to copy it", fix
        )

    # ---- rows out ----------------------------------------------------------------------------------------------------

    def pull(
        self,
        row_ids: Int[np.ndarray, " n"],
        wire_dtype: Any = None,
        columns: Columns = None,
    ) -> Float[np.ndarray, "n ..."]:
        """Reads rows after all updates so far. A repeated id travels once.

        Args:
          row_ids: `[n]`, integers in `[0, n_rows)`.
          wire_dtype: The dtype in which rows travel, if the client casts them anyway; None for the table's wire dtype.
          columns: Start and end along the rows' last axis, if the client needs only a part; the rest is zero.

        Returns:
          `[n, *row]` in the table's dtype, rounded to the wire's; a new array that may be given to JAX.

        Raises:
          TableError: If ids are wrong, or the dtype, or the columns.
        """
        ids = checked_ids(row_ids, self.n_rows, "pull")
        wire = self._settings.wire if wire_dtype is None else checked_wire(wire_dtype)
        if (ids[1:] > ids[:-1]).all():
            once = ids
            inverse = None
        else:
            once, inverse = np.unique(ids, return_inverse=True)
        columns = checked_columns(columns, self.rule.shape)
        with self._connection.lock:
            rows = self._shards.client.pull(once, wire, columns)
        return rows if inverse is None else rows[inverse]

    def dense(self) -> Float[np.ndarray, "n_rows ..."]:
        """Copies all rows after all updates so far.

        Returns:
          `[n_rows, *row]` in the table's dtype.
        """
        with self._connection.lock:
            return self._shards.arrays(n_arrays=1)[0]

    def arrays(
        self,
        first: int,
        end: int,
        n_arrays: int | None = None,
    ) -> list[np.ndarray]:
        """Copies parameters and states of some consecutive rows after all updates so far.

        Args:
          first: The first row.
          end: The row after the last.
          n_arrays: How many arrays: 1 for parameters alone; None for all.

        Returns:
          `[end - first, ...]` each: parameters, then the rule's states.
        """
        with self._connection.lock:
            return self._shards.arrays(first, end, n_arrays)

    def set_state(
        self,
        first: int,
        states: Sequence[np.ndarray],
    ) -> None:
        """Replaces the optimizer state of some consecutive rows, once all updates so far have been made.

        Args:
          first: The first row.
          states: The rule's states, `[n, ...]` each.
        """
        with self._connection.lock:
            self._shards.settle()
            end = first + len(states[0])
            for start, (rows, *_) in self._shards.blocks(
                first,
                end,
                1,
                stored=True,
            ):
                span = slice(start - first, start - first + len(rows))
                block = start, [rows, *[state[span] for state in states]]
                self._shards.fill([block], stored=True)
            self._origin = object()

    def assign(
        self,
        row_ids: Int[np.ndarray, " n"],
        values: Float[np.ndarray, "n ..."],
    ) -> None:
        """Gives some rows new values and fresh optimizer state, as in a new table; other rows stay.

        State that all rows share, such as Adam's count of updates, stays too. Gradients that wait for `apply` still count.

        Args:
          row_ids: `[n]`, integers in `[0, n_rows)`, each once.
          values: `[n, *row]`, finite numbers, which are cast to the table's dtype.

        Raises:
          TableError: If ids or values are wrong; nothing has changed then.
        """
        ids = checked_ids(row_ids, self.n_rows, "assign")
        rows = checked_new_rows(values, ids, self.rule, "assign")
        self._require_writable(ids, "assign")
        if not len(ids):
            return
        with self._connection.lock, uninterrupted():
            states = first_states(rows, self.rule)
            self._shards.assign(ids, [rows, *states])
            self._origin = object()

    @property
    def opt_state(self) -> Any:
        """A copy of the optimizer's state: of `tx.init`'s structure, or for a `RowRule` a list of its row states."""
        with self._connection.lock:
            rows = self._shards.arrays()[1:]
            variables = self._variables
            if variables is None:
                return rows
            return variables.split.state.fill(
                self._shared_leaves,
                {ALONE: rows},
            )

    def settle(self) -> None:
        """Makes the updates that rows have missed; in `lazy` mode there are none."""
        with self._connection.lock:
            self._shards.settle()

    # ---- updates -----------------------------------------------------------------------------------------------------

    def push(
        self,
        row_ids: Int[np.ndarray, " n"],
        grads: Float[np.ndarray, "n ..."],
    ) -> int:
        """Updates some rows with their gradients: `aggregate` and `apply` in one.

        Args:
          row_ids: `[n]`, integers in `[0, n_rows)`. Gradients of a repeated id are summed first.
          grads: `[n, *row]`, in the table's dtype, the wire's or float32.

        Returns:
          The version after the update.

        Raises:
          TableError: If ids or gradients are wrong, or the table needs shared values.
        """
        with self._connection.lock:
            return self.apply(self.aggregate(row_ids, grads))

    def aggregate(
        self,
        row_ids: Int[np.ndarray, " n"],
        grads: Float[np.ndarray, "n ..."],
        into: PendingUpdate | None = None,
        columns: Columns = None,
        *,
        copy: bool = True,
    ) -> PendingUpdate:
        """Sends one client's row gradients to their partitions, where the gradients wait for `apply`.

        Args:
          row_ids: `[n]`, integers in `[0, n_rows)`. Duplicates are summed before they travel.
          grads: `[n, *row]`, in the table's dtype, the wire's or float32.
          into: The gradients that other clients have sent for the same update; None starts a new update.
          columns: The columns that travel, as for `pull`; the gradients of the others are taken as zero.
          copy: Whether gradients are copied. False saves time where nobody writes into `grads` any more, as into a view of a JAX array; it is then kept
            as long as the update is referenced.

        Returns:
          All gradients of the update so far.

        Raises:
          TableError: If ids, gradients or columns are wrong, or `into` is of an update that has been applied; `into` is not changed.
        """
        ids = checked_ids(row_ids, self.n_rows, "push")
        columns = checked_columns(columns, self.rule.shape)
        self._require_writable(ids, "push")
        array = np.asarray(grads)
        ids, sums = ready_to_push(ids, array, self.rule, self._settings.wire)
        with self._connection.lock:
            pending = self.expect() if into is None else into
            self._require_own(pending)
            pending.push(ids, sums, columns, copy=copy and sums is array)
            return pending

    def expect(self) -> PendingUpdate:
        """Begins an update without gradients, for clients in other processes, which push to its number at `place` (see `RowClient`).

        Returns:
          The update, to which `PendingUpdate.note_pushes` adds what they say.
        """
        with self._connection.lock:
            return PendingUpdate(self._shards)

    @property
    def place(self) -> SplitPlace:
        """The place of the rows in the present split."""
        return self._shards.place

    @property
    def n_updates(self) -> int:
        """The number of updates since the present split: clients elsewhere wait for this number (`ServerNeeds`)."""
        return self._shards.n_updates

    @property
    def contents(self) -> tuple[object, int]:
        """A version token: changes whenever a row may have changed; compare with `==`."""
        if self._connection.shared is not None:  # others may have changed rows
            return object(), self.version
        return self._origin, self.version

    @property
    def untouched_rows_stay(self) -> bool:
        """Tells whether an update leaves all rows without a gradient unchanged."""
        return self._settings.mode == "lazy" or self.rule.zero_gradient_is_noop

    def note_traffic(self, counts: Mapping[int, ByteCounts]) -> None:
        """Adds the traffic counted by clients elsewhere.

        Args:
          counts: By server.
        """
        with self._connection.lock:
            for server, count in counts.items():
                self._connection.counts[server] += count

    def apply(self, pending: PendingUpdate, shared: Values | None = None) -> int:
        """Makes one update with everything that was aggregated, even if that is nothing: the version goes up by one.

        Args:
          pending: The update's gradients.
          shared: The values that `Split.update` made for this table; None if the table has a transform of its own.

        Returns:
          The version after the update.

        Raises:
          TableError: If the gradients can't be applied, or shared values are missing or not wanted.
        """
        with self._connection.lock, uninterrupted():
            self._require_own(pending)
            variables = self._variables
            if variables is None:
                if shared is None:
                    fix = "Take them from `Split.update`; `push` can't."
                    raise TableError("apply, shared values", "those of the rule", "None", fix)
                return pending.prepare(shared)()
            if shared is not None:
                raise TableError(
                    "apply, shared values",
                    "None: the table has a transform",
                    "some",
                    "Leave them out.",
                )
            shared_folder = self._connection.shared
            if shared_folder is not None:
                variables.state = jax.tree.unflatten(
                    jax.tree.structure(variables.state), self._shared_leaves
                )
            prepare_update(
                variables.split.n_rounds, variables, variables.params, {ALONE: pending}
            )()
            if shared_folder is not None:
                shared_folder.write_state(jax.tree.leaves(variables.state))
            return self.version

    def _require_writable(self, ids: np.ndarray, call: str) -> None:
        """Returns if this process may write some rows."""
        if self._connection.shared is not None:
            self._connection.shared.require_own(ids, call)

    def _require_unshared(self, call: str) -> None:
        """Returns if no other process maps the table's files."""
        if self._connection.shared is not None:
            raise TableError(
                call,
                "a table of this process alone",
                "one that processes share, whose files others have mapped",
                "Make a new table in another folder from `dense()`.",
            )

    def _require_own(self, pending: PendingUpdate) -> None:
        """Returns if an update is this table's and still open."""
        if pending.table != self._connection.table:
            fix = "Apply them to that table."
            raise TableError(
                "apply", "gradients that this table has aggregated", "another table's", fix
            )
        pending.require_open()

    # ---- partitions and files ----------------------------------------------------------------------------------------

    def resplit(
        self,
        partitions: int,
        servers: int | Sequence[int] | None = None,
    ) -> None:
        """Distributes all rows over another number of partitions; rows, state and version do not change.

        Args:
          partitions: P, in `[1, n_rows]`.
          servers: A number of servers, or for each partition its server; None keeps the servers, evenly by size.

        Raises:
          TableError: If these are no such numbers, or other processes share the table.
        """
        self._require_unshared("resplit")
        partitions = checked_partitions(partitions, self.n_rows)
        old_settings = self._settings
        if servers is None:
            settings = old_settings
        else:
            settings = replace(old_settings, partitions=partitions, servers=servers)
        with self._connection.lock:
            old = self._shards
            shards = Shards(settings, partitions, self._connection, old.history())
            shards.fill(old.blocks(stored=True), stored=True)
            self._shards = shards
            self._settings = settings
            self._changes_since = None  # which rows had changed is not dealt out
            old.replace(shards)

    def save(self, folder: str | Path) -> None:
        """Writes the table to a folder; if writing is interrupted, the version that was saved there before is still valid.

        Args:
          folder: Made if it is missing.
        """
        self.save_part(folder, 0, self.n_rows, self.rule.state)

    @property
    def changes_since(self) -> str | None:
        """The name of the save since which changed rows are noted; None without notes."""
        return self._changes_since

    def note_changes(self, since: str) -> None:
        """Begins to note which rows change, so that `save_part` can write these alone.

        Where an update changes all rows, or other processes change some, nothing is noted.

        Args:
          since: A name of the save that has the rows as they are now.
        """
        with self._connection.lock:
            if self.untouched_rows_stay and self._connection.shared is None:
                self._shards.note_changes()
                self._changes_since = since

    def save_part(
        self,
        folder: str | Path,
        first: int,
        end: int,
        state: Sequence[RowState],
        *,
        changes: bool = False,
    ) -> None:
        """Writes some rows as a table of their own, as `save` does.

        Args:
          folder: Made if it is missing.
          first: The first row.
          end: The row after the last.
          state: The rule's state under the names that it has for these rows.
          changes: Whether only those rows are written that have changed since `changes_since`, which must not be None.
        """
        with self._connection.lock:
            self.settle()
            n_arrays = 1 + len(state)
            if changes:
                rows = self._shards.changes(first, end, n_arrays)
            else:
                rows = self._shards.blocks(first, end, n_arrays, stored=True)
            facts = self._facts(end - first, state) | {
                "version": self.version,
                "settings": self._settings.facts_to_save(min(self.n_partitions, end - first)),
                "is_difference": changes,
            }
            table_files.save(
                folder, facts, rows, [np.asarray(leaf) for leaf in self._shared_leaves]
            )

    @classmethod
    def load(
        cls,
        folder: str | Path,
        tx: optax.GradientTransformation | RowRule,
        /,
        **settings: Any,
    ) -> Table:
        """Loads a saved table, after a check of every byte.

        Args:
          folder: The folder that `save` wrote.
          tx: The transform or rule that it was made with.
          settings: Any of `partitions`, `servers`, `mode`, `wire_dtype`, `folder`, `max_lag`, `processes`, `sharing`, in place of the saved ones.
            A shared table that is there gets the saved rows in place of its own: of each process those that the process may write.

        Returns:
          The table, with its optimizer state and version.

        Raises:
          TableError: If files are missing, cut off or altered, or the transform keeps other state than was saved.
        """
        return cls.load_parts([folder], tx, **settings)

    @classmethod
    def load_parts(
        cls,
        folders: Sequence[str | Path],
        tx: optax.GradientTransformation | RowRule,
        /,
        states: Sequence[Sequence[RowState]] | None = None,
        differences: Sequence[Sequence[Path]] = (),
        **settings: Any,
    ) -> Table:
        """Loads a table from several that were saved, one's rows after the other's, as `load` does.

        Args:
          folders: The folders that `save` or `save_part` wrote.
          tx: The transform or rule of the table.
          states: For each folder the rule's state under the names that it has there; None for those of the rule.
          differences: For each folder those that `save_part` wrote of changes later, one after the other; empty where there are none.
          settings: As for `load`.

        Returns:
          The table.

        Raises:
          TableError: As `load` does; or if they were saved after different numbers of updates.
        """
        saved = []
        for each in folders:
            saved.append(
                table_files.read_manifest(
                    each,
                    shape=list,
                    dtype=str,
                    settings=dict,
                    version=int,
                )
            )
        read = []
        for each in zip(folders, saved, strict=True):
            read.append(table_files.read_arrays(*each))
        n_rows = sum(len(arrays[0]) for arrays, _ in read if arrays)
        # Before a table is made: the files hold as many rows as it will have.
        kept = []
        for folder, of_one, (arrays, _) in zip(folders, saved, read, strict=True):
            kept.append(settings_of_saved(folder, of_one, arrays, settings, n_rows))
        later = list(differences) or [()] * len(read)
        version = _version_of_all(folders, saved, later)
        row = saved[0]["shape"][1:]
        table = cls.__new__(cls)
        split, rule = _split_and_rule(tx, (n_rows, *row), kept[0].dtype)
        with _place_for(kept[0], rule) as shared:
            table._start(kept[0], tx, split, rule, shared, version=version)
            start = 0
            for place, (arrays, others) in enumerate(read):
                table._check_saved(
                    folders[place],
                    saved[place],
                    arrays,
                    others,
                    (states or [table.rule.state])[place],
                )
                form = table._saved_form(saved[place])
                blocks = form.blocks(row_blocks.of_arrays(arrays, start))
                table._shards.fill(blocks, stored=form.is_kept)
                for change in later[place]:
                    table._apply_changes(
                        change,
                        start,
                        len(arrays[0]),
                        (states or [table.rule.state])[place],
                    )
                start += len(arrays[0])
            table._set_shared_leaves(read[0][1])
        for folder in folders:
            table_files.sweep(folder)
        return table

    def _check_saved(
        self,
        folder: str | Path,
        saved: Mapping[str, Any],
        arrays: Sequence[np.ndarray],
        others: Sequence[np.ndarray],
        state: Sequence[RowState],
    ) -> None:
        """Returns if the saved rows are a part of this table, with the state that its transform keeps."""
        n_rows = len(arrays[0])
        facts = self._facts(len(arrays[0]), state)
        rows = []
        for shape, dtype in self._saved_form(saved).arrays:
            rows.append(((n_rows, *shape), np.dtype(dtype)))
        shared = []
        for leaf in self._shared_leaves:
            shared.append((np.shape(leaf), np.dtype(leaf.dtype)))
        types = (
            [(array.shape, array.dtype) for array in arrays],
            [(other.shape, other.dtype) for other in others],
        )
        if not _are_facts(saved, facts) or types != (rows, shared):
            fix = "Pass the transform that it was saved with."
            raise TableError(
                f"{folder}",
                f"state as `tx` keeps it, {facts['state']}",
                f"{saved.get('state')}",
                fix,
            )

    def _apply_changes(
        self,
        folder: Path,
        first: int,
        n_rows: int,
        state: Sequence[RowState],
    ) -> None:
        """Replaces the changed rows that `save_part` wrote of the `n_rows` from `first` on.

        Raises:
          TableError: If files are missing, cut off or altered, or hold other rows.
        """
        saved = table_files.read_manifest(folder, dtype=str)
        arrays, _ = table_files.read_arrays(folder, saved)
        is_like = _are_facts(saved, self._facts(n_rows, state))
        form = self._saved_form(saved)
        if not is_like or not self._are_changes(arrays, n_rows, form):
            fix = "Restore another copy, or an earlier checkpoint."
            expected = f"changed rows of a table of {n_rows}, in order, with state as `tx` keeps it"
            raise TableError(f"{folder}", expected, "something else", fix)
        ids, *rows = arrays
        shared_folder = self._connection.shared
        is_own = np.ones(len(ids), bool)
        if shared_folder is not None:
            is_own = shared_folder.is_writable(ids + first)
        if is_own.any():
            changed = form.rows([array[is_own] for array in rows])
            self._shards.assign(ids[is_own] + first, changed, stored=form.is_kept)

    def _are_changes(
        self,
        arrays: Sequence[np.ndarray],
        n_rows: int,
        form: SavedForm,
    ) -> bool:
        """Tells whether arrays are numbers of rows below `n_rows`, rising, with their parameters and states."""
        types = [((), np.dtype(np.int64)), *form.arrays]
        if len(arrays) != len(types):
            return False
        ids = arrays[0]
        for array, (shape, dtype) in zip(arrays, types, strict=True):
            if array.shape != (len(ids), *shape) or array.dtype != dtype:
                return False
        if not len(ids):
            return True
        is_inside = ids[0] >= 0 and ids[-1] < n_rows
        return bool(is_inside and (np.diff(ids) > 0).all())

    @classmethod
    def join(
        cls,
        folder: str | Path,
        tx: optax.GradientTransformation | RowRule,
        process: int | None = None,
    ) -> Table:
        """Opens the table that other processes share in a folder (`TableSharing`), without its rows and settings at hand.

        Args:
          folder: The table's folder.
          tx: The transform or rule that it was made with.
          process: This process's number; None only reads.

        Returns:
          The table.

        Raises:
          TableError: If there is no such table, it has another optimizer, or a process that runs has this one's number.
        """
        facts = shared_facts(folder)
        kept = facts["dtype"]
        nothing = np.broadcast_to(
            np.zeros((), parameter_dtype(kept)), facts["shape"]
        )  # the rows are there
        return cls(
            nothing,
            tx,
            partitions=facts["partitions"],
            folder=folder,
            sharing=TableSharing(facts["writers"], process, facts["processes"]),
            row_dtype=kept if kept in ROW_DTYPES else None,
            rounding_seed=facts.get("rounding_seed") or 0,
        )

    def interrupted_rows(self, *, forget: bool = False) -> Int[np.ndarray, " n"]:
        """Finds the rows of a shared table that were in writing when a process was killed: each is old, new, or partly both.

        All other rows are whole, and so is their optimizer state. `assign` gives rows new values and fresh state.

        Args:
          forget: Whether the rows are not named again.

        Returns:
          `[n]`, rising; none for a table that is this process's.
        """
        if self._connection.shared is None:
            return np.zeros(0, np.int64)
        return self._connection.shared.cut_rows(forget)

    def take_over(self, other: Table) -> None:
        """Takes over the rows, state and version of another table, so that references to this table see the rows.

        Args:
          other: A table of the same shape and dtype. It must not be used any more.

        Raises:
          TableError: If it has another shape or dtype, or other processes share this table.
        """
        self._require_unshared("take_over")
        here, theirs = ((table.shape, str(table.dtype)) for table in (self, other))
        if here != theirs:
            raise TableError(
                "take_over",
                f"a table {here}",
                f"{theirs}",
                "Give one that was saved from this one.",
            )
        with self._connection.lock:
            other._forget.detach()
            self._forget()
            self.__dict__.update(
                {name: value for name, value in vars(other).items() if name != "_forget"}
            )
            self._forget = self._forgotten_with_it()

    def _facts(
        self,
        n_rows: int,
        state: Sequence[RowState],
    ) -> dict[str, Any]:
        """Collects the facts that a table and the one loaded in its place must have in common, in JSON's types."""
        rows = []
        for each in state:
            rows.append([each.name, list(each.shape), str(each.dtype)])
        shared = []
        for leaf in self._shared_leaves:
            shared.append([list(leaf.shape), str(leaf.dtype)])
        return {
            "shape": [n_rows, *self.rule.shape],
            "dtype": self._settings.row_dtype or str(self.dtype),
            "state": [rows, shared],
        }

    def _saved_form(self, saved: Mapping[str, Any]) -> SavedForm:
        """The form of a saved table's rows."""
        types = self.rule.types
        return SavedForm(saved["dtype"], self._settings.narrow(types.shape), types)

    @property
    def _shared_leaves(self) -> list[Any]:
        """The leaves of the transform's shared state; none where the transform is not the table's own."""
        if self._variables is None:
            return []
        leaves = jax.tree.leaves(self._variables.state)
        if self._connection.shared is not None:
            return self._connection.shared.read_state(leaves)
        return leaves

    def _set_shared_leaves(self, leaves: Sequence[Any]) -> None:
        """Replaces the shared state."""
        if self._variables is None:
            return
        self._variables.state = jax.tree.unflatten(
            jax.tree.structure(self._variables.state), leaves
        )
        if self._connection.shared is not None:
            self._connection.shared.write_state(leaves)


def _version_of_all(
    folders: Sequence[str | Path],
    saved: Sequence[Mapping[str, Any]],
    later: Sequence[Sequence[Path]],
) -> int:
    """Returns the version of saved tables, if all have the same one.

    Args:
      folders: The folders of the tables.
      saved: The manifest of each.
      later: For each the folders of changes that were saved later.

    Raises:
      TableError: If they were saved after different numbers of updates.
    """
    versions = []
    for of_one, changes in zip(saved, later, strict=True):
        newest = of_one
        if changes:
            newest = table_files.read_manifest(changes[-1], version=int)
        versions.append(newest["version"])
    if len({*versions}) > 1:
        fix = "Load tables of one checkpoint."
        raise TableError(
            f"{folders[0]} and others",
            "tables after one number of updates",
            f"{versions}",
            fix,
        )
    return versions[0]


def _are_facts(
    saved: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> bool:
    """Tells whether a saved table has the facts of another; rows in eight bits count as float32."""
    saved_facts = {name: saved.get(name) for name in facts}
    read = parameter_dtype(str(saved_facts["dtype"]))
    return (
        read == parameter_dtype(facts["dtype"]) and saved_facts | {"dtype": facts["dtype"]} == facts
    )


def _check_mode(settings: TableSettings, rule: RowRule) -> None:
    """Returns if rows in eight bits may be updated so.

    Raises:
      TableError: If rows without a gradient move.
    """
    if settings.row_dtype is None or settings.mode == "lazy" or rule.zero_gradient_is_noop:
        return
    raise TableError(
        "mode",
        f"`lazy` where rows are kept in {settings.row_dtype}: rounded rows do not equal the dense program's, and a row that catches up would be rounded "
        "once more whenever it is read",
        "`faithful`, with an optimizer that moves rows without a gradient",
        'Give `mode="lazy"` (`table_mode` in a runner\'s settings), or an optimizer such as Adagrad.',
    )


@contextlib.contextmanager
def _place_for(settings: TableSettings, rule: RowRule) -> Iterator[SharedFolder | None]:
    """A process's place in the folder of a shared table; None for a table of one process.

    Raises:
      TableError: If the table that is there is another, or rows without a gradient move.
    """
    if settings.sharing is None:
        yield None
        return
    if settings.mode == "faithful" and not rule.zero_gradient_is_noop:
        raise TableError(
            "mode",
            "`lazy` where processes share the table: no process knows which updates another one's rows have missed",
            "`faithful`, with an optimizer that moves rows without a gradient",
            'Give `mode="lazy"` (`table_mode` in a runner\'s settings), or an optimizer such as Adagrad.',
        )
    types = rule.types
    state = []
    for each in types.state:
        state.append([each.name, list(each.shape), str(each.dtype)])
    facts = {
        "shape": [settings.n_rows, *types.shape],
        "dtype": settings.row_dtype or str(types.dtype),
        "rounding_seed": None if settings.row_dtype is None else settings.rounding_seed,
        "state": state,
        "optimizer": hashlib.sha256(" ".join(rule.operations).encode()).hexdigest()[:16],
        "partitions": settings.partitions,
    }
    narrow = settings.narrow(types.shape)
    arrays = stored_arrays(types.arrays, narrow)
    row = sum(row_blocks.row_bytes(*array) for array in arrays)
    assert settings.folder is not None
    folder = Path(settings.folder)
    with opening(folder, settings.sharing, facts, settings.n_rows * row) as shared:
        yield shared


def _split_and_rule(
    tx: Any, shape: tuple[int, ...], dtype: np.dtype
) -> tuple[Split | None, RowRule]:
    """A transform's split for one table, and its rule; no split where the rule is given."""
    if not isinstance(tx, RowRule):
        split = split_alone(tx, shape, dtype)
        return split, split.rules[ALONE]
    if (tx.shape, tx.dtype) != (shape[1:], dtype):
        wanted = f"rows of {tx.dtype}{list(tx.shape)}, as the rule was made for"
        raise TableError(
            "values", wanted, f"{dtype}{list(shape[1:])}", "Make the rule from these values."
        )
    return None, tx
