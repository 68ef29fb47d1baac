"""The two sides of a comparison: a model of one example, and its loss over a batch in plain JAX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import amount as bench


class Amount(bench.Amount):
    """The amount of data that the works get: at least two of everything, so that a batch is ragged."""

    def of(self, n: int) -> int:
        """So many, where `n` are measured by default; at least 2."""
        return max(2, super().of(n))


@dataclass(frozen=True)
class Work:
    """A model in both forms, with a batch.

    Args:
      model: The function of parameters and one example; it returns its loss, or a pair of it and metrics.
      spec: What an example looks like.
      params: The parameters.
      examples: The examples of the batch.
      n_rows: Elements of the examples, those of the largest space: words, nodes, cells.
      plain: The mean loss of the batch by hand, of parameters and arrays.
      arrays: These arrays, as its users lay them out: padded, by levels, end to end.
    """

    model: Callable[[Any, Any], Any]
    spec: Any
    params: Any
    examples: Sequence[Any]
    n_rows: int
    plain: Callable[[Any, Any], jax.Array]
    arrays: Any


def weights(seed: int, **shapes: tuple[int, ...]) -> dict[str, jax.Array]:
    """Arrays of normal numbers, scaled down by the square root of their rows.

    Args:
      seed: Of the numbers.
      **shapes: By name, the shape.
    """
    rng = np.random.default_rng(seed)
    result = {}
    for name, shape in shapes.items():
        values = rng.normal(size=shape) / np.sqrt(shape[0])
        result[name] = jnp.asarray(values, jnp.float32)
    return result


def padded(sequences: Sequence[np.ndarray]) -> np.ndarray:
    """Sequences `[n, ...]` as one array `[sequences, longest, ...]`, filled up with zeros.

    Args:
      sequences: The sequences.
    """
    width = max(map(len, sequences))
    first = sequences[0]
    result = np.zeros(
        (len(sequences), width, *first.shape[1:]),
        first.dtype,
    )
    for row, each in zip(
        result,
        sequences,
        strict=True,
    ):
        row[: len(each)] = each
    return result


def lengths_of(sequences: Sequence[np.ndarray]) -> np.ndarray:
    """`[n]` int32: how long each sequence is.

    Args:
      sequences: The sequences.
    """
    return np.array([len(each) for each in sequences], np.int32)
