"""Soft dynamic time warping (Cuturi and Blondel 2017) of pairs of sequences; by hand diagonal by diagonal, padded."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp
from experiments.bench.batch.work import Amount, Work, lengths_of, padded, weights

H = 8
FAR = 1e6
"""The cost of what lies outside."""

SPEC = {
    "x": f"float32[n,{H}]",
    "y": f"float32[m,{H}]",
    "cells": {
        "row": "int32[c]",
        "column": "int32[c]",
        "up": "int32[c]",
        "left": "int32[c]",
        "corner": "int32[c]",
    },
}


def soft_dtw(amount: Amount) -> Work:
    """16 pairs of sequences of 20 to 39 vectors."""
    rng = np.random.default_rng(0)
    examples = []
    for _ in range(amount.of(16)):
        n, m = (amount.of(k) for k in rng.integers(20, 40, 2).tolist())
        x, y = (rng.normal(size=(k, H)).astype(np.float32) for k in (n, m))
        examples.append(
            {
                "x": x,
                "y": y,
                "cells": _cells(n, m),
            }
        )
    first = [each["x"] for each in examples]
    second = [each["y"] for each in examples]
    arrays = {
        "x": padded(first),
        "y": padded(second),
        "n": lengths_of(first),
        "m": lengths_of(second),
    }
    n_rows = sum(len(each["cells"]["row"]) for each in examples)
    return Work(
        model,
        SPEC,
        weights(0, w=(H, H)),
        examples,
        n_rows,
        plain,
        arrays,
    )


def _cells(n: int, m: int) -> dict[str, np.ndarray]:
    """Makes the cells of a table of `n` rows and `m` columns, each with the numbers of the three cells before; -1 outside."""
    row, column = np.divmod(np.arange(n * m, dtype=np.int32), m)
    own = np.arange(n * m)
    columns = {
        "row": row,
        "column": column,
        "up": np.where(row > 0, own - m, -1),
        "left": np.where(
            column > 0,
            own - 1,
            -1,
        ),
        "corner": np.where(
            (row > 0) & (column > 0),
            own - m - 1,
            -1,
        ),
    }
    return {name: values.astype(np.int32) for name, values in columns.items()}


def model(p: Any, example: Any) -> jax.Array:
    """Computes the cost of aligning both sequences.

    Args:
      p: `w` `[H, H]`, by which vectors are seen.
      example: `x` `[n, H]`, `y` `[m, H]`, and the `cells` of the table.
    """
    x = amp.map(lambda row: row @ p["w"], example["x"])
    y = amp.map(lambda row: row @ p["w"], example["y"])

    def cell(recur: Any, at: Any) -> jax.Array:
        difference = amp.take(x, at["row"]) - amp.take(y, at["column"])
        before = soft_min(
            recur(at["up"]),
            recur(at["left"]),
            recur(at["corner"]),
        )
        is_first = at["row"] + at["column"] == 0
        return jnp.sum(difference**2) + jnp.where(is_first, 0, before)

    return amp.take(
        amp.recurse(
            cell,
            FAR,
            example["cells"],
        ),
        -1,
    )


def soft_min(*values: jax.Array) -> jax.Array:
    """The soft minimum of numbers.

    Args:
      *values: The numbers, of one shape.
    """
    return -jax.nn.logsumexp(-jnp.stack(values), 0)


def plain(p: Any, arrays: Any) -> jax.Array:
    """The mean over a batch.

    Args:
      p: As `model` takes them.
      arrays: `x` and `y`, padded, and their lengths `n` and `m`.
    """
    x = arrays["x"] @ p["w"]
    y = arrays["y"] @ p["w"]
    n_rows = x.shape[1]
    n_columns = y.shape[1]
    costs = jnp.sum((x[:, :, None] - y[:, None]) ** 2, -1)
    diagonals = jnp.arange(n_rows + n_columns - 1)
    rows = jnp.arange(n_rows)
    column = diagonals[:, None] - rows
    skewed = costs[
        :,
        rows,
        jnp.clip(
            column,
            0,
            n_columns - 1,
        ),
    ]
    inside = (column >= 0) & (column < n_columns)
    skewed = jnp.where(inside, skewed, FAR).swapaxes(0, 1)
    outside = jnp.full((len(x), 1), FAR)

    def diagonal(carry: Any, now: Any) -> Any:
        last, one_before = carry
        costs, number = now
        up = jnp.concatenate([outside, last[:, :-1]], 1)
        corner = jnp.concatenate(
            [outside, one_before[:, :-1]],
            1,
        )
        before = soft_min(up, last, corner)
        new = costs + jnp.where(
            number == 0,
            0,
            before,
        )
        return (new, last), new

    start = jnp.full(x.shape[:2], FAR)
    _, table = jax.lax.scan(
        diagonal,
        (start, start),
        (skewed, diagonals),
    )
    last = arrays["n"] + arrays["m"] - 2
    return jnp.mean(table[last, jnp.arange(len(x)), arrays["n"] - 1])
