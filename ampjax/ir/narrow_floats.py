"""The narrowest floats that a graph's nodes compute with, which bound the exactness of the graph's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.ir.nodes import Node
from ampjax.jaxprs.primitives import inner

if TYPE_CHECKING:
    from ampjax.ir.graph import Graph


def narrowest_floats(graph: Graph) -> np.dtype:
    """The coarsest dtype of floats among payloads, parameters, and intermediate values of bodies; float32 for a graph without floats."""
    dtypes = set()
    for node in graph.nodes.values():
        for dtype in _dtypes(node):
            dtypes.add(np.dtype(dtype))
    return narrowest(dtypes)


def narrowest(dtypes: Iterable[np.dtype]) -> np.dtype:
    """The coarsest dtype of floats among some; float32 if there is none.

    Args:
      dtypes: The dtypes.
    """
    floats = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.inexact)]
    return max(
        floats,
        key=lambda dtype: float(jnp.finfo(dtype).eps),
        default=np.dtype(np.float32),
    )


def _dtypes(node: Node) -> Iterator[Any]:
    """Yields the dtypes of a node's payloads, parameters and intermediate values."""
    types = []
    for wire in (*node.inputs, *node.outputs):
        if wire is not None and wire.type is not None:
            types.append(wire.type)
    yield from (one.dtype for one in types if not one.topology)
    body = getattr(node.op, "body", None)
    if body is None:
        return
    params = body.param_shapes
    yield from (
        leaf.dtype
        for leaf in jax.tree.leaves(params)
        if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    )
    inputs = []
    for wire in node.inputs:
        if wire and wire.type:
            inputs.append(jax.ShapeDtypeStruct(wire.type.shape, wire.type.dtype))
    options = {"key": None} if body.rng else {}
    yield from _computed_dtypes(
        jax.make_jaxpr(lambda p, *xs: body.apply(p, *xs, **options))(
            params,
            *inputs,
        ).jaxpr
    )


def _computed_dtypes(jaxpr: Any) -> Iterator[Any]:
    """Yields the dtypes of all arrays that a jaxpr computes."""
    for equation in jaxpr.eqns:
        for variable in equation.outvars:
            if (dtype := getattr(variable.aval, "dtype", None)) is not None and isinstance(
                dtype, np.dtype
            ):
                yield dtype
        for each in inner(equation):
            yield from _computed_dtypes(each)
