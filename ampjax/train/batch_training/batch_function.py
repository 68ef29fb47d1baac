"""The parts of a compiled model that training by batches needs; the front end provides all parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

Batch = Any
"""A batch of examples, a pytree of arrays: it has `weights`, `[size]`, 1 for an example and 0 for a copy that fills it up."""


def shape_of(batch: Batch) -> Any:
    """Gives structure, shapes and dtypes of a batch: the same for batches that share programs.

    Args:
      batch: The batch.
    """
    arrays = (batch.weights, *batch.arrays)
    types = [(array.shape, array.dtype) for array in arrays]
    return batch.pieces, tuple(types)


class Told(Protocol):
    """The results, metrics and outputs of a model for a batch (`frontend.batches.ragged_results.Reports`)."""

    @property
    def result(self) -> Any:
        """As `Reports.result`."""
        ...

    @property
    def metrics(self) -> Mapping[str, tuple[Any, Any]]:
        """As `Reports.metrics`."""
        ...

    @property
    def outputs(self) -> Mapping[str, Any]:
        """As `Reports.outputs`."""
        ...


class PackedExamples(Protocol):
    """A data set in batches of few shapes (`frontend.batches.packed_data.PackedData`)."""

    def batches(self, groups: Sequence[np.ndarray]) -> Iterator[Batch]:
        """As `PackedData.batches`."""
        ...

    def examples(self) -> list[Batch]:
        """As `PackedData.examples`."""
        ...


class BatchFunction(Protocol):
    """A model as one function of parameters and a batch (`frontend.batched.Batched`)."""

    def reports(self, params: Any, examples: Batch, *, key: Any = None) -> Told:
        """As `Batched.reports`."""
        ...

    def packed(
        self,
        columns: Any,
        size: int,
        groups: Sequence[np.ndarray],
        like: Any = None,
    ) -> PackedExamples:
        """As `Batched.packed`."""
        ...
