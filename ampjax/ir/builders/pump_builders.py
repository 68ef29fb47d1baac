"""The nodes where messages enter and leave a graph: pumps and sinks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import GraphError
from ampjax.ir.builders.add_node import add_with_one_output
from ampjax.ir.graph import current_graph
from ampjax.ir.ops.payload_nodes import Pump, Sink
from ampjax.ir.wires import Wire, WireType


def pump(
    name: str,
    shape: Sequence[int] = (),
    dtype: Any = "float32",
    fields: Sequence[str] = (),
    ragged: bool = False,
) -> Wire:
    """Makes a source of messages: the data of each instance come in here.

    Args:
      name: The pump's name, by which instances refer to it.
      shape: The payload's shape for one row; `(0,)` for messages that carry a state only, which take no memory.
      dtype: The payload's dtype.
      fields: The state fields that each message carries beside `instance`.
      ragged: True if a message holds any number of rows.

    Returns:
      The pump's wire.

    Raises:
      GraphError: If the name is no text, or the shape no integers; if a field is called `instance`, or occurs twice, or JAX does not support the dtype now (such as `float64` outside its 64-bit
        mode).
    """
    if not isinstance(name, str):
        raise GraphError(
            "pump", "a name, a text", f"{name!r}", "Name it first, then give its shape."
        )
    sizes = tuple(shape) if isinstance(shape, Iterable) else None
    if sizes is None or not all(isinstance(n, Integral) and n >= 0 for n in sizes):
        raise GraphError(
            f"pump `{name}`, shape",
            "a tuple of integers",
            f"{shape!r}",
            "Write `shape=(3,)`, also for one.",
        )
    fields = tuple(fields)
    if "instance" in fields or len(set(fields)) != len(fields):
        raise GraphError(
            f"pump `{name}`",
            "different field names other than `instance`, which is always there",
            f"{fields}",
            "Give each field a name of its own; `instance` need not be declared.",
        )
    return add_with_one_output(
        Pump(WireType(sizes, _held_dtype(name, dtype), fields, ragged)),
        (),
        name=name,
    )


def topology(name: str) -> Wire:
    """Makes a pump of `Topology` maps, one per instance, for `distribute` and `collect` (ICLR version, figure 3).

    Args:
      name: The pump's name, by which instances refer to it.

    Returns:
      Its wire, which can only be connected to a `distribute` or `collect`.
    """
    return add_with_one_output(
        Pump(WireType((), np.dtype("int64"), topology=True)),
        (),
        name=name,
    )


def sink(name: str, wire: Wire) -> Wire:
    """Ends a wire without a loss: `predict` returns the messages that arrive here. In training their gradients are zero.

    Args:
      name: The sink's name, under which `predict` returns its messages.
      wire: The wire.

    Returns:
      The same wire.
    """
    current_graph().add(name, Sink(), (wire,), 0)
    return wire


def discard(wire: Wire) -> None:
    """Ends a wire that no node needs: the gradients of its messages are zero, and `predict` does not return the messages.

    Args:
      wire: The wire.
    """
    wire.discarded = True


def _held_dtype(name: str, dtype: Any) -> np.dtype:
    """A pump's dtype, checked to be a dtype that JAX keeps unchanged."""
    where = f"pump `{name}`, dtype"
    try:
        declared = jnp.dtype(dtype)
    except TypeError:
        raise GraphError(
            where,
            "a dtype, such as `float32` or `int32`",
            f"{dtype!r}",
            "Write the name of a NumPy dtype of numbers, such as `float32`.",
        ) from None
    held = jax.dtypes.canonicalize_dtype(declared) if declared.kind in "biufcV" else None
    if held is None:
        raise GraphError(
            where, "a dtype of numbers", f"{declared}", "Encode what is no number as integers."
        )
    if held != declared:
        fix = f'Declare it as {held}, or let JAX compute in 64 bits: `jax.config.update("jax_enable_x64", True)`.'
        raise GraphError(where, "a dtype that JAX holds now", f"{declared}", fix)
    return declared
