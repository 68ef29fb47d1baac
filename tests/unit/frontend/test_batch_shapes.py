"""Shapes of batches whose sizes are large in ways of their own, so that none that shapes are found from is largest in all."""

from dataclasses import dataclass

import numpy as np

from ampjax.frontend.batches.batch import Batch
from ampjax.frontend.batches.batch_shapes import MOST_SHAPES, BatchShapes
from ampjax.frontend.batches.row_program import PackedBatches
from ampjax.frontend.batches.row_tables import RowTables


@dataclass
class Examples:
    """Examples that are sizes alone, `[n, kinds]`."""

    sizes: np.ndarray

    def __len__(self):
        return len(self.sizes)

    def some(self, numbers):
        return Examples(self.sizes[numbers])

    def n_elements(self):
        return self.sizes.sum(1)


class Program:
    """Lays examples out: an array of each kind."""

    def pack_in(self, examples, size, least, round_up=None):
        tables = RowTables(
            examples,
            size,
            least,
            round_up,
        )
        n_batches = len(examples.n_each)
        starts = np.cumsum([0, *examples.n_each[:-1]])
        totals = np.add.reduceat(examples.columns.sizes, starts)
        for kind, n in enumerate(totals.max(0)):
            tables.rounded(kind, int(n))
        arrays = tuple(np.zeros((n_batches, n), np.int8) for n in tables.sizes.values())
        batch = Batch(np.ones((n_batches, size)), arrays, "")
        return PackedBatches(batch, tables.sizes, tables.counts)


def test_batches_that_fit_no_shape_share_one():
    rng = np.random.default_rng(0)
    examples = Examples(rng.geometric(0.03, (4000, 8)))
    groups = np.split(rng.permutation(4000), 500)
    shapes = BatchShapes(Program(), 8)
    shapes.find(
        examples,
        groups,
        examples.n_elements(),
    )
    seen = set()
    for numbers, batch in zip(
        groups,
        shapes.pack(examples, groups),
        strict=True,
    ):
        own = tuple(len(array) for array in batch.arrays)
        assert (np.array(own) >= examples.sizes[numbers].sum(0)).all()
        seen.add(own)
    assert len(shapes.shapes) <= MOST_SHAPES
    # One beside those that were found; a few batches are a step of the ladder larger than that.
    assert len(seen) <= MOST_SHAPES + 4


def test_one_shape_has_room_for_batches_that_were_not_sampled_and_no_more():
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 12, 4000)
    examples = Examples(
        np.stack(
            [lengths, np.full(4000, 3)],
            1,
        )
    )
    shapes = BatchShapes(Program(), 32)
    groups = np.split(rng.permutation(4000), 125)
    shapes.find(
        examples,
        groups,
        examples.n_elements(),
    )
    (shape,) = shapes.shapes
    assert shape.sizes[1] == 96  # no batch has another number
    largest = max(lengths[numbers].sum() for numbers in groups)
    assert largest < shape.sizes[0] < 1.5 * lengths.mean() * 32
    for _ in range(20):
        for batch in shapes.pack(
            examples,
            np.split(rng.permutation(4000), 125),
        ):
            own = [len(array) for array in batch.arrays]
            assert own == list(shape.sizes.values())
