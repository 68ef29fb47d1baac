"""A runner in files: dense variables and shared optimizer state in one folder, each table in one of its own.

Every file has a checksum, and nothing is believed before all of it was read. A save that is cut off leaves the last whole one,
be it under a name beside the folder's. What is no checkpoint is not touched.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from ampjax.checks import a_path
from ampjax.errors import DataError
from ampjax.optim.rows import split_rows
from ampjax.optim.rule import RowRule
from ampjax.parallel import keys
from ampjax.parallel.paths import by_path, names
from ampjax.sparse import store
from ampjax.sparse.axes import LEADING, from_table, table_shape, to_table
from ampjax.sparse.table import Table

Tree = Any
Axes = Mapping[str, Sequence[int]]
_DENSE = "dense"
_PARAMS = "params/"


@dataclass(frozen=True)
class Saved:
    """What was read.

    Args:
      step: Steps that had been taken.
      params: Dense parameters.
      state: Shared optimizer state.
      tables: By path, as many copies as were asked for.
      notes: What the runner noted, in JSON's types, if it did.
    """

    step: int
    params: Tree
    state: Tree
    tables: Mapping[str, list[Table]]
    notes: Mapping[str, Any] | None


class Like(NamedTuple):
    """What a table is loaded as, where there is no table yet.

    Args:
      rule: The optimizer's rule for its rows.
      settings: Its settings, in place of the saved ones.
      shape: Its shape `(rows, *row shape)`.
    """

    rule: RowRule
    settings: Mapping[str, Any]
    shape: tuple[int, ...]


def save(
    folder: str | Path,
    step: int,
    params: Tree,
    state: Tree,
    tables: Mapping[str, Table],
    notes: Mapping[str, Any] | None = None,
    *,
    axes: Axes | None = None,
) -> None:
    """Writes everything; what the folder held before is replaced in one go.

    Args:
      folder: Where to.
      step: Steps taken so far.
      params: Dense parameters, None at tables.
      state: Shared optimizer state.
      tables: By path.
      notes: What the runner wants to know again, in JSON's types.
      axes: By path, for tables that have other axes than their parameters (see `ampjax.sparse.axes`).

    Raises:
      SettingsError: If the folder is no path.
      DataError: If the folder holds anything else, or is the one in which the program runs.
    """
    folder = a_path("checkpoint, folder", folder).resolve()
    _check_place(folder)
    fresh = folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.new")
    for number, table in enumerate(tables.values()):
        table.save(fresh / f"table-{number}")
    leaves = [keys.data_of(leaf) for leaf in jax.tree.leaves((params, state))]
    facts = {"step": step, "tables": list(tables), "leaves": _described(params, state), "notes": notes}
    facts["axes"] = _listed(axes or {})
    store.save(fresh / _DENSE, facts, iter([]), leaves)
    _replace(folder, fresh)


def steps(folder: str | Path, params: Tree) -> int:
    """How many steps had been taken; checks that the parameters are a model's, without reading them.

    Args:
      folder: What `save` wrote.
      params: Parameters like those that were saved, tables among them.

    Raises:
      SettingsError: If the folder is no path.
      DataError: If what was saved is of another model.
      TableError: If there is no manifest, or it was altered.
    """
    folder = _whole_one(folder)
    facts = store.read_manifest(folder / _DENSE)
    shapes = {path.removeprefix(_PARAMS): shape for path, _, shape in facts["leaves"] if path.startswith(_PARAMS)}
    known = names(params)
    for number, key in enumerate(facts["tables"]):
        shapes[known.get(key, key)] = store.read_manifest(folder / f"table-{number}")["shape"]
    axes = {known.get(key, key): own for key, own in _axes(facts).items()}
    wanted = {path: np.shape(keys.data_of(leaf)) for path, leaf in by_path(params).items()}
    wanted = {path: list(table_shape(shape, axes.get(path, LEADING))) for path, shape in wanted.items()}
    _check(folder, "parameters", sorted(wanted.items()), sorted(shapes.items()))
    return facts["step"]


def whole(folder: str | Path, params: Tree, tx: optax.GradientTransformation) -> tuple[Tree, Tree]:
    """Parameters and optimizer state as the single-device program has them.

    Args:
      folder: What `save` wrote.
      params: Parameters like those that were saved.
      tx: The transform that they were trained with.

    Raises:
      SettingsError: If the folder is no path.
      DataError: If what was saved is of another model.
      TableError: If files are missing, cut off or altered, or the transform is not row-wise on what was a table.
    """
    facts = store.read_manifest(_whole_one(folder) / _DENSE)
    tables, axes = facts["tables"], _axes(facts)
    if not tables:
        saved = load(folder, params, tx.init(params), {})
        return saved.params, saved.state
    leaves = {key: leaf for key, leaf in zip(names(params), jax.tree.leaves(params), strict=True)}
    turned = [to_table(leaf, axes.get(key, LEADING)) for key, leaf in leaves.items()]
    split = split_rows(tx, jax.tree.unflatten(jax.tree.structure(params), turned), tables, axes)
    dense, _ = split.params.split(params)
    shapes = {key: np.shape(leaf) for key, leaf in zip(leaves, turned, strict=True)}
    like = {key: [Like(split.rules[key], {}, shapes[key])] for key in tables if key in shapes}
    saved = load(folder, dense, split.init(dense), like, axes)

    def as_leaves(path: str, tables: Sequence[Any]) -> list[Any]:
        return [from_table(table, np.shape(leaves[path]), axes.get(path, LEADING)) for table in tables]

    rows = {path: as_leaves(path, [own.dense()]) for path, (own,) in saved.tables.items()}
    states = {path: as_leaves(path, own.opt_state) for path, (own,) in saved.tables.items()}
    return (
        split.params.fill(jax.tree.leaves(saved.params), rows),
        split.state.fill(jax.tree.leaves(saved.state), states),
    )


def load(
    folder: str | Path,
    params: Tree,
    state: Tree,
    like: Mapping[str, Sequence[Table | Like]],
    axes: Axes | None = None,
) -> Saved:
    """Reads everything and checks it against the model; changes nothing.

    Args:
      folder: What `save` wrote.
      params: Dense parameters like those that were saved.
      state: Shared optimizer state, likewise.
      like: By path a model's tables: how many copies there are, and how they are split and placed.
      axes: As for `save`.

    Raises:
      SettingsError: If the folder is no path.
      DataError: If what was saved is of another model.
      TableError: If files are missing, cut off or altered.
    """
    folder = _whole_one(folder)
    facts = store.read_manifest(folder / _DENSE)
    _check(folder, "tables", list(like), facts.get("tables"))
    _check(folder, "axes of rows", sorted(_listed(axes or {}).items()), sorted(_axes(facts).items()))
    _check(folder, "dense leaves", _described(params, state), facts.get("leaves"))
    _, leaves = store.read_arrays(folder / _DENSE, facts)
    tables = {
        path: [_load_table(folder / f"table-{number}", path, own) for own in copies]
        for number, (path, copies) in enumerate(like.items())
    }
    first, structure = jax.tree.flatten((params, state))
    dense, shared = jax.tree.unflatten(structure, map(keys.like, first, leaves))
    return Saved(facts["step"], dense, shared, tables, facts.get("notes"))


def _axes(facts: Mapping[str, Any]) -> dict[str, list[int]]:
    """By path the axes of rows, for tables that have other axes than their parameters. Older checkpoints have none."""
    return facts.get("axes") or {}


def _listed(axes: Axes) -> dict[str, list[int]]:
    """As JSON knows them."""
    return {path: list(own) for path, own in axes.items()}


def _load_table(folder: Path, path: str, like: Table | Like) -> Table:
    saved = tuple(store.read_manifest(folder)["shape"])
    if saved != like.shape:
        fix = "Restore into a runner of the same model: a table has as many rows as when it was saved."
        raise DataError(f"checkpoint `{folder.parent}`, table `{path}`", f"shape {like.shape}", f"{saved}", fix)
    return Table.load(folder, like.rule, **like.settings)


def _described(params: Tree, state: Tree) -> list[list[Any]]:
    """Path, dtype and shape of every leaf, as JSON knows them."""
    leaves = by_path(jax.tree.map(keys.data_of, {"params": params, "state": state}))
    return [[path, str(data.dtype), list(data.shape)] for path, data in leaves.items()]


def _check(folder: Path, what: str, wanted: Sequence[Any], came: Any) -> None:
    if came != wanted:
        missing = [entry for entry in wanted if entry not in (came or [])]
        foreign = [entry for entry in came or [] if entry not in wanted]
        raise DataError(
            f"checkpoint `{folder}`, {what}",
            f"{missing or wanted}",
            f"{foreign or came}",
            "Restore into the same model with the same optimizer and choice of tables.",
        )


def _check_place(folder: Path) -> None:
    """Raises unless a folder may be replaced: it is not there yet, is empty or holds a checkpoint and nothing else.

    Raises:
      DataError: If it holds something else, or is the one in which the program runs.
    """
    fix = "Give a folder of its own."
    if Path.cwd().is_relative_to(folder):
        raise DataError(f"checkpoint `{folder}`", "a folder that can be replaced", "the working directory's", fix)
    if folder.exists() and not folder.is_dir():
        raise DataError(f"checkpoint `{folder}`", "a folder", "a file", fix)
    inside = sorted(folder.iterdir()) if folder.exists() else []
    foreign = [path.name for path in inside if not (path / store.MANIFEST).is_file()]
    if inside and (foreign or not (folder / _DENSE).exists()):
        got = ", ".join(foreign[:4] or [path.name for path in inside[:4]])
        raise DataError(f"checkpoint `{folder}`", "a new folder, an empty one or a checkpoint", f"one with {got}", fix)


def _replace(folder: Path, fresh: Path) -> None:
    """Puts a new folder in the place of an old one."""
    if folder.exists():
        os.replace(folder, folder.with_name(f"{folder.name}.{secrets.token_hex(4)}.old"))
    os.replace(fresh, folder)
    for old in _replaced(folder):
        shutil.rmtree(old, ignore_errors=True)


def _whole_one(folder: str | Path) -> Path:
    """The folder, or what it was before a save that was cut off between two names."""
    folder = a_path("checkpoint, folder", folder).resolve()
    return folder if folder.exists() else next(iter(_replaced(folder)), folder)


def _replaced(folder: Path) -> list[Path]:
    """What stood in a folder's place before."""
    name = re.compile(re.escape(folder.name) + r"\.[0-9a-f]{8}\.old")
    return [path for path in folder.parent.glob("*.old") if name.fullmatch(path.name)]
