"""Rows of embeddings, which may be tables in host memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray

from ampjax.errors import GraphError
from ampjax.frontend.combinators.tracing import Call, Combinator, bind, dimensions, user_line
from ampjax.ir.host_tables import is_table
from ampjax.jaxprs.primitives import shape_text

LOOK_UP = Combinator("look_up")


def look_up(table: Any, ids: Any) -> jax.Array:
    """Reads rows of an embedding: an array, or an `ampjax.sparse.Table` in host memory, which is updated there by its own optimizer.

    Give `amp.compile` the table as the value of a key of the parameters; the node that reads it is called like the key (see
    `ampjax.nn.TableEmbed`). In a model that runs as it is a table's rows are constants: `Compiled.params` gives them as an array.

    When it runs: an array is read on the device, with the operations around it; a table on the host, once for each message.

    Args:
      table: `[n, *row]`: an array, or a table among the parameters.
      ids: Integers of any shape. In an array, negative ones count from its end, and those outside read the nearest row; a table refuses both.

    Returns:
      `[*ids.shape, *row]`.

    Raises:
      GraphError: If the ids are no integers.

    >>> look_up(jnp.arange(3.0), np.array([2, 0, -1, -9, 9]))
    Array([2., 0., 2., 0., 2.], dtype=float32)
    """
    ids = jnp.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise GraphError(
            user_line(), "integers as ids of rows", shape_text(ids), 'Declare them as "int32[]".'
        )
    if not is_table(table):
        from_start = jnp.where(ids < 0, ids + len(table), ids)
        return table[jnp.clip(from_start, 0, len(table) - 1)]
    shape = (*ids.shape, *table.shape[1:])
    if dimensions() is None:
        return jnp.asarray(table.pull(np.ravel(ids))).reshape(shape)
    options = {"table": table, "ids": ShapedArray(ids.shape, ids.dtype)}
    (rows,) = bind(
        Call(
            LOOK_UP,
            [ShapedArray(shape, table.dtype)],
            line=user_line(),
            options=options,
        ),
        [ids],
    )
    return rows
