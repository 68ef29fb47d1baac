"""Checks the parameters that `get_runner` takes: every leaf must be trainable.

Knows pytrees; nothing of devices or tables.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.devices.host_arrays import host_array, require_32_bits
from ampjax.errors import ParameterError
from ampjax.parallel.config.leaf_paths import by_path

Tree = Any


def checked_params(params: Tree) -> Tree:
    """Converts parameters to host arrays in JAX's dtypes: NumPy's float64 becomes float32 unless JAX is configured otherwise.

    Raises:
      ParameterError: If there is no leaf, two have one path, or one is not an array of finite numbers, real or complex, which JAX holds.
    """
    leaves = by_path(params, "parameter", ParameterError)
    if not leaves:
        raise ParameterError(
            "params", "at least one array", "none", "Pass the parameters as a pytree."
        )
    arrays = []
    for path, value in leaves.items():
        leaf = host_array(value, f"parameter `{path}`", ParameterError)
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            raise ParameterError(
                f"parameter `{path}`",
                "floats or complex numbers, which have a gradient",
                str(leaf.dtype),
                "Close over it in the loss function (of a module, `nnx.split` or `equinox.partition` parts it off), or pass it in the batch.",
            )
        wide = np.result_type(
            leaf.dtype, np.float32
        )  # NumPy does not know all of JAX's short floats
        if not bool(np.isfinite(np.asarray(leaf, wide)).all()):
            raise ParameterError(
                f"parameter `{path}`", "finite values", "NaN or infinity", "Initialise it anew."
            )
        require_32_bits(leaf, f"parameter `{path}`", ParameterError)
        arrays.append(np.asarray(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype)))
    return jax.tree.unflatten(jax.tree.structure(params), arrays)


def check_like(params: Tree, first: Tree) -> None:
    """Returns if parameters are like others.

    Raises:
      ParameterError: If a leaf differs in path, shape or dtype; it names the first.
    """
    wanted, actual = (
        {path: _describe_leaf(leaf) for path, leaf in by_path(tree).items()}
        for tree in (first, params)
    )
    for path in [*wanted, *actual]:
        if wanted.get(path) != actual.get(path):
            raise ParameterError(
                f"parameter `{path}`",
                wanted.get(path, "no such leaf"),
                actual.get(path, "no such leaf"),
                "Pass parameters like the first ones.",
            )


def _describe_leaf(leaf: Any) -> str:
    return f"{leaf.dtype}{list(leaf.shape)}"
