"""A data set whose examples are packed into batches of few shapes, group by group; groups that come again are kept packed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampjax.frontend.batches.batch import Batch, stacked
from ampjax.frontend.batches.batch_shapes import BatchShapes
from ampjax.frontend.batches.epoch_batches import EpochBatches
from ampjax.frontend.instance_columns import Columns

KEPT_BYTES = 2**28
"""Batches of a data set that are kept hold so many bytes at most."""

NOTED = 2**16
"""Of so many groups it is known at most that they were packed once."""


class PackedData:
    """A data set in batches.

    A group that comes a second time is packed again and then kept: so an epoch of other groups each time, as in training, keeps nothing.

    Args:
      columns: Its examples, checked.
      shapes: The shapes of its batches.
      is_stacked: Whether a batch has parts, with an axis for them in front.
    """

    def __init__(
        self,
        columns: Columns,
        shapes: BatchShapes,
        is_stacked: bool = False,
    ):
        self._columns = columns
        self.shapes = shapes
        self._is_stacked = is_stacked
        self._noted: set[int] = set()
        self._kept: dict[bytes, Batch] = {}
        self._n_bytes = 0

    def epoch(self, groups: Sequence[np.ndarray]) -> EpochBatches[Batch]:
        """Batches of some examples, each packed while the one before is used.

        Args:
          groups: The numbers of the examples of each batch.
        """
        return EpochBatches(groups, self.batch)

    def batch(self, numbers: np.ndarray) -> Batch:
        """A batch.

        Args:
          numbers: The numbers of its examples.
        """
        key = numbers.tobytes()
        batch = self._kept.get(key)
        if batch is None:
            batch = self._packed(numbers)
            self._keep(key, batch)
        return batch

    def _packed(self, numbers: np.ndarray) -> Batch:
        parts = self.shapes.pack(self._columns, numbers)
        return stacked(parts) if self._is_stacked else parts[0]

    def _keep(self, key: bytes, batch: Batch) -> None:
        """Keeps a batch whose group was packed before, if there is room; of another one notes that."""
        number = hash(key)
        if number not in self._noted:
            if len(self._noted) < NOTED:
                self._noted.add(number)
            return
        arrays = (batch.weights, *batch.arrays)
        n_bytes = sum(array.nbytes for array in arrays)
        if self._n_bytes + n_bytes <= KEPT_BYTES:
            self._n_bytes += n_bytes
            self._kept[key] = batch
            for array in arrays:
                array.flags.writeable = False

    def examples(self) -> list[Batch]:
        """A batch of each shape."""
        return [self.batch(shape.numbers) for shape in self.shapes.shapes]
