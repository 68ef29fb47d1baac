"""A loss function as a jaxpr, with the names of its parameters.

Owns the checks of what users hand in: the loss, its parameters, the batch. Knows nothing of tables.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ampjax.devices.loss_collectives import is_weighted, scalar
from ampjax.errors import DataError, ParameterError, SettingsError
from ampjax.jaxprs import primitives
from ampjax.jaxprs.inlining import inline_calls

Tree = Any
LossFn = Callable[[Tree, Tree], Any]
"""`loss_fn(params, batch) -> loss` or `(loss, aux)`, anything that JAX can trace; `px.Weighted` in the place of a loss."""

MappedAxes = Sequence[tuple[str, int]]
"""Names and sizes of the axes over which a program is mapped."""


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One parameter leaf.

    Args:
      path: Its name, as `jax.tree_util.keystr` writes it.
      shape: Its shape.
      dtype: Its dtype.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any


@dataclasses.dataclass(frozen=True)
class TracedLoss:
    """A loss function for parameters and batches of certain shapes.

    Args:
      jaxpr: Of the parameters' leaves and then the batch's.
      consts: The values of the jaxpr's constants.
      leaves: The parameters' leaves.
      params_tree: The parameters' structure.
      batch_tree: The batch's structure.
      out_tree: The structure of what the loss function returns.
      has_aux: Whether that is `(loss, aux)`.
      is_weighted: Whether its loss is a `Weighted`, of which the jaxpr gives the value.
      mapped: The axes over which the jaxpr is mapped.
    """

    jaxpr: Any
    consts: Sequence[Any]
    leaves: tuple[Leaf, ...]
    params_tree: Any
    batch_tree: Any
    out_tree: Any
    has_aux: bool
    is_weighted: bool = False
    mapped: MappedAxes = ()


def trace_loss(
    loss_fn: LossFn,
    params: Tree,
    batch: Tree,
    mapped: MappedAxes = (),
) -> TracedLoss:
    """Traces a loss function; nothing is computed.

    Args:
      loss_fn: `loss_fn(params, batch) -> loss` or `(loss, aux)`, the loss a float scalar.
      params: A pytree of arrays or `jax.ShapeDtypeStruct`s with at least one float leaf.
      batch: A pytree of the same kinds.
      mapped: The axes over which the loss function will be mapped.

    Returns:
      The jaxpr, and what is known of the leaves and of the result.

    Raises:
      ParameterError: If no parameter leaf is a float array, or one is no array.
      DataError: If a leaf of the batch is no array.
      SettingsError: If the loss is not a float scalar.
      Exception: Whatever the loss function raises while JAX traces it.
    """
    leaves = _param_leaves(params)
    _check_batch(batch)
    weighted = False

    def trace(*args: Any) -> Any:
        nonlocal weighted
        out = loss_fn(*args)
        weighted = is_weighted(out)
        return scalar(lambda: out)()

    closed, out = jax.make_jaxpr(trace, axis_env=list(mapped), return_shape=True)(
        abstract(params), abstract(batch)
    )
    has_aux = _has_aux(out)
    jaxpr, consts = primitives.opened(closed)
    jaxpr = inline_calls(primitives.drop_unneeded(jaxpr))
    params_tree, batch_tree, out_tree = (jax.tree.structure(tree) for tree in (params, batch, out))
    return TracedLoss(
        jaxpr, consts, leaves, params_tree, batch_tree, out_tree, has_aux, weighted, mapped
    )


def abstract(tree: Tree) -> Tree:
    """Turns a tree into shapes and dtypes, as JAX holds them. Python's numbers stay, since their dtype follows the other operand.

    Args:
      tree: A pytree of arrays, of their shapes, or of numbers.
    """
    return jax.tree.map(_abstract_leaf, tree)


def signature(tree: Tree) -> Hashable:
    """Computes a key of the traits of a pytree of arrays on which a trace depends. Trees of equal signatures can share a trace.

    Args:
      tree: A pytree of arrays, of their shapes, or of numbers.
    """
    leaves, treedef = jax.tree.flatten(tree)
    leaves = [_abstract_leaf(leaf) for leaf in leaves]
    return treedef, tuple(
        (x.shape, x.dtype, x.weak_type) if hasattr(x, "dtype") else type(x) for x in leaves
    )


def _abstract_leaf(leaf: Any) -> Any:
    if not hasattr(leaf, "dtype"):
        return leaf
    weak = getattr(leaf, "weak_type", False)
    # NumPy's 64 bits are 32 in JAX, unless it is told otherwise. Random keys are no numbers.
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    return jax.ShapeDtypeStruct(
        leaf.shape,
        leaf.dtype if is_key else jax.dtypes.canonicalize_dtype(leaf.dtype),
        weak_type=weak,
    )


def _param_leaves(params: Tree) -> tuple[Leaf, ...]:
    leaves = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        if not hasattr(leaf, "dtype"):
            name = _text(path)
            raise ParameterError(
                f"parameter `{name}`",
                "an array",
                f"{type(leaf).__name__} {leaf!r}",
                "Make arrays of all parameters.",
            )
        leaves.append(
            Leaf(
                jax.tree_util.keystr(path),
                tuple(leaf.shape),
                _abstract_leaf(leaf).dtype,
            )
        )
    if not any(primitives.is_inexact(leaf.dtype) for leaf in leaves):
        texts = []
        for path, _ in jax.tree_util.tree_flatten_with_path(params)[0]:
            texts.append(_text(path))
        kinds = ", ".join(
            f"`{text}` {leaf.dtype}" for text, leaf in zip(texts[:4], leaves, strict=False)
        )
        kinds = kinds or "no leaf at all"
        raise ParameterError(
            "parameters", "at least one float leaf", kinds, "Pass the parameters to be trained."
        )
    return tuple(leaves)


def _text(path: Any) -> str:
    """Writes a leaf's path as users read paths: `encoder/embedding`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def _check_batch(batch: Tree) -> None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(batch)[0]:
        if not hasattr(leaf, "dtype") and not isinstance(leaf, (bool, int, float, complex)):
            raise DataError(
                f"batch, leaf `{_text(path)}`",
                "an array or a number",
                f"{type(leaf).__name__} {leaf!r}",
                "Leave out what JAX can't trace, or encode it as numbers.",
            )


def _has_aux(out: Any) -> bool:
    """Tells whether a loss function's result is `(loss, aux)`.

    Raises:
      SettingsError: If its loss is not a float scalar.
    """
    has_aux = isinstance(out, tuple) and len(out) == 2
    loss: Any = out[0] if has_aux else out
    if getattr(loss, "shape", None) != () or not jnp.issubdtype(
        loss.dtype,
        jnp.floating,
    ):
        got = primitives.shape_text(loss) if hasattr(loss, "dtype") else type(loss).__name__
        raise SettingsError(
            "loss_fn(params, batch)",
            "a float scalar or `px.Weighted`, or a pair of that and anything else",
            got,
            "Take the mean or the sum of the losses, of a complex one its real part.",
        )
    return has_aux
