"""The axes along which elements lie in arguments and in results, given as for `jax.vmap`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ampjax.errors import DataError, GraphError


class FlatArguments(NamedTuple):
    """Arguments of all elements.

    Args:
      leaves: Flat; of one that is mapped `[n, ...]`.
      is_mapped: By leaf, whether each element has its own.
      structure: Their structure.
      n: The number of elements.
    """

    leaves: list[Any]
    is_mapped: tuple[bool, ...]
    structure: Any
    n: int


def spread(
    where: str,
    axes: Any,
    tree: Any,
) -> list[int | None]:
    """An axis for each leaf of a tree.

    Args:
      where: The place, for errors.
      axes: An integer, None, or a tree of them that is a prefix of the tree.
      tree: The tree.

    Raises:
      GraphError: If it is none of these.
    """
    of_leaves: list[int | None] = []

    def add(axis: Any, part: Any) -> None:
        is_number = isinstance(axis, int) and not isinstance(axis, bool)
        if axis is not None and not is_number:
            raise TypeError("no axis")
        for _ in jax.tree.leaves(part):
            of_leaves.append(axis)

    try:
        jax.tree.map(
            add,
            axes,
            tree,
            is_leaf=lambda axis: axis is None,
        )
    except (TypeError, ValueError) as error:
        fix = "Give one integer for all, or a tuple with an integer, None or a tree of them for each argument, as for `jax.vmap`."
        raise GraphError(where, "axes that fit", f"{axes!r}", fix) from error
    return of_leaves


def flat_arguments(
    where: str,
    in_axes: Any,
    args: Sequence[Any],
) -> FlatArguments:
    """Arguments with the axis of elements in front.

    Args:
      where: The place, for errors.
      in_axes: As `jax.vmap` takes it.
      args: The arguments.

    Raises:
      GraphError: If axes do not fit the arguments.
      DataError: If no argument is mapped, an axis is not there, or sizes differ.
    """
    args = tuple(args)
    if isinstance(in_axes, list):
        in_axes = tuple(in_axes)
    leaves, structure = jax.tree.flatten(args)
    flat = spread(f"{where}, in_axes", in_axes, args)
    moved = []
    sizes = {}
    for number, (leaf, axis) in enumerate(zip(leaves, flat, strict=True)):
        array = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
        if axis is None:
            moved.append(array)
            continue
        if not -array.ndim <= axis < array.ndim:
            fix = "Name an axis that it has, or None where all elements share it."
            name = leaf_names(args)[number]
            raise DataError(f"{where}, argument {name}", f"an axis {axis}", f"{array.shape}", fix)
        sizes.setdefault(array.shape[axis], number)
        if axis != 0:
            array = jnp.moveaxis(array, axis, 0)
        moved.append(array)
    if not sizes:
        fix = "Give `in_axes` an axis for at least one argument."
        raise DataError(where, "an argument with an axis of elements", "none", fix)
    if len(sizes) > 1:
        names = leaf_names(args)
        of_leaves = []
        for size, number in sizes.items():
            of_leaves.append(f"{size} in {names[number]}")
        fix = (
            "Give each argument one entry for each element, or None in `in_axes` where all share it. "
            "A list of examples of different lengths needs a spec: `amp.vmap(function, spec)`."
        )
        got = ", ".join(of_leaves)
        raise DataError(f"{where}, arguments", "the same number of elements", got, fix)
    is_mapped = tuple(axis is not None for axis in flat)
    (n,) = sizes
    return FlatArguments(moved, is_mapped, structure, n)


def n_elements(
    is_mapped: Sequence[bool],
    args: Sequence[Any],
) -> int:
    """The number of elements in flat arguments.

    Args:
      is_mapped: By argument, whether each element has its own; one at least.
      args: The arguments; of one that is mapped `[n, ...]`.
    """
    first = is_mapped.index(True)
    return args[first].shape[0]


def leaf_names(args: Sequence[Any]) -> list[str]:
    """The names of all leaves of some arguments, for errors.

    Args:
      args: The arguments, pytrees.
    """
    names = []
    for path, _ in jax.tree_util.tree_leaves_with_path(tuple(args)):
        names.append(jax.tree_util.keystr(path))
    return names


def place_results(
    where: str,
    out_axes: Any,
    results: Any,
) -> Any:
    """Moves the axis of elements of each result to its place in `out_axes`.

    Args:
      where: The place, for errors.
      out_axes: As `jax.vmap` takes it, without None.
      results: A pytree of arrays, `[n, ...]` each.

    Raises:
      GraphError: If axes do not fit the results.
    """
    leaves, structure = jax.tree.flatten(results)
    axes = spread(f"{where}, out_axes", out_axes, results)
    moved = []
    for leaf, axis in zip(leaves, axes, strict=True):
        if axis is None or not -leaf.ndim <= axis < leaf.ndim:
            fix = "Results of elements differ: name the axis, from 0, along which they are to lie."
            raise GraphError(f"{where}, out_axes", f"an axis of {leaf.shape}", f"{axis}", fix)
        if axis != 0:
            leaf = jnp.moveaxis(leaf, 0, axis)
        moved.append(leaf)
    return structure.unflatten(moved)
