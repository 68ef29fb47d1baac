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

from ampjax.errors import DataError, ParameterError
from ampjax.sparse import jaxprs
from ampjax.sparse.detect import analyse
from ampjax.sparse.plan import Plan, make_plan
from ampjax.sparse.trace import Leaf, LossFn, Traced, Tree, abstract, signature, trace_loss

MAX_PLANS = 32
"""Batch shapes whose traces a program keeps."""


@dataclasses.dataclass(frozen=True)
class SparseProgram:
    """A loss function on pulled rows. All its functions are pure and may be jitted, differentiated or mapped over devices.

    Paths are those of `jax.tree_util.keystr`. *Dense parameters* are the parameters with None at the sparse leaves.
    Batches of other sizes than the first are traced when they first come.

    Args:
      loss_fn: The single-device loss function.
      params: The parameters' shapes and dtypes.
      tables: By path, the shape and dtype of each sparse leaf, in the parameters' order.
      batch: The first batch's shapes and dtypes.
    """

    loss_fn: LossFn
    params: Tree
    tables: Mapping[str, Leaf]
    batch: Tree
    _plans: dict[Hashable, Plan] = dataclasses.field(default_factory=dict, repr=False, compare=False)

    def ids(self, dense_params: Tree, batch: Tree) -> dict[str, jax.Array]:
        """The row ids that a step reads, by path: int32 `[n]`, in the order in which the program reads, duplicates and all.

        They depend on the batch and on integer parameters only. Ids that a read clips are clipped here. An id that reads no
        row (it is outside the table and filled, or its branch is not taken) is the table's number of rows.

        Raises:
          ParameterError: If the dense parameters don't fit.
          DataError: If the batch has another structure, or other dtypes, than the first one.
        """
        plan = self.plan(batch)
        ids = plan.ids([*self._leaves(dense_params), *jax.tree.leaves(batch)])
        return {plan.traced.leaves[leaf].path: found for leaf, found in ids.items()}

    def n_ids(self, batch: Tree) -> dict[str, int]:
        """How many ids a step reads of each table: the n of `ids`. It depends on the batch's shapes only."""
        plan = self.plan(batch)
        return {plan.traced.leaves[leaf].path: plan.n_ids(leaf) for leaf in plan.n_rows}

    def loss(
        self, dense_params: Tree, rows: Mapping[str, Any], batch: Tree, inverse: Mapping[str, Any] | None = None
    ) -> Any:
        """What the loss function returns, out of pulled rows.

        Args:
          dense_params: The parameters, None at sparse leaves.
          rows: By path, `[m, *row]`. In a narrower dtype than the table's they are widened first.
          batch: A batch.
          inverse: By path, int `[n]`: where in `rows` each of `ids` lies. Without it, rows are those of `ids`, one by one.

        Raises:
          ParameterError: If the dense parameters or the rows don't fit.
          DataError: If the batch does not fit the first one, or `inverse` the ids.
        """
        return self._loss(self._leaves(dense_params), rows, batch, inverse)

    def value_and_grad(
        self, dense_params: Tree, rows: Mapping[str, Any], batch: Tree, inverse: Mapping[str, Any] | None = None
    ) -> tuple[Any, tuple[Tree, dict[str, jax.Array]]]:
        """The loss and its gradients, like `jax.value_and_grad`.

        Args:
          dense_params: As for `loss`.
          rows: As for `loss`.
          batch: As for `loss`.
          inverse: As for `loss`.

        Returns:
          What the loss function returns (`loss` or `(loss, aux)`), and the gradients: a tree like `dense_params` with None
          also at leaves that are not floats; and by path the gradients of `rows`, of their shapes and dtypes. Rows that occur
          several times get the sum; rows that are not read, and padding, get zero.

        Raises:
          ParameterError: As `loss` does.
          DataError: As `loss` does.
        """
        leaves = self._leaves(dense_params)
        floats = {i: x for i, x in enumerate(leaves) if x is not None and jaxprs.is_inexact(jnp.result_type(x))}
        has_aux = self.plan(batch).traced.has_aux

        def loss(floats: dict[int, Any], rows: dict[str, Any]) -> Any:
            return self._loss([floats.get(i, x) for i, x in enumerate(leaves)], rows, batch, inverse)

        out, (grads, row_grads) = jax.value_and_grad(loss, argnums=(0, 1), has_aux=has_aux)(floats, dict(rows))
        tree = jax.tree.structure(self.params)
        return out, (jax.tree.unflatten(tree, [grads.get(i) for i in range(len(leaves))]), row_grads)

    def split(self, params: Tree) -> tuple[Tree, dict[str, Any]]:
        """Parameters, or a tree like them, as the dense ones, and the sparse leaves by path.

        Raises:
          ParameterError: If the structure is not the parameters'.
        """
        leaves, names = self._flatten(params), self._paths()
        dense = [None if name in self.tables else leaf for name, leaf in zip(names, leaves, strict=True)]
        whole = dict(zip(names, leaves, strict=True))
        return jax.tree.unflatten(jax.tree.structure(self.params), dense), {name: whole[name] for name in self.tables}

    def join(self, dense_params: Tree, tables: Mapping[str, Any]) -> Tree:
        """The parameters, out of what `split` gave.

        Raises:
          ParameterError: If a table is missing, or the structure is not the parameters'.
        """
        missing = [path for path in self.tables if path not in tables]
        if missing:
            raise ParameterError("join", f"a table for `{missing[0]}`", f"{list(tables)}", "Pass every sparse leaf.")
        leaves = zip(self._paths(), self._flatten(dense_params), strict=True)
        joined = [tables[path] if path in self.tables else leaf for path, leaf in leaves]
        return jax.tree.unflatten(jax.tree.structure(self.params), joined)

    def plan(self, batch: Tree) -> Plan:
        """The program for batches of this one's shapes; traced when they first come.

        Raises:
          DataError: If the batch has another structure, or other dtypes or ranks, than the first one.
          ParameterError: If a leaf is not sparse for batches of these shapes.
        """
        key = signature(batch)
        if key not in self._plans:
            _check_batch(self.batch, batch)
            if len(self._plans) >= MAX_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = _plan(trace_loss(self.loss_fn, self.params, batch), tuple(self.tables))
        return self._plans[key]

    def _loss(
        self, leaves: Sequence[Any], rows: Mapping[str, Any], batch: Tree, inverse: Mapping[str, Any] | None
    ) -> Any:
        plan = self.plan(batch)
        number = {leaf.path: i for i, leaf in enumerate(plan.traced.leaves)}
        if inverse is None:
            inverse = {path: jnp.arange(plan.n_ids(number[path]), dtype=jnp.int32) for path in self.tables}
        for path, table in self.tables.items():
            _check_rows(table, rows, inverse, plan.n_ids(number[path]))
        wide = {number[path]: jnp.asarray(rows[path]).astype(table.dtype) for path, table in self.tables.items()}
        where = {number[path]: inverse[path] for path in self.tables}
        return plan.loss([*leaves, *jax.tree.leaves(batch)], wide, where)

    def _paths(self) -> list[str]:
        return [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(self.params)[0]]

    def _flatten(self, params: Tree) -> list[Any]:
        try:
            return jax.tree.structure(self.params).flatten_up_to(params)
        except (ValueError, TypeError) as error:
            raise ParameterError(
                "parameters",
                f"the structure {jax.tree.structure(self.params)}, None at sparse leaves",
                f"{jax.tree.structure(params)}",
                "Take them from the program's `split`.",
            ) from error

    def _leaves(self, dense_params: Tree) -> list[Any]:
        """The leaves of dense parameters, None at the sparse ones.

        Raises:
          ParameterError: If structure, shapes or dtypes are not those of the first parameters.
        """
        leaves = self._flatten(dense_params)
        for path, wanted, leaf in zip(self._paths(), jax.tree.leaves(self.params), leaves, strict=True):
            expected = "None, as the leaf is sparse" if path in self.tables else jaxprs.shape_text(wanted)
            got = "None" if leaf is None else _text(leaf)
            if expected != got and not (leaf is None and path in self.tables):
                raise ParameterError(f"parameter `{path}`", expected, got, "Take them from the program's `split`.")
        return leaves


def rewrite(loss_fn: LossFn, params: Tree, batch: Tree, sparse: Sequence[str] | None = None) -> SparseProgram:
    """Rewrites a single-device loss function into a step on pulled rows.

    Losses, aux, and gradients are those of `jax.value_and_grad(loss_fn)`: also for ids outside a table, by the rule of each read
    (see `ampjax.sparse.reads`).

    Args:
      loss_fn: `loss_fn(params, batch) -> loss` or `(loss, aux)`.
      params: The parameters, or their shapes and dtypes.
      batch: A batch, or its shapes and dtypes.
      sparse: The leaves to be pulled, by path. All that `find_sparse` finds, where it is None.

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
    traced = trace_loss(loss_fn, params, batch)
    variables, _ = analyse(traced, min_rows=2)
    found = {v.path for v in variables if v.sparse}
    wanted = found if sparse is None else set(sparse)
    known = {leaf.path: leaf for leaf in traced.leaves}
    for path in wanted:
        if path not in known:
            raise ParameterError("sparse", f"paths among {list(known)}", f"`{path}`", "Use a path of the parameters.")
    tables = {path: leaf for path, leaf in known.items() if path in wanted}
    program = SparseProgram(loss_fn, abstract(params), tables, abstract(batch))
    program._plans[signature(batch)] = _plan(traced, tuple(tables))
    return program


def _plan(traced: Traced, paths: Sequence[str]) -> Plan:
    variables, flow = analyse(traced, min_rows=2)
    for variable in variables:
        if variable.path in paths and not variable.sparse:
            raise ParameterError(
                f"sparse, `{variable.path}`", "a sparse leaf", f"a dense one: {variable.reason}", "Leave it dense."
            )
    return make_plan(traced, flow, [i for i, v in enumerate(variables) if v.path in paths])


def _check_batch(first: Tree, batch: Tree) -> None:
    wanted, came = jax.tree.structure(first), jax.tree.structure(batch)
    if wanted != came:
        raise DataError(
            "batch", f"the structure {wanted} of the first batch", f"{came}", "Give batches of one structure."
        )
    leaves, _ = jax.tree_util.tree_flatten_with_path(first)
    for (path, old), new in zip(leaves, jax.tree.leaves(batch), strict=True):
        if jnp.result_type(old) != jnp.result_type(new) or jnp.ndim(old) != jnp.ndim(new):
            raise DataError(
                f"batch, leaf `{jax.tree_util.keystr(path)}`",
                f"{_text(old)} but for its sizes, as in the first batch",
                _text(new),
                "Give batches of one kind.",
            )


def _check_rows(table: Leaf, rows: Mapping[str, Any], inverse: Mapping[str, Any], n: int) -> None:
    given = rows.get(table.path)
    shape = "[m, " + ", ".join(map(str, table.shape[1:])) + "]"
    if given is None or given.ndim != len(table.shape) or given.shape[1:] != table.shape[1:]:
        got = "none" if given is None else _text(given)
        raise ParameterError(f"rows of `{table.path}`", f"shape {shape}", got, "Pull the rows of the program's `ids`.")
    where = inverse.get(table.path)
    if where is None or where.shape != (n,):
        got = "none" if where is None else f"shape {where.shape}"
        raise DataError(
            f"inverse of `{table.path}`", f"shape ({n},), one position for each id", got, "Use this batch's ids."
        )


def _text(leaf: Any) -> str:
    return jaxprs.shape_text(leaf) if hasattr(leaf, "dtype") else f"{type(leaf).__name__} {leaf!r}"
