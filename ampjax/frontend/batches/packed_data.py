"""A data set whose examples are packed into batches of few shapes, group by group; groups that come again are kept packed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ampjax.frontend.batches.batch import Batch
from ampjax.frontend.batches.batch_shapes import LONGEST_RUN, BatchShapes
from ampjax.frontend.batches.epoch_batches import EpochBatches
from ampjax.frontend.instances.instance_columns import Columns

KEPT_BYTES = 2**28
"""Batches of a data set that are kept hold so many bytes at most."""

TOGETHER_BYTES = 2**24
"""Batches that are packed together hold about so many bytes at most."""

NOTED = 2**16
"""Of so many groups it is known at most that they were packed once."""


class PackedData:
    """A data set in batches.

    A group that comes a second time is packed again and then kept: so an epoch of other groups each time, as in training, keeps nothing.

    Args:
      columns: Its examples, checked.
      shapes: The shapes of its batches.
    """

    def __init__(
        self,
        columns: Columns,
        shapes: BatchShapes,
    ):
        self._columns = columns
        self.shapes = shapes
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
        return self._some([numbers])[0]

    def batches(self, groups: Sequence[np.ndarray]) -> Iterator[Batch]:
        """Some batches, a few packed together at a time.

        Args:
          groups: The numbers of the examples of each batch.
        """
        largest = 8 * self.shapes.shapes[-1].n_numbers
        n = min(LONGEST_RUN, TOGETHER_BYTES // max(largest, 1))
        n = max(n, 1)
        for first in range(0, len(groups), n):
            yield from self._some(groups[first : first + n])

    def _some(self, groups: Sequence[np.ndarray]) -> list[Batch]:
        """Returns batches: kept ones, and the others packed together."""
        keys = [numbers.tobytes() for numbers in groups]
        cached = {key: self._kept[key] for key in keys if key in self._kept}
        new = [numbers for numbers in groups if numbers.tobytes() not in cached]
        for numbers, batch in zip(
            new,
            self.shapes.pack(
                self._columns,
                new,
            ),
            strict=True,
        ):
            key = numbers.tobytes()
            cached[key] = self._keep(key, batch)
        return [cached[key] for key in keys]

    def _keep(self, key: bytes, batch: Batch) -> Batch:
        """Keeps a batch whose group was packed before, in separate arrays, if there is room; of another one notes the group."""
        number = hash(key)
        if number not in self._noted:
            if len(self._noted) < NOTED:
                self._noted.add(number)
            return batch
        arrays = (batch.weights, *batch.arrays)
        n_bytes = sum(array.nbytes for array in arrays)
        if self._n_bytes + n_bytes > KEPT_BYTES:
            return batch
        self._n_bytes += n_bytes
        weights, *others = (array.copy() for array in arrays)
        for array in (weights, *others):
            array.flags.writeable = False
        self._kept[key] = replace(batch, weights=weights, arrays=tuple(others))
        return self._kept[key]

    def examples(self) -> list[Batch]:
        """A batch of each shape."""
        return [self.batch(shape.numbers) for shape in self.shapes.shapes]
