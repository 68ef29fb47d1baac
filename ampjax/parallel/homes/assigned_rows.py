"""New rows of a variable between steps: checks of their values, and the changes in a dense variable and its optimizer state.

Rows in tables are the tables' own affair. Knows trees and the optimizer; nothing of steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from ampjax.errors import DataError, SettingsError
from ampjax.optim.row_rule import RowRule
from ampjax.optim.split_by_rows import split_rows
from ampjax.parallel.config.leaf_paths import names
from ampjax.sparse.rows.new_rows import first_states

Tree = Any


class AssignedRows(NamedTuple):
    """New values of some rows of a variable.

    Args:
      path: The variable, as `jax.tree_util.keystr` writes it.
      ids: `[n]`, int64, each once.
      values: `[n, *row]`, in its dtype.
    """

    path: str
    ids: np.ndarray
    values: np.ndarray


def path_of(params: Tree, name: str, call: str) -> str:
    """Finds the path of a variable.

    Args:
      params: The parameters.
      name: The variable, as it is written for users.
      call: The caller's name, for the error.

    Returns:
      Its path, as `jax.tree_util.keystr` writes it.

    Raises:
      SettingsError: If there is no such variable.
    """
    text = {short: path for path, short in names(params).items()}
    if name not in text:
        fix = "Take a name from the table that `explain` prints."
        raise SettingsError(f"{call}, variable", f"one of {', '.join(text)}", f"{name!r}", fix)
    return text[name]


def checked_row_ids(
    ids: Any,
    n_rows: int,
    where: str,
) -> np.ndarray:
    """Checks ids of rows.

    Args:
      ids: Integers of any shape.
      n_rows: Rows of the variable.
      where: For the error.

    Returns:
      The ids, int64.

    Raises:
      DataError: If they are no integers, or outside.
    """
    array = np.asarray(ids)
    if not array.size:
        return array.astype(np.int64)
    if not np.issubdtype(array.dtype, np.integer):
        raise DataError(where, "integers", f"{array.dtype}", "Pass `np.asarray(ids, np.int64)`.")
    outside = array[(array < 0) | (array >= n_rows)]
    if outside.size:
        fix = "A negative id does not count from the end."
        raise DataError(where, f"ids in [0, {n_rows})", f"{outside.flat[0]}", fix)
    return array.astype(np.int64, copy=False)


def checked_assignment(
    name: str,
    path: str,
    like: jax.ShapeDtypeStruct,
    ids: Any,
    values: Any,
) -> AssignedRows:
    """Checks new values of some rows.

    Args:
      name: The variable, as it is written for users.
      path: The variable.
      like: Its shape, rows leading, and its dtype.
      ids: The rows.
      values: Their values.

    Returns:
      Copies of both.

    Raises:
      DataError: If ids or values are wrong.
    """
    where = f"assign_rows of `{name}`"
    n_rows = (like.shape or (0,))[0]
    rows = checked_row_ids(ids, n_rows, f"{where}, ids").copy()
    if rows.ndim != 1 or len(np.unique(rows)) < len(rows):
        got = f"shape {rows.shape}" if rows.ndim != 1 else "a row twice"
        raise DataError(f"{where}, ids", "one axis, each row once", got, "Give each row one value.")
    shape = (len(rows), *like.shape[1:])
    return AssignedRows(path, rows, _checked_values(where, values, shape, like.dtype))


def checked_new_rows_of(
    name: str,
    like: Any,
    values: Any,
) -> np.ndarray:
    """Checks values of rows to append to a variable.

    Args:
      name: The variable, as it is written for users.
      like: The variable, or its shape and dtype.
      values: The rows.

    Returns:
      A copy, `[k, *row]`, in the variable's dtype.

    Raises:
      DataError: If they are wrong, or there is none.
    """
    where = f"grow_rows of `{name}`"
    count = (np.shape(values) or (0,))[0]
    if not like.shape or count < 1:
        got = f"values of shape {np.shape(values)} for shape {like.shape}"
        raise DataError(where, "a variable with rows, and a row to add", got, "Pass `[k, *row]`.")
    return _checked_values(where, values, (count, *like.shape[1:]), like.dtype)


def _checked_values(
    where: str,
    values: Any,
    shape: tuple[int, ...],
    dtype: Any,
) -> np.ndarray:
    """Values of rows, a copy in the variable's dtype.

    Raises:
      DataError: If they have another shape, or are no finite numbers.
    """
    array = np.asarray(values)
    if array.shape != shape or array.dtype.kind in "OUSMmb":
        raise DataError(
            f"{where}, values",
            f"numbers of shape {shape}",
            f"{array.dtype}{list(array.shape)}",
            "Give one row of values for each row.",
        )
    new = np.array(array, dtype, order="C")
    # NumPy does not know all of JAX's short floats.
    wide = np.result_type(new.dtype, np.float32)
    if not np.isfinite(np.asarray(new, wide)).all():
        fix = "Look at what made them."
        raise DataError(f"{where}, values", "finite numbers", "NaN or infinity", fix)
    return new


def with_rows(params: Tree, new: AssignedRows) -> Tree:
    """Replaces rows of a dense parameter.

    Args:
      params: Parameters, host arrays.
      new: Its new rows.

    Returns:
      Parameters; all others are the same arrays.
    """

    def replaced(path: Any, leaf: Any) -> Any:
        if jax.tree_util.keystr(path) != new.path:
            return leaf
        copy = np.array(leaf)
        copy[new.ids] = new.values
        return copy

    return jax.tree_util.tree_map_with_path(replaced, params)


def with_more_rows(
    params: Tree,
    path: str,
    values: np.ndarray,
) -> Tree:
    """Appends rows to a parameter.

    Args:
      params: Parameters, host arrays.
      path: The parameter.
      values: Its new rows, `[k, *row]`.

    Returns:
      Parameters; all others are the same arrays.
    """

    def longer(key_path: Any, leaf: Any) -> Any:
        is_it = jax.tree_util.keystr(key_path) == path
        return np.concatenate([leaf, values]) if is_it else leaf

    return jax.tree_util.tree_map_with_path(longer, params)


class RowStates:
    """The optimizer state of dense variables, row by row.

    Args:
      tx: The optimizer.
      params: All parameters, or their shapes and dtypes.
    """

    def __init__(self, tx: optax.GradientTransformation, params: Tree):
        self._tx = tx
        self._params = params
        self._rules: dict[str, RowRule] = {}

    def fresh(
        self,
        leaves: Mapping[str, Any],
        new: AssignedRows,
    ) -> dict[str, np.ndarray]:
        """Makes the state in which some rows begin anew.

        Args:
          leaves: By path the leaves of the optimizer's state.
          new: The rows; there is at least one.

        Returns:
          By path the leaves that have changed.

        Raises:
          TableError: If the optimizer does not work row by row on the variable.
        """
        rule = self._rule(new.path)
        result = {}
        for state, rows in zip(
            rule.state,
            first_states(
                new.values,
                rule,
            ),
            strict=True,
        ):
            leaf = np.array(leaves[state.name])
            leaf[new.ids] = rows
            result[state.name] = leaf
        return result

    def longer(
        self,
        leaves: Mapping[str, Any],
        path: str,
        values: np.ndarray,
    ) -> dict[str, np.ndarray]:
        """Makes the state of a variable with more rows.

        Args:
          leaves: By path the leaves of the optimizer's state.
          path: The variable.
          values: Its new rows, `[k, *row]`; there is at least one.

        Returns:
          By path the leaves that have become longer.

        Raises:
          TableError: If the optimizer does not work row by row on the variable.
        """
        rule = self._rule(path)
        result = {}
        for state, rows in zip(rule.state, first_states(values, rule), strict=True):
            result[state.name] = np.concatenate([leaves[state.name], rows])
        return result

    def _rule(self, path: str) -> RowRule:
        if path not in self._rules:
            split = split_rows(self._tx, self._params, [path])
            self._rules[path] = split.rules[path]
        return self._rules[path]
