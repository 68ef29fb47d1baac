"""A batch's integers as one array: one argument of a compiled program in place of many, each of which costs as much as a small computation.

Knows pytrees of arrays; nothing of programs or tables.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import jax
import numpy as np

from ampjax.devices.random_keys import is_key, on_host

Tree = Any


class PackedForm(NamedTuple):
    """The form of a packed tree; hashable, as a static argument must be.

    Args:
      structure: The tree's structure.
      shapes: By leaf its shape if it is in the joined array; None for others.
    """

    structure: Any
    shapes: tuple[tuple[int, ...] | None, ...]


class PackedLeaves(NamedTuple):
    """A tree whose integers are in one array.

    Args:
      integers: Those of which JAX makes int32, `[n]`, one leaf after the other.
      others: All other leaves.
    """

    integers: np.ndarray
    others: list[Any]


def pack_integers(tree: Tree) -> tuple[PackedForm, PackedLeaves]:
    """Packs the integers of a tree; arrays of devices come to the host.

    Args:
      tree: A pytree of arrays, or keys.

    Returns:
      What `unpack_integers` takes.
    """
    leaves, structure = jax.tree.flatten(tree)
    shapes = []
    packed = [np.zeros(0, np.int32)]
    others = []
    for leaf in map(on_host, leaves):
        if not is_key(leaf) and _is_int32(leaf.dtype):
            packed.append(leaf)
            shapes.append(leaf.shape)
        else:
            others.append(leaf)
            shapes.append(None)
    # As JAX does, which cuts 64 bits to 32.
    integers = np.concatenate(packed, axis=None, dtype=np.int32, casting="unsafe")
    return PackedForm(structure, tuple(shapes)), PackedLeaves(integers, others)


def unpack_integers(form: PackedForm, leaves: PackedLeaves) -> Tree:
    """Makes the tree again; to be called inside of a compiled program.

    Args:
      form: The first of what `pack_integers` gave.
      leaves: The second.
    """
    others = iter(leaves.others)
    start = 0
    result = []
    for shape in form.shapes:
        if shape is None:
            result.append(next(others))
            continue
        stop = start + prod(shape)
        result.append(leaves.integers[start:stop].reshape(shape))
        start = stop
    return jax.tree.unflatten(form.structure, result)


def _is_int32(dtype: np.dtype) -> bool:
    """Whether JAX takes numbers of a dtype as int32."""
    return dtype.kind == "i" and jax.dtypes.canonicalize_dtype(dtype) == np.int32
