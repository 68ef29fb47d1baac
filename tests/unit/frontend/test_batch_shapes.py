"""Shapes of batches whose sizes are large in ways of their own, so that none that shapes are found from is largest in all."""

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from ampjax.frontend.batches.batch_shapes import MOST_SHAPES, BatchShapes
from ampjax.frontend.batches.row_tables import rounded


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

    def pack_in(self, parts, size, least):
        del size
        (examples,) = parts
        sizes = {}
        for kind, n in enumerate(examples.sizes.sum(0)):
            sizes[kind] = max(rounded(int(n)), least.get(kind, 0))
        arrays = [np.zeros(n, np.int8) for n in sizes.values()]
        return [SimpleNamespace(arrays=arrays)], sizes


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
    for numbers in groups:
        (batch,) = shapes.pack(examples, numbers)
        own = tuple(len(array) for array in batch.arrays)
        assert (np.array(own) >= examples.sizes[numbers].sum(0)).all()
        seen.add(own)
    assert len(shapes.shapes) <= MOST_SHAPES
    # One beside those that were found; a few batches are a step of the ladder larger than that.
    assert len(seen) <= MOST_SHAPES + 4
