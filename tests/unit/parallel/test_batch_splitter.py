import jax
import numpy as np
import pytest

import ampjax.parallel as px
from ampjax.devices import random_keys
from ampjax.errors import DataError, SettingsError
from ampjax.parallel.bag import BagWidths
from ampjax.parallel.batch_splitter import BatchSplitter
from ampjax.parallel.shard import split_batch

BATCHES = {
    "arrays": {
        "x": np.arange(4),
        "y": np.ones((4, 2), np.float32),
    },
    "other sizes": {
        "x": np.arange(2),
        "y": np.ones((2, 2), np.float32),
    },
    "other dtypes": {
        "x": np.arange(4, dtype=np.int8),
        "y": np.ones((4, 2)),
    },
    "numbers": {"x": np.arange(4), "y": 2.0},
    "keys": {
        "x": np.arange(4),
        "y": jax.random.key(0),
    },
    "parts": px.Parts(
        (
            {"x": np.arange(2)},
            {"x": np.arange(2)},
        )
    ),
    "bags": {
        "x": px.Bag(
            [1, 2, 3, 4, 5, 6],
            [0, 0, 6, 6],
        )
    },
    "shorter bags": {
        "x": px.Bag(
            [1],
            [0, 0, 1, 1],
        )
    },
}


def content(parts):
    leaves, structure = jax.tree.flatten(parts)
    data = [random_keys.data_of(leaf) for leaf in leaves]
    return structure, [(leaf.dtype, leaf.tolist()) for leaf in data]


def test_a_batch_is_cut_as_if_it_were_the_first():
    splitter = BatchSplitter(2, ())
    widths = BagWidths()
    for _ in range(3):
        for batch in BATCHES.values():
            wanted = split_batch(batch, 2, widths=widths)
            assert content(splitter(batch)) == content(wanted)


@pytest.mark.parametrize(
    ("batch", "error", "text"),
    [
        ({"x": np.array([0, 2**31])}, DataError, "leaf `x`: expected numbers that int32 holds"),
        ({"x": np.arange(3)}, SettingsError, "leaf `x`: expected a leading size above 0 that 2"),
    ],
)
def test_what_may_differ_from_batch_to_batch_is_checked_in_each(batch, error, text):
    splitter = BatchSplitter(2, ())
    splitter({"x": np.arange(2)})
    for _ in range(2):
        with pytest.raises(error, match=text):
            splitter(batch)
    assert [part["x"].tolist() for part in splitter({"x": np.array([7, 8])})] == [[7], [8]]
