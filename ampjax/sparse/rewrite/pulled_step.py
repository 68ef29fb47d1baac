"""The step of a single-device loss function on pulled rows (Parallax §4.2, the transformation of the user's graph).

A table never enters the step. Before it, a small program tells which rows the step reads; the step gets those rows, and where
each read finds its own among them; it gives back gradients of the rows. No array with the table's rows is made on the way,
forward or backward, unless the user's program makes one of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.errors import ParameterError
from ampjax.jaxprs import primitives
from ampjax.sparse.detection.loss_jaxpr import (
    Leaf,
    LossFn,
    MappedAxes,
    TracedLoss,
    Tree,
    abstract,
    signature,
    trace_loss,
)
from ampjax.sparse.detection.row_axes import LEADING, from_table, table_shape, to_table
from ampjax.sparse.rewrite import input_checks
from ampjax.sparse.rewrite.split_loss import SplitLoss, make_split_loss
from ampjax.sparse.rewrite.stacks import Stack

MAX_SHAPES = 32
"""Batch shapes whose traces a program keeps."""


@dataclasses.dataclass(frozen=True)
class SparseProgram:
    """A loss function on pulled rows. All its functions are pure and may be jitted, differentiated or mapped over devices.

    Paths are those of `jax.tree_util.keystr`. *Dense parameters* are the parameters with None at the sparse leaves.
    Batches of other sizes than the first are traced when they first come.

    Args:
      loss_fn: The single-device loss function.
      params: The parameters' shapes and dtypes.
      tables: By table its shape and dtype; rows lead (see `ampjax.sparse.detection.row_axes`). A table of one leaf has the leaf's path as its name.
      axes: By path of a sparse leaf, the axes along which its rows are counted.
      batch: The first batch's shapes and dtypes.
      mapped: Names and sizes of the axes over which its functions are mapped; `ids` need not be.
      stacks: By table the leaves whose rows it holds.
    """

    loss_fn: LossFn
    params: Tree
    tables: Mapping[str, Leaf]
    axes: Mapping[str, tuple[int, ...]]
    batch: Tree
    mapped: MappedAxes
    stacks: Mapping[str, Stack]
    _splits: dict[Hashable, SplitLoss] = dataclasses.field(
        default_factory=dict, repr=False, compare=False
    )

    def ids(
        self,
        dense_params: Tree,
        batch: Tree,
    ) -> dict[str, jax.Array]:
        """The row ids that a step reads, in the order of the program's reads, duplicates included.

        They depend on the batch and on integer parameters only. Ids that a read clips are clipped here. An id that reads no
        row (it is outside the table and filled, or its branch is not taken) is the table's number of rows.

        Args:
          dense_params: The parameters, None at sparse leaves.
          batch: A batch.

        Returns:
          By table, int32 `[n]`.

        Raises:
          ParameterError: If the dense parameters don't fit.
          DataError: If the batch has another structure, other dtypes or ranks than the first one.
        """
        split = self.split_loss(batch)
        leaves = input_checks.dense_leaves(self.params, self.axes, dense_params)
        return split.ids([*leaves, *jax.tree.leaves(batch)])

    def n_ids(self, batch: Tree) -> dict[str, int]:
        """The number of ids that a step reads of each table, duplicates counted, from the batch's shapes alone.

        Args:
          batch: A batch, or its shapes and dtypes.
        """
        split = self.split_loss(batch)
        return {table: split.n_ids(table) for table in self.tables}

    def loss(
        self,
        dense_params: Tree,
        rows: Mapping[str, Any],
        batch: Tree,
        inverse: Mapping[str, Any] | None = None,
    ) -> Any:
        """The loss function's result, computed from pulled rows.

        Args:
          dense_params: The parameters, None at sparse leaves.
          rows: By table, `[m, *row]`. In a narrower dtype than the table's they are widened first.
          batch: A batch.
          inverse: By table, int `[n]`: where in `rows` each of `ids` lies. Without it, rows are those of `ids`, one by one.

        Returns:
          The loss, or `(loss, aux)`.

        Raises:
          ParameterError: If the dense parameters or the rows don't fit.
          DataError: If the batch does not fit the first one, or `inverse` the ids.
        """
        return self._loss(
            input_checks.dense_leaves(self.params, self.axes, dense_params), rows, batch, inverse
        )

    def value_and_grad(
        self,
        dense_params: Tree,
        rows: Mapping[str, Any],
        batch: Tree,
        inverse: Mapping[str, Any] | None = None,
    ) -> tuple[Any, tuple[Tree, dict[str, jax.Array]]]:
        """The loss and its gradients, like `jax.value_and_grad`.

        Args:
          dense_params: As for `loss`.
          rows: As for `loss`.
          batch: As for `loss`.
          inverse: As for `loss`.

        Returns:
          What the loss function returns (`loss` or `(loss, aux)`), and the gradients: a tree like `dense_params` with None
          also at leaves that are not floats; and by table the gradients of `rows`, of their shapes and dtypes. Rows that occur
          several times get the sum; rows that are not read, and padding, get zero.

        Raises:
          ParameterError: As `loss` does.
          DataError: As `loss` does.
        """
        leaves = input_checks.dense_leaves(self.params, self.axes, dense_params)
        floats = {}
        for i, x in enumerate(leaves):
            if x is not None and primitives.is_inexact(jnp.result_type(x)):
                floats[i] = x

        def loss(
            floats: dict[int, Any],
            rows: dict[str, Any],
        ) -> Any:
            return self._loss(
                [floats.get(i, x) for i, x in enumerate(leaves)],
                rows,
                batch,
                inverse,
            )

        step = jax.value_and_grad(
            loss,
            argnums=(0, 1),
            has_aux=self.split_loss(batch).traced.has_aux,
        )
        out, (grads, row_grads) = step(floats, dict(rows))
        treedef = jax.tree.structure(self.params)
        return out, (
            jax.tree.unflatten(
                treedef,
                [grads.get(i) for i in range(len(leaves))],
            ),
            row_grads,
        )

    def split(
        self,
        params: Tree,
    ) -> tuple[Tree, dict[str, Any]]:
        """Splits parameters, or a tree of their structure, into dense parameters and the sparse leaves' rows.

        Args:
          params: The tree.

        Returns:
          The tree with None at sparse leaves, and by path the sparse leaves as tables.

        Raises:
          ParameterError: If the structure is not the parameters'.
        """
        whole = input_checks.by_path(self.params, params)
        dense = []
        for path, leaf in whole.items():
            dense.append(None if path in self.axes else leaf)
        tables = {}
        for path, axes in self.axes.items():
            tables[path] = to_table(whole[path], axes)
        return jax.tree.unflatten(jax.tree.structure(self.params), dense), tables

    def join(
        self,
        dense_params: Tree,
        tables: Mapping[str, Any],
    ) -> Tree:
        """Puts parameters together again; the inverse of `split`.

        Args:
          dense_params: The parameters, None at sparse leaves.
          tables: By path, all sparse leaves as tables.

        Raises:
          ParameterError: If a table is missing, or the structure is not the parameters'.
        """
        missing = [path for path in self.axes if path not in tables]
        if missing:
            raise ParameterError(
                "join", f"a table for `{missing[0]}`", f"{list(tables)}", "Pass every sparse leaf."
            )
        whole = input_checks.by_path(self.params, dense_params)
        shapes = (leaf.shape for leaf in jax.tree.leaves(self.params))
        joined = []
        for (path, leaf), shape in zip(whole.items(), shapes, strict=True):
            joined.append(
                from_table(tables[path], shape, self.axes[path]) if path in self.axes else leaf
            )
        return jax.tree.unflatten(jax.tree.structure(self.params), joined)

    def as_tables(self, params: Tree) -> Tree:
        """Parameters with tables in the places of the sparse leaves, for which an optimizer of rows is made."""
        dense, tables = self.split(params)
        leaves = []
        for path, leaf in input_checks.by_path(self.params, dense).items():
            leaves.append(tables.get(path, leaf))
        return jax.tree.unflatten(jax.tree.structure(self.params), leaves)

    def as_leaves(
        self,
        path: str,
        tables: Sequence[Any],
    ) -> list[Any]:
        """Gives arrays of a table's rows, such as an optimizer's state, the leaf's axes.

        Args:
          path: The sparse leaf.
          tables: Arrays like its table.
        """
        shape = input_checks.by_path(self.params, self.params)[path].shape
        return [from_table(table, shape, self.axes[path]) for table in tables]

    @property
    def members(self) -> dict[str, tuple[str, ...]]:
        """The paths of the leaves in each table, by table."""
        return {table: stack.paths for table, stack in self.stacks.items()}

    @property
    def transposed(self) -> dict[str, tuple[int, ...]]:
        """By path the axes along which rows are counted, for tables that have other axes than their leaves."""
        result = {}
        for path, axes in self.axes.items():
            if axes != LEADING:
                result[path] = axes
        return result

    def split_loss(self, batch: Tree) -> SplitLoss:
        """Splits the loss function in two for batches of this one's shapes, and traces it for the first such batch.

        Args:
          batch: A batch, or its shapes and dtypes.

        Raises:
          DataError: If the batch has another structure, other dtypes or ranks than the first one.
          ParameterError: If a leaf is not sparse for batches of these shapes.
        """
        key = signature(batch)
        if key not in self._splits:
            input_checks.check_batch(self.batch, batch)
            if len(self._splits) >= MAX_SHAPES:
                del self._splits[next(iter(self._splits))]
            traced = trace_loss(self.loss_fn, self.params, batch, self.mapped)
            self._splits[key] = make_split_loss(traced, self.axes, self.stacks)
        return self._splits[key]

    def split_of(self, traced: TracedLoss) -> SplitLoss:
        """Splits a traced loss function in two, or returns the known split of one of this program's own traces.

        Args:
          traced: The loss function, or what was made of it.

        Raises:
          ParameterError: If a leaf is not sparse in it.
        """
        known = (split for split in self._splits.values() if split.traced is traced)
        return next(known, None) or make_split_loss(traced, self.axes, self.stacks)

    def _loss(
        self,
        leaves: Sequence[Any],
        rows: Mapping[str, Any],
        batch: Tree,
        inverse: Mapping[str, Any] | None,
    ) -> Any:
        split = self.split_loss(batch)
        n_ids = self.n_ids(batch)
        if inverse is None:
            inverse = {}
            for path, n in n_ids.items():
                inverse[path] = jnp.arange(n, dtype=jnp.int32)
        for name, table in self.tables.items():
            input_checks.check_rows(
                table,
                rows.get(name),
                inverse.get(name),
                n_ids[name],
            )
        wide = {}
        for name, table in self.tables.items():
            wide[name] = jnp.asarray(rows[name]).astype(table.dtype)
        return split.loss(
            [*leaves, *jax.tree.leaves(batch)],
            wide,
            inverse,
        )


def rewrite(
    loss_fn: LossFn,
    params: Tree,
    batch: Tree,
    sparse: Sequence[str] | Mapping[str, tuple[int, ...]] | None = None,
    mapped: MappedAxes = (),
    stacks: Mapping[str, Sequence[str]] | None = None,
    traced: TracedLoss | None = None,
) -> SparseProgram:
    """Rewrites a single-device loss function into a step on pulled rows.

    Losses, aux, and gradients are those of `jax.value_and_grad(loss_fn)`: also for ids outside a table, by the rule of each read
    (see `ampjax.sparse.detection.row_reads`).

    Args:
      loss_fn: `loss_fn(params, batch) -> loss` or `(loss, aux)`.
      params: The parameters, or their shapes and dtypes.
      batch: A batch, or its shapes and dtypes.
      sparse: The leaves to be pulled, by path; or for each the axes along which its rows are counted. All that `find_sparse` finds, where
        it is None.
      mapped: Names and sizes of the axes over which the step will be mapped.
      stacks: By table the leaves whose rows it holds, by path, one after the other; they have rows of one shape and dtype. None: each leaf is
        a table.
      traced: The loss function traced for this batch, if it has been.

    Returns:
      The loss function on pulled rows.

    Raises:
      ParameterError: If a path is unknown or names a dense leaf, or as `find_sparse` does.
      DataError: As `find_sparse` does.
      SettingsError: As `find_sparse` does.

    >>> import numpy as np
    >>> def loss(params, ids):
    ...     return jnp.sum(params["table"][ids] @ params["w"])
    >>> params = {"table": np.ones((100, 2), np.float32), "w": np.ones(2, np.float32)}
    >>> program = rewrite(loss, params, np.array([5, 7, 5]))
    >>> dense, tables = program.split(params)
    >>> ids = program.ids(dense, np.array([5, 7, 5]))["['table']"]
    >>> rows = {"['table']": tables["['table']"][ids]}
    >>> value, (dense_grads, row_grads) = program.value_and_grad(dense, rows, np.array([5, 7, 5]))
    >>> ids.tolist(), float(value), row_grads["['table']"].shape
    ([5, 7, 5], 6.0, (3, 2))
    """
    traced = traced or trace_loss(loss_fn, params, batch, mapped)
    split = make_split_loss(traced, sparse, stacks)
    leaves = {}
    for i, leaf in enumerate(traced.leaves):
        if i in split.axes:
            leaves[leaf.path] = (leaf, split.axes[i])
    tables = {}
    for name, stack in split.stacks.items():
        tables[name] = _table(
            name,
            stack,
            *leaves[stack.paths[0]],
        )
    axes = {path: leaf_axes for path, (_, leaf_axes) in leaves.items()}
    program = SparseProgram(
        loss_fn,
        abstract(params),
        tables,
        axes,
        abstract(batch),
        mapped,
        split.stacks,
    )
    program._splits[signature(batch)] = split
    return program


def _table(
    name: str,
    stack: Stack,
    leaf: Leaf,
    axes: tuple[int, ...],
) -> Leaf:
    return Leaf(
        name,
        (stack.n_rows, *table_shape(leaf.shape, axes)[1:]),
        leaf.dtype,
    )
