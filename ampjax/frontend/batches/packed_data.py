"""A data set whose examples are packed into batches of few shapes, group by group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ampjax.frontend.batches.batch import Batch, stacked
from ampjax.frontend.batches.batch_shapes import BatchShapes
from ampjax.frontend.batches.epoch_batches import EpochBatches
from ampjax.frontend.instance_columns import Columns


class PackedData:
    """A data set in batches.

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
        parts = self.shapes.pack(self._columns, numbers)
        return stacked(parts) if self._is_stacked else parts[0]

    def examples(self) -> list[Batch]:
        """A batch of each shape."""
        return [self.batch(shape.numbers) for shape in self.shapes.shapes]
