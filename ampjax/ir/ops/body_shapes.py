"""The results of bodies, found from shapes alone, with errors that name the source of each input."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from ampjax.errors import GraphError
from ampjax.ir.bodies import NodeBody

if TYPE_CHECKING:
    from ampjax.ir.nodes import Node
    from ampjax.ir.wires import WireType


def eval_body(
    node: Node,
    body: NodeBody,
    types: tuple[WireType, ...],
) -> Any:
    """Evaluates the shapes of a body's result for one row.

    Returns:
      The result as a pytree of `jax.ShapeDtypeStruct`.

    Raises:
      GraphError: If the body does not take these payloads; names the port where that can be told.
    """
    if (
        results := getattr(getattr(body.apply, "function", body.apply), "results", None)
    ) is not None:
        return results  # a body that was traced for these payloads
    structs = [jax.ShapeDtypeStruct(t.shape, t.dtype) for t in types]
    _check_features(node, body, types)
    params = init_shapes(node, body)
    if body.rng:
        key = {"key": jax.eval_shape(lambda: jax.random.key(0))}
    else:
        key = {}
    return eval_shapes(
        node,
        types,
        lambda p, *xs, **k: body.apply(p, *xs, **k),
        params,
        *structs,
        **key,
    )


def init_shapes(node: Node, body: NodeBody) -> Any:
    """Evaluates the shapes of a body's parameters.

    Returns:
      The parameters as a pytree of `jax.ShapeDtypeStruct`; `()` where there are none.

    Raises:
      GraphError: If `init` fails.
    """
    try:
        return body.param_shapes
    except Exception as error:
        raise GraphError(
            f"node `{node.name}`, parameters",
            "an init function of a PRNG key that gives a pytree of arrays",
            f"{type(error).__name__}: {error}",
            "Let `init(key)` run without an error and return the pytree of parameters.",
        ) from error


OF_THE_LOSS = ("loss", "loss_sum")
"""What the trainer tells of every model: no metric can be called so."""


def metric_parts(out: Any) -> tuple[Any, Mapping[str, Any]]:
    """Takes a loss body's result apart.

    Args:
      out: What the body gave: a loss, or a loss and its metrics.

    Returns:
      The loss, and the metrics by name.
    """
    if isinstance(out, tuple) and len(out) == 2 and isinstance(out[1], Mapping):
        return out
    return (out, {})


def metric_shapes(node: Node, out: Any) -> dict[str, bool]:
    """Checks the result of a loss's body, and lists its metrics.

    Args:
      node: The node, for errors.
      out: The body's result, as shapes.

    Returns:
      By metric name, whether it is a pair (sum, count).

    Raises:
      GraphError: If the loss is not a float scalar, or a metric is neither a scalar nor a pair of scalars, or has no name of its own.
    """
    loss, metrics = metric_parts(out)
    if (
        not hasattr(loss, "shape")
        or loss.shape != ()
        or not jnp.issubdtype(loss.dtype, jnp.floating)
    ):
        raise GraphError(
            f"node `{node.name}`",
            "a scalar float loss, or (loss, {name: metric})",
            f"{structure(out)}",
            "Reduce the loss to one number per message, for example with `.mean()`.",
        )
    result = {}
    for name, value in metrics.items():
        if not isinstance(name, str) or not name or name in OF_THE_LOSS:
            expected = (
                "names for the metrics: texts, and not `loss` or `loss_sum`, which are told anyway"
            )
            raise GraphError(
                f"node `{node.name}`",
                expected,
                f"{name!r}",
                "Give the metric another name in the dictionary that the loss returns.",
            )
        parts = value if isinstance(value, tuple) else (value,)
        if len(parts) > 2 or any(not hasattr(p, "shape") or p.shape != () for p in parts):
            raise GraphError(
                f"node `{node.name}`, metric `{name}`",
                "a scalar, or a pair (sum, count) of scalars",
                f"{structure(value)}",
                "Reduce it to one number per message.",
            )
        result[name] = len(parts) == 2
    return result


def _check_features(
    node: Node,
    body: NodeBody,
    types: tuple[WireType, ...],
) -> None:
    """Checks the inputs of layers of `ampjax.nn`, which know their numbers of features: the most common mistake gets the clearest message."""
    expected = getattr(body.apply, "n_in", None)
    if expected is None or not types:
        return
    shape = types[0].shape
    if not shape or shape[-1] != expected:
        wanted = (*shape[:-1], expected)
        raise GraphError(
            f"node `{node.name}`, port 0",
            f"a payload of shape {wanted} {types[0].dtype}",
            f"{shape} {types[0].dtype} from node `{node.source_name(0)}`",
            f"Give `{node.source_name(0)}` {expected} features, or put a Linear({shape[-1] if shape else 1}, {expected}) between them.",
        )


def eval_shapes(
    node: Node,
    types: tuple[WireType, ...],
    function: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Evaluates the shapes of a function's result.

    Args:
      node: The node that it belongs to.
      types: What the node's inputs carry, by port; errors name them.
      function: The function.
      *args: Its arguments, as shapes.
      **kwargs: Its keyword arguments, as shapes.

    Returns:
      The result as a pytree of `jax.ShapeDtypeStruct`.

    Raises:
      GraphError: If the function fails.
    """
    try:
        return jax.eval_shape(function, *args, **kwargs)
    except Exception as error:
        came = (
            ", ".join(
                f"port {i}: {t.payload} from `{node.source_name(i)}`" for i, t in enumerate(types)
            )
            or "no inputs"
        )
        text = str(error).strip().splitlines()
        raise GraphError(
            f"node `{node.name}`",
            "payloads that its body takes",
            f"{came}; the body raised {type(error).__name__}: {text[0] if text else ''}",
            "Change the body so that it takes these shapes, or the nodes that feed it so that they give others.",
        ) from error


def structure(out: Any) -> str:
    """Describes a result by its shapes, for errors.

    Args:
      out: A pytree of arrays, of shapes or of anything.

    Returns:
      The text.
    """
    return str(
        jax.tree.map(
            lambda o: f"{o.dtype}{list(o.shape)}" if hasattr(o, "shape") else type(o).__name__, out
        )
    )
