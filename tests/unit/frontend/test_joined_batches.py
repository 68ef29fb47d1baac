"""Small arrays of a packed batch side by side in one array, for the step of a trainer."""

import jax
import numpy as np

import ampjax as amp
from ampjax.frontend.batches.batch import SMALL, Batch
from ampjax.frontend.instances.instance_columns import Columns


def arrays_of(shape):
    """Arrays of two dtypes: small, empty, scalar and large."""
    kinds = [((2, 3), "f4"), ((), "i4"), ((0, 2), "f4"), ((SMALL + 1,), "i4"), ((4,), "i4")]
    arrays = []
    for number, (own, dtype) in enumerate(kinds):
        full = np.arange(np.prod((*shape, *own)))
        arrays.append((full + number).reshape((*shape, *own)).astype(dtype))
    return tuple(arrays)


def test_each_array_comes_back():
    for axes in ((), (3,), (2, 3)):
        arrays = arrays_of(axes)
        batch = Batch(np.ones((*axes, 5), np.float32), arrays, "layout")
        joined = batch.joined()
        assert len(joined.arrays) == 3
        assert joined.joined() is joined
        for array, column in zip(arrays, joined.columns(), strict=True):
            np.testing.assert_array_equal(array, column)
            assert array.dtype == column.dtype
    for part, array in zip(joined.parts[0].columns(), arrays, strict=True):
        np.testing.assert_array_equal(part, array[0])


def test_batches_without_labels_keep_their_arrays():
    batch = Batch(np.ones(1), (np.ones(2), np.ones(2)), "layout", ((1, ("y",)),))
    assert batch.joined() is batch


def test_a_trainers_batches_are_joined_and_equal():
    spec = {"x": "float32[n,2]", "y": "int32[]"}
    model = amp.vmap(
        lambda p, s: amp.sum(amp.map(lambda x: x @ p, s["x"])) * s["y"],
        spec,
        params=np.ones(2, np.float32),
    )
    examples = []
    for n in range(5):
        x = np.full((n, 2), n, np.float32)
        examples.append({"x": x, "y": np.int32(n)})
    columns = Columns(model._leaves, examples, True)
    numbers = np.arange(len(examples))
    packed = model.packed(columns, len(examples), [numbers])
    (joined,) = packed.batches([numbers])
    plain = model.pack(examples)
    assert len(jax.tree.leaves(joined)) < len(jax.tree.leaves(plain))
    p = np.array([0.5, 2.0], np.float32)
    np.testing.assert_array_equal(model(p, joined), model(p, plain))
