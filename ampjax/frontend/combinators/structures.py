"""The parts of an instance beside arrays: rows of rows, and trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError


@dataclass(frozen=True, eq=False)
class Ragged:
    """Rows of rows, such as the characters of each word: all inner rows, and how many belong to each outer one.

    Args:
      values: The inner rows, one after the other: an array `[sum(sizes), ...]`, or another `Ragged` of that length.
      sizes: `[n]` integers: inner rows of each outer row.

    >>> Ragged.of([[1, 2], [], [3]])[0].tolist()
    [1, 2]
    """

    values: Any
    sizes: np.ndarray

    def __post_init__(self):
        _require_length("Ragged", self.values)
        sizes = np.asarray(self.sizes)
        are_integers = sizes.dtype.kind in "iu" or not sizes.size
        if (
            sizes.ndim != 1
            or not are_integers
            or (sizes < 0).any()
            or sizes.sum() != len(self.values)
        ):
            expected = f"sizes of rows, at least 0, that add up to the {len(self.values)} values"
            raise DataError(
                "Ragged", expected, f"{sizes.tolist()}"[:60], "Say how many values each row has."
            )

    @classmethod
    def of(
        cls,
        rows: Sequence[Any],
        dtype: Any = None,
    ) -> Ragged:
        """Makes one from lists of lists, to any depth, or from a list of arrays.

        Args:
          rows: The outer rows.
          dtype: The values' dtype; by default that of the values, int32 where there are none.

        Returns:
          The rows of rows; `values` has the dtype that was asked for.

        Raises:
          DataError: If a row is no sequence.
        """
        whole = _in_one(list(rows))
        return whole if dtype is None else whole._cast(dtype)

    def _cast(self, dtype: Any) -> Ragged:
        values = self.values
        return Ragged(
            values._cast(dtype) if isinstance(values, Ragged) else values.astype(dtype),
            self.sizes,
        )

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, at: int | slice) -> Any:
        """An outer row; or, for a slice, several."""
        ends = self._ends
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                return _pick_rows(self, range(start, stop, step))
            if start >= stop:
                return Ragged(
                    self.values[0:0],
                    self.sizes[0:0],
                )
            return Ragged(
                self.values[int(ends[start] - self.sizes[start]) : int(ends[stop - 1])],
                self.sizes[start:stop],
            )
        at = range(len(self))[at]
        return self.values[int(ends[at] - self.sizes[at]) : int(ends[at])]

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.cumsum(np.asarray(self.sizes))

    def __repr__(self) -> str:
        return f"Ragged({len(self)} rows of {int(np.sum(self.sizes))})"


def _pick_rows(rows: Ragged, numbers: Sequence[int]) -> Ragged:
    """Some outer rows, in any order."""
    picked = [rows[number] for number in numbers]
    if not picked:
        return rows[0:0]
    return _in_one(picked)


def _require_length(where: str, value: Any) -> None:
    """Checks that a column has a first axis.

    Raises:
      DataError: If not.
    """
    if not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
        expected = "arrays, with a row for each entry"
        raise DataError(
            where,
            expected,
            type(value).__name__,
            "Put them together: `np.stack`, `np.concatenate`.",
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Tree:
    """A tree as columns: a row for each node, in any order.

    A spec writes it as `amp.Tree("int32[v]", "int32[v]", "int32[v]")`: the types of parents, sides and values along one dimension; values
    may be any pytree, such as `{"word": "int32[v]"}`.

    Args:
      parent: `[v]` integers: the row of each node's parent; -1 for a root, of which there is one, or several in a forest.
      side: `[v]` integers: which child of its parent a node is, from 0.
      value: A pytree of arrays `[v, ...]`: what each node holds.

    >>> Tree.of(((1, 2), 3)).value.tolist()
    [0, 0, 1, 2, 3]
    """

    parent: Any
    side: Any
    value: Any

    @classmethod
    def of(
        cls,
        nested: Any,
        leaf: Callable[[Any], Any] = lambda x: x,
        branch: Any = 0,
    ) -> Tree:
        """Makes one from nested tuples or lists: a tuple or list is a branch, its members are its children, anything else is a leaf.

        Args:
          nested: The tree; an array can be a leaf, a list can't.
          leaf: From a leaf to its value, a pytree of numbers or arrays; by default the leaf itself.
          branch: The value of every branch, of the same structure.

        Returns:
          The tree; its root is row 0, and a branch comes before its children.

        Raises:
          DataError: If leaves and branches have values of different structures.
        """
        parent: list[int] = []
        side: list[int] = []
        values: list[Any] = []
        waiting = [(nested, -1, 0)]
        while waiting:
            node, above, place = waiting.pop()
            at = len(parent)
            is_branch = isinstance(node, tuple | list)
            parent.append(above)
            side.append(place)
            values.append(branch if is_branch else leaf(node))
            if is_branch:
                waiting += [(child, at, i) for i, child in reversed(list(enumerate(node)))]
        for each in values:
            if jax.tree.structure(each) != jax.tree.structure(values[0]):
                fix = "Give `branch` the structure that `leaf` returns."
                raise DataError(
                    "Tree.of", "values of one structure", f"{values[0]!r} and {each!r}", fix
                )
        value = jax.tree.map(
            lambda *rows: np.stack([np.asarray(row) for row in rows]),
            *values,
        )
        return cls(
            np.array(parent, np.int32),
            np.array(side, np.int32),
            value,
        )

    def children(self) -> list[list[int]]:
        """The rows of each node's children, from side 0 on.

        Returns:
          A list for each node, empty for leaves.

        Raises:
          DataError: If this is no tree: no root, a parent that is no node, or two children on one side.
        """
        parent = np.asarray(self.parent)
        side = np.asarray(self.side)
        check_trees("the tree", parent, side, np.array([len(parent)]))
        rows: list[list[int]] = [[] for _ in parent]
        for node in np.argsort(side, kind="stable").tolist():
            if parent[node] >= 0:
                rows[parent[node]].append(node)
        return rows


def check_trees(
    where: str,
    parent: np.ndarray,
    side: np.ndarray,
    sizes: np.ndarray,
) -> np.ndarray:
    """Checks that columns are trees.

    Args:
      where: What an error calls them.
      parent: `[nodes]`: parents, counted within each tree.
      side: `[nodes]`: sides.
      sizes: `[trees]`: nodes of each tree.

    Returns:
      `[nodes]`: how many children each has.

    Raises:
      DataError: Which tree is none, and why.
    """
    ends = np.cumsum(sizes)
    first = (ends - sizes).repeat(sizes)

    def refuse(tree: int, expected: str, got: str) -> None:
        raise DataError(f"{where}, instance {tree}", expected, got, "Mend `parent` and `side`.")

    def tree_of(nodes: Any) -> Any:
        return np.searchsorted(ends, nodes, side="right")

    n_roots = np.bincount(
        tree_of(np.flatnonzero(parent < 0)),
        minlength=len(sizes),
    )
    for tree in np.flatnonzero(n_roots < 1)[:1].tolist():
        refuse(tree, "a node whose parent is -1, the root", "none")
    for node in np.flatnonzero(parent >= sizes.repeat(sizes))[:1].tolist():
        tree = int(tree_of(node))
        refuse(tree, f"parents below {sizes[tree]}, the number of nodes", f"{parent[node]}")
    inner = np.flatnonzero(parent >= 0)
    above = (first + parent).take(inner)
    sides = side.take(inner)
    n_children = np.bincount(above, minlength=len(parent))
    places = (np.cumsum(n_children) - n_children).take(
        above
    ) + sides  # each child's own, if sides count up from 0
    fits = (sides >= 0) & (sides < n_children.take(above))
    if not fits.all() or (np.bincount(places, minlength=len(inner)) > 1).any():
        order = np.lexsort((sides, above))
        ranks = np.arange(len(inner)) - np.repeat(np.cumsum(n_children) - n_children, n_children)
        node = int(inner[order][np.flatnonzero(sides[order] != ranks)[0]])
        expected = f"sides 0, 1, ... below node {parent[node]}"
        refuse(int(tree_of(node)), expected, f"side {side[node]} of node {node - first[node]}")
    if not ((above > inner).all() or (above < inner).all()):  # else all ways go to one end
        up = np.arange(len(parent))
        up[inner] = above
        for _ in range(
            int(max(sizes)).bit_length()
        ):  # twice as far up each time: at the root, if there is no loop
            up = up[up]
        for node in np.flatnonzero(parent[up] >= 0)[:1].tolist():
            refuse(
                int(tree_of(node)),
                "a tree",
                f"a loop that node {node - first[node]} is in or hangs from",
            )
    return n_children


def stack(rows: Sequence[Any]) -> Any:
    """One sequence of rows, in plain JAX: an array, or a `Ragged` where rows have different lengths.

    Args:
      rows: Pytrees of arrays of one structure; at least one.
    """

    def column(*values: Any) -> Any:
        if (
            any(isinstance(value, Ragged) for value in values)
            or len({jnp.shape(value) for value in values}) > 1
        ):
            return _in_one(values)
        return jnp.stack(values)

    return jax.tree.map(column, *rows, is_leaf=is_rows)


def _in_one(rows: Sequence[Any]) -> Ragged:
    """Joins sequences to the rows of one `Ragged`; types and lengths known for empty sequences stay known."""
    for number, row in enumerate(rows):
        if not isinstance(row, list | tuple | Ragged) and not getattr(row, "ndim", 0):
            raise DataError(
                f"Ragged.of, row {number}", "a list or an array", f"{row!r}", "Give a list of rows."
            )
    return Ragged(
        _end_to_end(rows),
        np.array([len(row) for row in rows], np.int64),
    )


def _end_to_end(rows: Sequence[Any]) -> Any:
    """The elements of sequences, one after the other: an array, or a `Ragged` where elements are rows of different lengths."""
    parts = [part for row in rows if (part := _type_row(row)) is not None]
    filled = [part for part in parts if len(part)]
    if not filled:
        known = max(
            parts,
            key=_depth,
            default=np.zeros(0, np.int32),
        )
        return known[0:0]
    if (
        not any(isinstance(part, Ragged) for part in filled)
        and len({jnp.shape(part)[1:] for part in filled}) == 1
    ):
        return jnp.concatenate(filled) if _is_jax(filled) else np.concatenate(filled)
    return _in_one([part[i] for part in filled for i in range(len(part))])


def _type_row(row: Any) -> Any:
    """A sequence as an array or a `Ragged`; None for an empty list, of whose elements nothing is known."""
    if not isinstance(row, list | tuple):
        return row
    if not row:
        return None
    if (
        any(isinstance(each, list | tuple | Ragged) for each in row)
        or len({getattr(each, "shape", ()) for each in row}) > 1
    ):
        return _in_one(row)
    return jnp.stack(row) if _is_jax(row) else np.asarray(row)


def _is_jax(values: Sequence[Any]) -> bool:
    return any(isinstance(value, jax.Array) for value in values)


def _depth(part: Any) -> int:
    """Counts the lengths of a sequence."""
    if isinstance(part, Ragged):
        return 1 + _depth(part.values)
    return jnp.ndim(part)


def is_rows(value: Any) -> bool:
    """Tells whether a value is one sequence of rows of different lengths: a `Ragged`, or a list."""
    return isinstance(value, Ragged | list)


def has_values(value: Any) -> bool:
    """Tells whether an array, or rows of different lengths, have any values."""
    if isinstance(value, Ragged):
        return has_values(value.values)
    return np.size(value) > 0


def transpose_structures(rows: Any) -> Any:
    """Turns a list of structures, such as trees, into a structure of lists; returns anything else unchanged."""
    if not isinstance(rows, list) or not rows or isinstance(rows[0], list | tuple | Ragged):
        return rows
    structure = jax.tree.structure(rows[0], is_leaf=is_rows)
    if jax.tree_util.treedef_is_leaf(structure) or any(
        jax.tree.structure(row, is_leaf=is_rows) != structure for row in rows
    ):
        return rows
    return jax.tree.map(
        lambda *parts: [*parts],
        *rows,
        is_leaf=is_rows,
    )


def as_sequence(value: Any) -> Any:
    """Turns a list into an array, or into a `Ragged` for a list of rows; returns anything else unchanged."""
    if not isinstance(value, list):
        return value
    typed = _type_row(value)
    # floats could not be indices, integers can be either
    if typed is None:
        return np.zeros(0, np.int32)
    return typed


@dataclass(frozen=True, eq=False)
class Stacked(Sequence[Any]):
    """A data set as columns: a pytree like an instance, each of whose leaves holds that of all instances, one after the other.

    It is a sequence of instances; `Compiled.data` takes its columns as they are, without a look at each instance.

    Args:
      columns: A pytree: arrays `[n, ...]`, and `Ragged` of `n` rows for sequences.

    >>> data = Stacked({"words": Ragged.of([[1, 2], [3]]), "label": np.array([0, 1])})
    >>> len(data), data[0]["words"].tolist(), int(data[1]["label"])
    (2, [1, 2], 1)
    """

    columns: Any

    def __post_init__(self) -> None:
        for leaf in self._leaves():
            _require_length("Stacked", leaf)
        lengths = {len(leaf) for leaf in self._leaves()}
        if len(lengths) != 1:
            expected = "columns of one length, one entry for each instance"
            raise DataError(
                "Stacked", expected, f"lengths {sorted(lengths)}", "Let the columns fit each other."
            )

    def __len__(self) -> int:
        return len(self._leaves()[0])

    def __getitem__(self, at: Any) -> Any:
        """An instance; or, for a slice, several as columns."""
        picked = jax.tree.map(
            lambda column: column[at],
            self.columns,
            is_leaf=is_rows,
        )
        return Stacked(picked) if isinstance(at, slice) else picked

    def __repr__(self) -> str:
        return f"Stacked({len(self)} instances)"

    def _leaves(self) -> list[Any]:
        return jax.tree.leaves(self.columns, is_leaf=is_rows)
