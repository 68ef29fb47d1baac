"""A model's reports beside its loss: metrics and outputs. And names for its nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import ShapedArray

from ampjax.errors import GraphError
from ampjax.frontend.combinators.tracing import (
    Call,
    Combinator,
    as_array,
    as_arrays,
    bind,
    dimensions,
    trace,
    type_of,
    user_line,
)
from ampjax.ir.ops.body_shapes import OF_THE_LOSS
from ampjax.jaxprs.primitives import shape_text

METRIC = Combinator("metric", reports=True, with_loss=True, in_ragged=True)
OUTPUT = Combinator("output", reports=True, in_ragged=True)
NODE = Combinator("node", keeps=0, in_ragged=True, row_by_row=True)


def metric(name: str, value: Any, count: Any = 1.0) -> None:
    """Reports a number beside the loss; the trainer averages the number: the sum of values over the sum of counts.

    Does nothing when the model runs uncompiled.

    When it runs: on the device, where the value is computed: as messages with the loss, as a batch once for all examples.

    Args:
      name: The metric's name.
      value: A number or truth value, shape `()`.
      count: What it counts for, such as 0 for elements that are not to be averaged.

    Raises:
      GraphError: If one of the two is not a single number, or the name is `loss`, `loss_sum` or no name.
    """
    _require_name("metric", name)
    if dimensions() is None:
        return
    if name in OF_THE_LOSS:
        raise GraphError(
            user_line(),
            f"another name than `{name}`",
            f"`{name}`",
            "Choose another name: the loss is in each history anyway.",
        )
    numbers = [as_array(f"for the metric `{name}`", x) for x in (value, count)]
    for x in numbers:
        if jnp.iscomplexobj(x):
            got = shape_text(type_of(x))
            raise GraphError(
                user_line(),
                f"one number for the metric `{name}`",
                got,
                "Tell its parts: `jnp.real(...)`.",
            )
        if x.shape != ():
            raise GraphError(
                user_line(),
                f"one number for the metric `{name}`",
                shape_text(type_of(x)),
                "Sum or average it.",
            )
    bind(
        Call(
            METRIC,
            [],
            line=user_line(),
            options={"name": name},
        ),
        [x.astype(jnp.float32) for x in numbers],
    )


def output(name: str, value: Any) -> None:
    """Reports a value that `Trainer.predict` returns: a row for each instance, or for each element of a sequence or inside `map`.

    Does nothing when the model runs uncompiled.

    When it runs: on the device, where the value is computed: as messages once for each row, as a batch once for all rows; `predict` brings
    the rows to the host.

    Args:
      name: The output's name.
      value: An array, or a sequence of arrays. A row's state fields tell its element: `t_i` is its number along the dimension `t`.

    Raises:
      GraphError: If it is no array, or the name is none.
    """
    _require_name("output", name)
    if dimensions() is not None:
        value = as_array(f"for the output `{name}`", value)
        options = {"name": name, "type": ShapedArray(value.shape, value.dtype)}
        bind(
            Call(OUTPUT, [], line=user_line(), options=options),
            [value],
        )


def node(
    name: str,
    *,
    replicas: int = 1,
    **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a function one node of the graph, with a name and with the parameters that the function reads.

    When it runs: the function is traced once at each place that calls it. Then it runs on the device: as messages in one call for those
    that wait, as a batch once for all rows.

    Args:
      name: The node's name.
      replicas: Copies of the node, as `amp.graphs.replicate` makes them: instances are dealt to them in turn, and the trainer keeps them together.
      **options: What `ampjax.graphs.ppt` takes: `tx`, `min_update_interval`, `max_dispatch_size`, `weights`, `gradient`, `worker`.

    Returns:
      A decorator. The function is given arrays, and holds no combinators.

    Raises:
      GraphError: If an option is not one of these, or there is no replica.
    """
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise GraphError(
            user_line(),
            "a number of replicas, at least 1",
            f"{replicas!r}",
            "Leave `replicas` out, or write `replicas=1`, for a node without replicas.",
        )
    _require_name("node", name)
    known = ("tx", "min_update_interval", "max_dispatch_size", "weights", "gradient", "worker")
    for option in options:
        if option not in known:
            raise GraphError(
                user_line(),
                f"options of a node: {', '.join(known)}",
                f"`{option}`",
                "Leave it out, or write one of these names.",
            )

    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if dimensions() is None:
                return function(*args)
            leaves, structure = jax.tree.flatten(args)
            leaves = as_arrays("for the function", leaves)
            body, closed, results = trace(
                function, *structure.unflatten([type_of(leaf) for leaf in leaves])
            )
            spec = Call(
                NODE,
                results,
                (body,),
                (len(closed),),
                user_line(),
                {"name": name, "options": options, "replicas": replicas},
            )
            return body.results.unflatten(bind(spec, [*closed, *leaves]))

        return call

    return decorator


def _require_name(what: str, name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise GraphError(
            user_line(),
            f"a name for the {what}: a text",
            f"{name!r}",
            f'Pass a text, such as `"{what}_1"`.',
        )
