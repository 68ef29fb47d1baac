"""A trainer in files: parameters, optimizer states, gradients that wait for an update, and how far training has come.

The files are those of a hybrid runner: with checksums, and replaced in one go. A node's table in host memory is one of its tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ampjax.engine.executor_protocol import AnyStore
from ampjax.errors import DataError
from ampjax.optim.optimizer_identity import parts_of, require_same_operations, require_same_parts
from ampjax.parallel.checkpoints import runner_files
from ampjax.sched.updates.counters import UpdateCounters
from ampjax.sparse.table.sharded_table import Table
from ampjax.sparse.table.table_parts import part_of_all
from ampjax.train.checkpoints.position import Position


@dataclass(frozen=True)
class Saved:
    """A checkpoint, read and checked.

    Args:
      files: What the files held.
      notes: Counters, random numbers and the time.
      fit: The notes of a fit whose snapshot it is; None if it is none.
    """

    files: runner_files.SavedRunner
    notes: Mapping[str, Any]
    fit: Mapping[str, Any] | None


def save(
    folder: str | Path,
    store: AnyStore,
    updates: UpdateCounters,
    position: Position,
    operations: Mapping[str, str],
    fit: Mapping[str, Any] | None = None,
) -> None:
    """Writes everything; a checkpoint that the folder holds is replaced.

    Args:
      folder: Where to.
      store: Parameters, optimizer states and accumulated gradients.
      updates: How many gradient rows each node has accumulated, and the versions of parameters.
      position: How far training has come.
      operations: By optimizer, the operations that make its updates.
      fit: For a snapshot, what a fit needs to go on; in JSON's types.

    Raises:
      SettingsError: If the folder is no path.
      DataError: If the folder holds anything else, or is the one in which the program runs.
    """
    notes = {
        "updates": updates.state(),
        "rng": position.rng.bit_generator.state,
        "virtual_ns": position.virtual_ns,
        "accumulated": position.accumulated,
        "optimizers": _optimizers(store),
        "operations": dict(operations),
    }
    notes |= {} if fit is None else {"fit": fit}
    rows = {}
    for node, gradients in store.tables.items():
        rows[node] = gradients.join_all()
    if rows:
        notes["waiting"] = {
            node: [len(rows[node][0]), own.n_new] for node, own in store.tables.items()
        }
    tables = {}
    for node, table in tables_of(store).items():
        tables[node] = part_of_all(table)
    runner_files.save(
        folder,
        position.epochs,
        dict(store.params),
        _beside(store, rows),
        tables,
        notes,
    )


def restore(
    folder: str | Path,
    store: AnyStore,
    updates: UpdateCounters,
    position: Position,
    operations: Mapping[str, str],
) -> None:
    """Reads everything into `store`, `updates` and `position`, after a check of all of it.

    Args:
      folder: What `save` wrote.
      store: Parameters, optimizer states and accumulated gradients.
      updates: How many gradient rows each node has accumulated, and the versions of parameters.
      position: How far training has come.
      operations: By optimizer, the operations that make its updates.

    Raises:
      SettingsError: If the folder is no path.
      DataError: If what was saved is of another graph or other optimizers, or is no trainer.
      TableError: If files are missing, cut off or altered.
    """
    saved = read(folder, store, updates, position, operations)
    apply(saved, store, updates, position)


def read(
    folder: str | Path,
    store: AnyStore,
    updates: UpdateCounters,
    position: Position,
    operations: Mapping[str, str],
) -> Saved:
    """Reads and checks a whole checkpoint; changes nothing.

    Args:
      folder: What `save` wrote.
      store: Parameters, optimizer states and accumulated gradients like those that were saved.
      updates: Counters, likewise.
      position: A generator, likewise.
      operations: By optimizer, the operations that make its updates.

    Returns:
      What was read.

    Raises:
      Exception: As `restore`.
    """
    like = {}
    for node, table in tables_of(store).items():
        like[node] = [_like(node, table)]
    noted = runner_files.notes_of(folder)
    rows = _rows_like(folder, noted, store)
    _check_optimizers(folder, noted, store)
    saved = runner_files.load(
        folder,
        dict(store.params),
        _beside(store, rows),
        like,
    )
    # Only now: another graph has other operations, too.
    require_same_operations(
        f"checkpoint `{folder}`, optimizer",
        operations,
        noted.get("operations") if isinstance(noted, dict) else None,
    )
    notes = _checked_notes(folder, saved.notes, updates.state(), position.rng)
    return Saved(saved, notes, notes.get("fit"))


def apply(
    saved: Saved,
    store: AnyStore,
    updates: UpdateCounters,
    position: Position,
) -> None:
    """Continues from a checkpoint that was read.

    Args:
      saved: What `read` gave.
      store: Gets parameters, optimizer states and accumulated gradients.
      updates: Gets counters.
      position: Gets how far training had come.
    """
    files = saved.files
    notes = saved.notes
    store.restore(
        files.params,
        files.state["optimizers"],
        files.state["gradients"],
    )
    for node, table in tables_of(store).items():
        table.take_over(files.tables[node][0])
        ids, rows = files.state["rows"][node]
        store.tables[node].restore(
            ids,
            rows,
            notes["waiting"][node][1],
        )
    updates.resume(notes["updates"])
    position.rng.bit_generator.state = notes["rng"]
    position.epochs = files.step
    position.virtual_ns = notes["virtual_ns"]
    position.accumulated = notes.get("accumulated", 0)  # checkpoints of before have none


def _optimizers(store: AnyStore) -> dict[str, str]:
    """The parts of each optimizer's state, by name."""
    return {name: parts_of(state) for name, state in store.opt_state.items()}


def _check_optimizers(
    folder: str | Path,
    notes: Any,
    store: AnyStore,
) -> None:
    """Checks that a checkpoint's optimizers are the trainer's, as far as states tell.

    Raises:
      DataError: If not.
    """
    saved = notes.get("optimizers") if isinstance(notes, dict) else None
    if not isinstance(saved, dict):
        return
    tables = {
        *store.tables,
        *(notes.get("waiting") or {}),
    }  # of these the files tell
    for name, expected in _optimizers(store).items():
        if name in tables:
            continue
        got = saved.get(name, expected)  # of another graph the files tell
        fix = "Make the trainer with the optimizer and mode of the one that saved it; or begin with its parameters alone."
        require_same_parts(f"checkpoint `{folder}`, optimizer of `{name}`", expected, got, fix)


def _checked_notes(
    folder: str | Path,
    notes: Any,
    like: Mapping[str, Any],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Checks the notes of a checkpoint: counters must have the names that this trainer's have, and the generator's state must fit.

    Raises:
      DataError: If it is anything else.
    """
    try:
        numbers = notes["virtual_ns"], notes.get("accumulated", 0)
        if not _same_form(notes["updates"], like) or any(
            type(number) is not int for number in numbers
        ):
            raise ValueError(f"{notes!r:.100}")
        type(rng.bit_generator)().state = notes["rng"]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        fix = "Restore what `Trainer.save` wrote, into a trainer of the same graph and settings."
        got = f"something else ({type(error).__name__}: {error})"
        raise DataError(
            f"checkpoint `{folder}`, notes", "those of a trainer like this one", got, fix
        ) from error
    return notes


def _same_form(value: Any, like: Any) -> bool:
    """Tells whether both have the same names on every level, and numbers where the other has numbers."""
    if isinstance(like, Mapping):
        same = isinstance(value, Mapping) and value.keys() == like.keys()
        return same and all(_same_form(value[name], part) for name, part in like.items())
    if isinstance(like, int | float):
        return type(value) in (int, float, bool)
    return isinstance(value, type(like))


def _like(node: str, table: Table) -> runner_files.Like:
    """Describes the loading of a node's table: one parameter's rows, as the node's table has them."""
    shapes = {node: table.shape}
    states = {node: table.rule.state}
    return runner_files.Like(
        table.transform,
        table.settings,
        shapes,
        states,
        table.dtype,
    )


def tables_of(store: AnyStore) -> dict[str, Table]:
    """The tables in host memory, by node.

    Args:
      store: The parameters.

    Raises:
      DataError: If one can't be saved.
    """
    by_node = dict[str, Table]()
    for node, gradients in store.tables.items():
        if not isinstance(gradients.table, Table):
            got = type(gradients.table).__name__
            fix = "Use `ampjax.sparse.Table`."
            raise DataError(
                f"checkpoint, table of node `{node}`", "an `ampjax.sparse.Table`", got, fix
            )
        by_node[node] = gradients.table
    return by_node


def _rows_like(
    folder: str | Path,
    notes: Any,
    store: AnyStore,
) -> dict[str, Any]:
    """Arrays like the gradients that wait for tables' updates in a checkpoint.

    Raises:
      DataError: If it does not say how many there are.
    """
    if not store.tables:
        return {}
    waiting: Any = notes.get("waiting") if isinstance(notes, dict) else None
    try:
        if waiting.keys() != store.tables.keys():
            raise ValueError(f"of nodes {[*waiting]}")
        counts = {node: _two_counts(counts_of_node) for node, counts_of_node in waiting.items()}
    except (AttributeError, TypeError, ValueError) as error:
        got = f"{waiting!r:.60} ({error})"
        fix = "Restore what a trainer of the same graph and settings has saved."
        where = f"checkpoint `{folder}`, gradients of tables"
        raise DataError(where, f"how many wait at {[*store.tables]}", got, fix) from error
    rows = {}
    for node, own in store.tables.items():
        rows[node] = own.table.shape[1:]
    result = {}
    for node, (n, _) in counts.items():
        result[node] = (
            np.zeros(n, np.int64),
            np.zeros((n, *rows[node]), np.float32),
        )
    return result


def _two_counts(counts: Any) -> tuple[int, int]:
    n, n_new = counts
    if not (type(n) is type(n_new) is int and n >= 0 and n_new >= 0):
        raise ValueError(f"{counts!r:.60}")
    return n, n_new


def _beside(
    store: AnyStore,
    rows: Mapping[str, Any],
) -> dict[str, Any]:
    """The saved state other than parameters; `rows` are gradients of tables."""
    beside = {
        "optimizers": dict(store.opt_state),
        "gradients": dict(store.accumulators),
    }
    return beside | ({"rows": dict(rows)} if rows else {})
