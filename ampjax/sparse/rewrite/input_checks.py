"""Checks the inputs of a rewritten step against the shapes of its trace."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import jax

from ampjax.errors import DataError, ParameterError
from ampjax.jaxprs import primitives
from ampjax.sparse.detection.loss_jaxpr import Leaf, Tree, abstract


def by_path(like: Tree, tree: Tree) -> dict[str, Any]:
    """The leaves of a tree by the paths of `like`. None may stand for a leaf.

    Args:
      like: A tree with the structure to be had.
      tree: What came; None may stand for a leaf.

    Raises:
      ParameterError: If the tree has another structure.
    """
    try:
        leaves = jax.tree.structure(like).flatten_up_to(tree)
    except (ValueError, TypeError) as error:
        raise ParameterError(
            "parameters",
            f"the structure {jax.tree.structure(like)}, None at sparse leaves",
            f"{jax.tree.structure(tree)}",
            "Take them from the program's `split`.",
        ) from error
    paths = (
        jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(like)[0]
    )
    return dict(zip(paths, leaves, strict=True))


def dense_leaves(
    params: Tree,
    sparse: Container[str],
    dense_params: Tree,
) -> list[Any]:
    """The leaves of dense parameters, None at the sparse ones.

    Args:
      params: The first parameters' shapes and dtypes.
      sparse: The paths of the sparse leaves.
      dense_params: What came.

    Returns:
      The leaves, None at the sparse ones.

    Raises:
      ParameterError: If structure, shapes or dtypes are not those of `params`, or a sparse leaf is there.
    """
    leaves = by_path(params, dense_params)
    for wanted, (path, leaf) in zip(jax.tree.leaves(params), leaves.items(), strict=True):
        expected = "none, as the leaf is sparse" if path in sparse else _text(wanted)
        if _text(abstract(leaf)) != expected and not (leaf is None and path in sparse):
            raise ParameterError(
                f"parameter `{path}`",
                expected,
                _text(leaf),
                "Take them from the program's `split`.",
            )
    return list(leaves.values())


def check_batch(first: Tree, batch: Tree) -> None:
    """Checks that a batch differs from the first one in sizes only.

    Args:
      first: The first batch's shapes and dtypes.
      batch: What came.

    Raises:
      DataError: If its structure, a dtype or a rank is another.
    """
    wanted = jax.tree.structure(first)
    structure = jax.tree.structure(batch)
    if wanted != structure:
        raise DataError(
            "batch",
            f"the structure {wanted} of the first batch",
            f"{structure}",
            "Give batches of one structure.",
        )
    leaves, _ = jax.tree_util.tree_flatten_with_path(first)
    for (path, old), new in zip(leaves, jax.tree.leaves(abstract(batch)), strict=True):
        if _kind(old) != _kind(new):
            raise DataError(
                f"batch, leaf `{jax.tree_util.keystr(path, simple=True, separator='/')}`",
                f"the dtype and rank of {_text(old)}, as in the first batch",
                _text(new),
                "Give batches of one kind.",
            )


def check_rows(
    table: Leaf,
    rows: Any,
    inverse: Any,
    n_ids: int,
) -> None:
    """Checks pulled rows and positions.

    Args:
      table: The table.
      rows: Should be `[m, *row]`.
      inverse: Should be `[n_ids]`.
      n_ids: How many ids the step reads.

    Raises:
      ParameterError: If the rows don't fit the table.
      DataError: If there is not one position for each id.
    """
    if rows is None or rows.ndim != len(table.shape) or rows.shape[1:] != table.shape[1:]:
        shape = ", ".join(["m", *map(str, table.shape[1:])])
        raise ParameterError(
            f"rows of `{table.path}`",
            f"shape [{shape}]",
            _text(rows),
            "Pull the rows of the program's `ids`.",
        )
    if inverse is None or inverse.shape != (n_ids,):
        raise DataError(
            f"inverse of `{table.path}`",
            f"shape ({n_ids},), a position for each id",
            _text(inverse),
            "Use this batch's ids.",
        )


def _kind(leaf: Any) -> Any:
    if hasattr(leaf, "dtype"):
        return (leaf.dtype, len(leaf.shape))
    return type(leaf)


def _text(leaf: Any) -> str:
    if leaf is None:
        return "none"
    return (
        primitives.shape_text(leaf) if hasattr(leaf, "dtype") else f"{type(leaf).__name__} {leaf!r}"
    )
