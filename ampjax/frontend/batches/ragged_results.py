"""Results of a function of a batch where examples have results of different lengths, and the metrics and outputs that the function tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RaggedRows:
    """Sequences of a batch's examples, one after the other, as a pytree of arrays.

    Args:
      values: `[rows, ...]`: the elements of all examples, in order.
      counts: `[rows]` truth values: whether a row is an element; the others fill the array up.
      lengths: How many elements there are of each example, `[n]`; in sequences of sequences then of each of these, and so on. What fills up has
        none.
    """

    values: Any
    counts: Any
    lengths: Sequence[Any]

    def tolist(self) -> list[Any]:
        """Returns the elements of each example as NumPy arrays; nested sequences as lists of arrays."""
        parts: Any = np.asarray(self.values)[np.asarray(self.counts)]
        for lengths in reversed(self.lengths):
            ends = np.cumsum(np.asarray(lengths))
            parts = [
                parts[end - size : end]
                for end, size in zip(ends.tolist(), np.asarray(lengths).tolist(), strict=True)
            ]
        return parts

    def __repr__(self) -> str:
        return f"RaggedRows({self.values.dtype}{list(self.values.shape)} of {self.lengths[0].shape[0]} examples)"


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Reports:
    """The result, the metrics and the outputs of a function for a batch.

    Args:
      result: What it returns for each example.
      metrics: By name, for each example the sum of the metric's values and the sum of what they count for, `[n]` each. Their totals' ratio is
        the metric: `values.sum() / counts.sum()`. Copies that fill the batch up have zeros.
      outputs: By name, the rows of each example.
    """

    result: Any
    metrics: Mapping[str, tuple[Any, Any]]
    outputs: Mapping[str, RaggedRows]

    def averages(self) -> dict[str, Any]:
        """The metrics over the batch: the sum of all values over the sum of all counts."""
        result = {}
        for name, (values, counts) in self.metrics.items():
            result[name] = values.sum() / counts.sum()
        return result
