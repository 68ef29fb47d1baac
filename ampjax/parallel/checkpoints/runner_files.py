"""A runner's checkpoint: dense variables and shared optimizer state in one folder, each table in one of its own.

Every file has a checksum, and nothing is used before all files were read and checked. If a save is cut off, the last complete checkpoint
is still there, perhaps under another name: `NAME.<token>.new` is being written, `NAME.<token>.old` is being replaced
(`sparse.table.leftovers` knows tokens). Folders and files that are no checkpoint are not touched.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from ampjax.devices import random_keys
from ampjax.errors import DataError, SettingsError, TableError
from ampjax.optim.optimizer_identity import require_same_operations, require_same_parts
from ampjax.optim.row_rule import RowRule, RowState
from ampjax.optim.split_by_rows import split_rows
from ampjax.parallel.checkpoints.checkpoint_chain import base_facts, chain_of
from ampjax.parallel.config.leaf_paths import by_path, names, readable
from ampjax.parallel.planning.saved_tables import SavedTables
from ampjax.sparse.detection.row_axes import LEADING, from_table, table_shape, to_table
from ampjax.sparse.narrow.narrow_rows import parameter_dtype
from ampjax.sparse.table import leftovers, table_files
from ampjax.sparse.table.sharded_table import Table
from ampjax.sparse.table.table_parts import TablePart
from ampjax.utils.setting_checks import a_path

Tree = Any
Axes = Mapping[str, Sequence[int]]
_DENSE = "dense"
_PARAMS = "params/"


class TableFolders(NamedTuple):
    """The folders that hold a table's rows.

    Args:
      whole: Has all rows.
      differences: Have those that changed later, one after the other.
    """

    whole: Path
    differences: list[Path]


@dataclass(frozen=True)
class SavedRunner:
    """A checkpoint, read and checked.

    Args:
      step: Steps that had been taken.
      params: Dense parameters.
      state: Shared optimizer state.
      tables: By name, as many copies of a table as were asked for.
      notes: What the runner noted, in JSON's types, if it did.
    """

    step: int
    params: Tree
    state: Tree
    tables: Mapping[str, list[Table]]
    notes: Mapping[str, Any] | None


class Like(NamedTuple):
    """The requirements on a loaded table.

    Args:
      rule: The optimizer's rule for its rows, or the transform.
      settings: Its settings, in place of the saved ones.
      shapes: By variable whose rows it holds, `[n_rows, *row]`.
      states: By variable the rule's state under its names.
      dtype: Of its rows.
    """

    rule: optax.GradientTransformation | RowRule
    settings: Mapping[str, Any]
    shapes: Mapping[str, tuple[int, ...]]
    states: Mapping[str, Sequence[RowState]]
    dtype: np.dtype


def save(
    folder: str | Path,
    step: int,
    params: Tree,
    state: Tree,
    tables: Mapping[str, TablePart],
    notes: Mapping[str, Any] | None = None,
    *,
    axes: Axes | None = None,
    base: str | Path | None = None,
) -> str:
    """Writes a checkpoint, which replaces the previous content of the folder atomically.

    Args:
      folder: Where to.
      step: Steps taken so far.
      params: Dense parameters, None at tables.
      state: Shared optimizer state.
      tables: By path of a variable its rows.
      notes: What the runner shall find again after `load`, in JSON's types.
      axes: By path, for tables that have other axes than their parameters (see `ampjax.sparse.detection.row_axes`).
      base: An earlier checkpoint, in another folder. Of tables that have noted their changes since then, the changed rows alone are written.

    Returns:
      The checkpoint's identifier.

    Raises:
      SettingsError: If the folder is no path.
      DataError: If the folder holds anything else, or is the one in which the program runs.
    """
    folder = a_path("checkpoint, folder", folder).resolve()
    _check_place(folder)
    if base is None:
        continued = None
    else:
        continued = base_facts(folder, _other_place(base, folder), _facts)
    identifier = uuid.uuid4().hex
    folder.parent.mkdir(parents=True, exist_ok=True)
    sweep(folder)
    try:
        with leftovers.saving(folder.parent, f"{folder.name}.") as token:
            fresh = _folders_beside(folder, token, "new")
            is_difference = False
            for number, part in enumerate(tables.values()):
                since = part.table.changes_since
                changes = continued is not None and since == continued["id"]
                part.save(fresh / _table(number), changes=changes)
                is_difference |= changes
            leaves = [random_keys.data_of(leaf) for leaf in jax.tree.leaves((params, state))]
            facts = {
                "step": step,
                "tables": list(tables),
                "leaves": _describe_leaves(params, state),
                "notes": notes,
                "id": identifier,
            }
            if is_difference:
                facts["base"] = continued
            facts["axes"] = _list_axes(axes or {})
            table_files.save(fresh / _DENSE, facts, iter([]), leaves)
            _replace(folder, fresh, _folders_beside(folder, token, "old"))
    finally:
        sweep(folder)
    return identifier


def _other_place(base: str | Path, folder: Path) -> Path:
    """The folder of the checkpoint that another one continues.

    Raises:
      SettingsError: If it is the same one, which would be replaced, or no path.
    """
    if a_path("checkpoint, base", base).resolve() == folder:
        raise SettingsError(
            "save, `base`",
            "a checkpoint in another folder",
            f"`{folder}`",
            "Give each checkpoint a folder of its own, or leave `base` out.",
        )
    return _whole_one(base)


def require_undamaged(folder: str | Path) -> None:
    """Checks every byte of a checkpoint, of whatever model.

    Args:
      folder: What `save` wrote.

    Raises:
      SettingsError: If the folder is no path.
      TableError: If files are missing, cut off or altered.
    """
    for checkpoint in chain_of(_whole_one(folder), _facts):
        for part in _parts(checkpoint):
            table_files.read_arrays(part, table_files.read_manifest(part))


def steps(folder: str | Path, params: Tree) -> int:
    """Reads the number of steps in a checkpoint. Compares the parameters' shapes with a model's, without reading the values.

    Args:
      folder: What `save` wrote.
      params: Parameters like those that were saved, tables among them.

    Returns:
      Steps that had been taken.

    Raises:
      SettingsError: If the folder is no path.
      DataError: If what was saved is of another model.
      TableError: If there is no manifest, or it was altered, or a checkpoint that it continues is missing.
    """
    folder = _whole_one(folder)
    facts = _facts(folder)
    chain_of(folder, _facts)
    known = names(params)
    shapes = _dense_shapes(facts)
    tables: list[str] = facts["tables"]
    for number, key in enumerate(tables):
        shapes[known.get(key, key)] = table_files.read_manifest(
            folder / _table(number), shape=list
        )["shape"]
    saved_axes: dict[str, list[int]] = facts["axes"]
    axes = {}
    for key, leaf_axes in saved_axes.items():
        axes[known.get(key, key)] = leaf_axes
    wanted = {}
    for path, leaf in by_path(params).items():
        wanted[path] = np.shape(random_keys.data_of(leaf))
    _check_axes(folder, axes, wanted)
    wanted = {
        path: list(table_shape(shape, axes.get(path, LEADING))) for path, shape in wanted.items()
    }
    _check(
        folder,
        "parameters",
        sorted(wanted.items()),
        sorted(shapes.items()),
    )
    return facts["step"]


def tables_of(folder: str | Path) -> SavedTables:
    """The variables that are tables in a checkpoint; nothing else is read.

    Args:
      folder: What `save` wrote.

    Returns:
      The tables, with the axes along which their rows are counted.

    Raises:
      SettingsError: If the folder is no path.
      TableError: If there is no manifest, or it was altered.
    """
    folder = _whole_one(folder)
    facts = _facts(folder)
    axes = {}
    for path in facts["tables"]:
        axes[path] = tuple(facts["axes"].get(path, LEADING))
    return SavedTables(f"`{folder}`", axes)


def read_whole(
    folder: str | Path,
    params: Tree,
    tx: optax.GradientTransformation,
) -> tuple[Tree, Tree]:
    """Reads parameters and optimizer state in the single-device program's form.

    Args:
      folder: What `save` wrote.
      params: Parameters like those that were saved.
      tx: The transform that they were trained with.

    Returns:
      Parameters and optimizer state, host arrays.

    Raises:
      SettingsError: If the folder is no path.
      DataError: If what was saved is of another model.
      TableError: If files are missing, cut off or altered, or the transform is not row-wise on what was a table.
    """
    folder = _whole_one(folder)
    facts = _facts(folder)
    tables = facts["tables"]
    axes = facts["axes"]
    if not tables:
        saved = load(folder, params, tx.init(params), {})
        return saved.params, saved.state
    leaves = {}
    for key, leaf in zip(names(params), jax.tree.leaves(params), strict=True):
        leaves[key] = leaf
    _check_axes(
        folder,
        axes,
        {key: np.shape(leaf) for key, leaf in leaves.items()},
    )
    as_tables = []
    for key, leaf in leaves.items():
        as_tables.append(to_table(leaf, axes.get(key, LEADING)))
    split = split_rows(
        tx,
        jax.tree.unflatten(jax.tree.structure(params), as_tables),
        tables,
        axes,
    )
    dense, _ = split.params.split(params)
    shapes = {}
    for key, leaf in zip(leaves, as_tables, strict=True):
        shapes[key] = np.shape(leaf)
    like = _tables_like(tables, split.rules, shapes)
    saved = load(folder, dense, split.init(dense), like, axes)

    def as_leaves(path: str, tables: Sequence[Any]) -> list[Any]:
        result = []
        for table in tables:
            result.append(
                from_table(
                    table,
                    np.shape(leaves[path]),
                    axes.get(path, LEADING),
                )
            )
        return result

    rows = {}
    for path, (table,) in saved.tables.items():
        rows[path] = as_leaves(path, [table.dense()])
    states = {}
    for path, (table,) in saved.tables.items():
        states[path] = as_leaves(path, table.opt_state)
    return (
        split.params.fill(jax.tree.leaves(saved.params), rows),
        split.state.fill(jax.tree.leaves(saved.state), states),
    )


def _tables_like(
    tables: Sequence[str],
    rules: Mapping[str, RowRule],
    shapes: Mapping[str, tuple[int, ...]],
) -> dict[str, list[Like]]:
    """Describes the saved tables of a model, one for each variable.

    Args:
      tables: The paths of the variables that were tables.
      rules: By path, the rule of the rows.
      shapes: By path, the shape of the variable as a table.
    """
    like = {}
    for key in tables:
        if key in shapes:
            like[key] = [
                Like(
                    rules[key],
                    {},
                    {key: shapes[key]},
                    {key: rules[key].state},
                    rules[key].dtype,
                )
            ]
    return like


def notes_of(folder: str | Path) -> Any:
    """Reads the notes of a checkpoint, in JSON's types; nothing else is read, and the notes are not checked.

    Args:
      folder: What `save` wrote.

    Returns:
      The notes; None if there are none.

    Raises:
      SettingsError: If the folder is no path.
      TableError: If there is no manifest, or it was altered.
    """
    return _facts(_whole_one(folder)).get("notes")


def check_optimizer(
    folder: str | Path,
    expected: str,
    operations: str,
    params: Tree,
) -> None:
    """Checks that a runner's checkpoint is of its optimizer, as far as states and operations tell. Older checkpoints don't say.

    Operations tell nothing if the checkpoint has other parameters: `load` says so.

    Args:
      folder: What `save` wrote.
      expected: The parts of its optimizer's state, as `parts_of` names them.
      operations: The operations that make its updates, as `operations_of` gives them.
      params: Its parameters, tables among them, or their shapes.

    Raises:
      DataError: If it is of another optimizer.
      SettingsError: If the folder is no path.
      TableError: If there is no manifest, or it was altered.
    """
    folder = _whole_one(folder)
    facts = _facts(folder)
    notes = facts.get("notes")
    saved = notes.get("optimizer", expected) if isinstance(notes, dict) else expected
    fix = "Make the runner with the optimizer of the one that saved it; or begin with its parameters alone."
    where = f"checkpoint `{folder}`, optimizer"
    require_same_parts(where, expected, saved, fix)
    known = names(params)
    tables = [known.get(key, key) for key in facts["tables"]]
    is_of_model = {*_dense_shapes(facts), *tables} == set(known.values())
    if is_of_model and isinstance(notes, dict) and "operations" in notes:
        require_same_operations(
            where,
            {"": operations},
            {"": notes["operations"]},
        )


def load(
    folder: str | Path,
    params: Tree,
    state: Tree,
    like: Mapping[str, Sequence[Like]],
    axes: Axes | None = None,
) -> SavedRunner:
    """Reads a whole checkpoint and checks it against the model; changes nothing.

    Args:
      folder: What `save` wrote.
      params: Dense parameters like those that were saved.
      state: Shared optimizer state, likewise.
      like: By name a model's tables: how many copies there are, and how they are split and placed.
      axes: As for `save`.

    Returns:
      What was read. The homes have not changed.

    Raises:
      SettingsError: If the folder is no path.
      DataError: If what was saved is of another model.
      TableError: If files are missing, cut off or altered.
    """
    folder = _whole_one(folder)
    facts = _facts(folder)
    dtypes = {}
    for copies in like.values():
        for path in copies[0].shapes:
            dtypes[path] = copies[0].dtype
    _check(
        folder,
        "tables",
        sorted(map(readable, dtypes)),
        sorted(map(readable, facts["tables"])),
    )
    _check(
        folder,
        "axes of rows",
        _readable_axes(axes or {}),
        _readable_axes(facts["axes"]),
    )
    _check_dtypes(folder, facts, params, dtypes)
    _check(folder, "dense leaves", _describe_leaves(params, state), facts["leaves"])
    _, leaves = table_files.read_arrays(folder / _DENSE, facts)
    on_disk = []
    for leaf in leaves:
        on_disk.append([str(leaf.dtype), list(leaf.shape)])
    _check(
        folder,
        "files of dense leaves",
        [kind for _, *kind in facts["leaves"]],
        on_disk,
    )
    chain = {}
    for checkpoint in chain_of(folder, _facts):
        chain[checkpoint] = _facts(checkpoint)["tables"]
    folders = {}
    for path in facts["tables"]:
        folders[path] = _table_folders(chain, path)
    tables = {}
    for name, copies in like.items():
        tables[name] = [_load_table(folders, copy) for copy in copies]
    first, structure = jax.tree.flatten((params, state))
    dense, shared = jax.tree.unflatten(
        structure,
        map(random_keys.wrapped_like, first, leaves),
    )
    table_files.sweep(folder / _DENSE)
    return SavedRunner(
        facts["step"],
        dense,
        shared,
        tables,
        facts.get("notes"),
    )


def bases_of(folder: Path) -> list[Path]:
    """Finds the earlier checkpoints of a checkpoint's chain, without which no restore is possible.

    Args:
      folder: What `save` wrote.

    Returns:
      Their folders, as far as they are there.
    """
    try:
        return chain_of(_whole_one(folder), _facts)[1:]
    except TableError:  # who restores it is told
        return []


def _facts(folder: Path) -> dict[str, Any]:
    """The manifest of the dense part: steps, paths of tables and axes of their rows; path, dtype and shape of each leaf.

    Axes are given for tables that have other axes than their parameters. Older checkpoints have none.

    Raises:
      TableError: If it can't be read, or says anything else.
    """
    facts = table_files.read_manifest(
        folder / _DENSE,
        step=int,
        tables=list,
        leaves=list,
    )
    facts.setdefault("axes", {})
    of_leaves = (
        isinstance(leaf, list) and list(map(type, leaf)) == [str, str, list]
        for leaf in facts["leaves"]
    )
    are_names = all(isinstance(path, str) for path in facts["tables"])
    if not are_names or not all(of_leaves) or not _are_axes(facts["axes"], facts["tables"]):
        fix = "Restore another copy, or start anew."
        said = "names of tables, axes of their rows; paths, dtypes and shapes"
        raise TableError(f"{folder / _DENSE}", said, "something else", fix)
    return facts


def _are_axes(axes: Any, tables: Sequence[str]) -> bool:
    """Tells whether axes are, for some of the tables, different axes of a parameter, in their order."""
    return isinstance(axes, dict) and all(
        path in tables
        and isinstance(leaf_axes, list)
        and len(leaf_axes) > 0
        and all(type(axis) is int and axis >= 0 for axis in leaf_axes)
        and leaf_axes == sorted(set(leaf_axes))
        for path, leaf_axes in axes.items()
    )


def _list_axes(axes: Axes) -> dict[str, list[int]]:
    """Axes as lists, which JSON knows."""
    return {path: list(leaf_axes) for path, leaf_axes in axes.items()}


def _readable_axes(axes: Axes) -> list[tuple[str, list[int]]]:
    return sorted((readable(path), leaf_axes) for path, leaf_axes in _list_axes(axes).items())


def _dense_shapes(facts: Mapping[str, Any]) -> dict[str, list[int]]:
    """The shapes of a checkpoint's parameters that are no tables, by path."""
    shapes = {}
    for path, _, shape in facts["leaves"]:
        if path.startswith(_PARAMS):
            shapes[path.removeprefix(_PARAMS)] = shape
    return shapes


def _check_axes(
    folder: Path,
    axes: Axes,
    shapes: Mapping[str, Sequence[int]],
) -> None:
    """Raises unless parameters have the axes that the checkpoint names. Parameters that the model lacks are reported elsewhere.

    Raises:
      DataError: If one has fewer.
    """
    for path, leaf_axes in axes.items():
        if path in shapes and leaf_axes[-1] >= len(shapes[path]):
            fix = "Restore into the same model."
            where = f"checkpoint `{folder}`, table `{readable(path)}`, axes of rows"
            raise DataError(where, f"axes of {list(shapes[path])}", f"{list(leaf_axes)}", fix)


def _load_table(folders: Mapping[str, TableFolders], like: Like) -> Table:
    for path, shape in like.shapes.items():
        whole = folders[path].whole
        saved = tuple(table_files.read_manifest(whole, shape=list)["shape"])
        if saved != shape:
            fix = "Restore into the same model: a table has as many rows as when it was saved."
            where = f"checkpoint `{whole.parent}`, table `{readable(path)}`"
            raise DataError(where, f"shape {shape}", f"{saved}", fix)
    return Table.load_parts(
        [folders[path].whole for path in like.shapes],
        like.rule,
        states=[like.states[path] for path in like.shapes],
        differences=[folders[path].differences for path in like.shapes],
        **like.settings,
    )


def _table_folders(chain: Mapping[Path, Sequence[str]], path: str) -> TableFolders:
    """Finds the folders of a table's rows in a chain of checkpoints, the newest first, with the tables that each has."""
    later = []
    for checkpoint, tables in chain.items():
        if path not in tables:
            break
        folder = checkpoint / _table(tables.index(path))
        if not table_files.read_manifest(folder).get("is_difference"):
            return TableFolders(folder, later[::-1])
        later.append(folder)
    fix = "Restore another copy, or an earlier checkpoint."
    where = f"checkpoint `{next(iter(chain))}`, table `{readable(path)}`"
    raise TableError(where, "all of its rows in a checkpoint before", "changed rows only", fix)


def _describe_leaves(params: Tree, state: Tree) -> list[list[Any]]:
    """Describes every leaf by path, dtype and shape, in JSON's types."""
    leaves = by_path(
        jax.tree.map(
            random_keys.data_of,
            {"params": params, "state": state},
        )
    )
    result = []
    for path, data in leaves.items():
        result.append([path, str(data.dtype), list(data.shape)])
    return result


def _check(
    folder: Path,
    part: str,
    wanted: Sequence[Any],
    saved: Any,
) -> None:
    if saved != wanted:
        missing = [entry for entry in wanted if entry not in (saved or [])]
        foreign = [entry for entry in saved or [] if entry not in wanted]
        raise DataError(
            f"checkpoint `{folder}`, {part}",
            f"{missing or wanted}",
            f"{foreign or saved}",
            "Restore into the same model with the same optimizer and choice of tables.",
        )


def _check_dtypes(
    folder: Path,
    facts: Mapping[str, Any],
    params: Tree,
    tables: Mapping[str, Any],
) -> None:
    """Raises if a parameter was saved in another dtype.

    Raises:
      DataError: It names the first.
    """
    wanted = {}
    for path, leaf in by_path(params).items():
        wanted[f"{_PARAMS}{path}"] = random_keys.data_of(leaf).dtype
    wanted |= tables
    dtypes = {path: dtype for path, dtype, _ in facts["leaves"]}
    for number, path in enumerate(facts["tables"]):
        saved_dtype = table_files.read_manifest(folder / _table(number), dtype=str)["dtype"]
        dtypes[path] = parameter_dtype(saved_dtype)
    for path, dtype in wanted.items():
        if dtypes.get(path, str(dtype)) != str(dtype):
            fix = (
                f"Restore it into parameters of {dtypes[path]}; to go on in {dtype}, begin a new run with its parameters, cast: "
                "`jax.tree.map(lambda leaf: leaf.astype(...), params)`."
            )
            where = f"checkpoint `{folder}`, parameter `{readable(path.removeprefix(_PARAMS))}`"
            raise DataError(where, f"{dtype}", dtypes[path], fix)


def _check_place(folder: Path) -> None:
    """Raises unless a folder may be replaced: a missing or an empty folder may, and one that holds a checkpoint and nothing else.

    Raises:
      DataError: If it holds something else, or is the one in which the program runs.
    """
    fix = "Give a folder of its own."
    if re.fullmatch(r".*\.[0-9a-f]{8}\.(new|old)", folder.name):
        got = f"`{folder.name}`, as a save calls its own folders while it runs"
        raise DataError(
            f"checkpoint `{folder}`",
            "another name",
            got,
            "Name it otherwise: such folders get deleted.",
        )
    if Path.cwd().is_relative_to(folder):
        raise DataError(
            f"checkpoint `{folder}`",
            "a folder that can be replaced",
            "the working directory's",
            fix,
        )
    if folder.exists() and not folder.is_dir():
        raise DataError(f"checkpoint `{folder}`", "a folder", "a file", fix)
    inside = sorted(folder.iterdir()) if folder.exists() else []
    foreign = []
    for path in inside:
        if not (path / table_files.MANIFEST).is_file():
            foreign.append(path.name)
    if inside and (foreign or not (folder / _DENSE).exists()):
        got = ", ".join(foreign[:4] or [path.name for path in inside[:4]])
        raise DataError(
            f"checkpoint `{folder}`",
            "a new folder, an empty one or a checkpoint",
            f"one with {got}",
            fix,
        )


def _replace(folder: Path, fresh: Path, old: Path) -> None:
    """Moves a new folder to the place of the present one, which gets the name `old`."""
    while True:
        if folder.exists() and any(folder.iterdir()):
            os.replace(folder, old)
        try:
            os.replace(fresh, folder)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        shutil.rmtree(
            old, ignore_errors=True
        )  # another save was faster, and what it wrote is newer
    table_files.sync_folder(folder.parent)


def _whole_one(folder: str | Path) -> Path:
    """Finds the folder of the last complete checkpoint: the given one, or the one that an interrupted save was replacing.

    Deletes what killed saves have left, if nobody needs it.
    """
    folder = a_path("checkpoint, folder", folder).resolve()
    sweep(folder)
    if _has_manifest(folder):
        return folder
    before = [path for path in _replaced_folders(folder) if _has_manifest(path)]
    whole = [path for path in before if _is_whole(path)]
    return max(whole or before, key=_saved_at, default=folder)


def sweep(folder: Path) -> None:
    """Deletes the leftovers of killed saves to this folder: `.new`, and also `.old` once its replacement is complete.

    Args:
      folder: What `save` was writing.
    """

    def remove(token: str) -> None:
        shutil.rmtree(_folders_beside(folder, token, "new"), ignore_errors=True)
        if _is_whole(folder):
            shutil.rmtree(_folders_beside(folder, token, "old"), ignore_errors=True)

    leftovers.sweep(folder.parent, f"{folder.name}.", remove)


def _replaced_folders(folder: Path) -> list[Path]:
    """Folders that were in this folder's place before."""
    name = re.compile(re.escape(folder.name) + r"\.[0-9a-f]{8}\.old")
    result = []
    for path in folder.parent.glob("*.old"):
        if name.fullmatch(path.name):
            result.append(path)
    return result


def _is_whole(folder: Path) -> bool:
    """Tells whether all files of a checkpoint exist with the right sizes."""
    try:
        for part in _parts(folder):
            table_files.check_files(part, table_files.read_manifest(part))
    except TableError:
        return False
    return True


def _parts(folder: Path) -> list[Path]:
    """The folders of a checkpoint: of the dense part, and of each table.

    Raises:
      TableError: If the dense part's manifest can't be read.
    """
    return [
        folder / _DENSE,
        *(folder / _table(number) for number in range(len(_facts(folder)["tables"]))),
    ]


def _has_manifest(folder: Path) -> bool:
    return (folder / _DENSE / table_files.MANIFEST).is_file()


def _saved_at(folder: Path) -> int:
    return (folder / _DENSE / table_files.MANIFEST).stat().st_mtime_ns


def _folders_beside(folder: Path, token: str, ending: str) -> Path:
    return folder.with_name(f"{folder.name}.{token}.{ending}")


def _table(number: int) -> str:
    return f"table-{number}"
