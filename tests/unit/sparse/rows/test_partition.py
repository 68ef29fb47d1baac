"""One partition: rows come back unchanged, of any shape and dtype."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.optim.row_rule import RowState, RowTypes
from ampjax.sparse.rows.partition import Partition
from ampjax.sparse.rows.row_kernels import FINE_ROWS, padded_size

N_ROWS = 12
DTYPES = [np.float32, np.float64, np.float16, jnp.bfloat16]
SHAPES = [
    (),
    (1,),
    (5,),
    (3, 2),
    (0,),
]


@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_put_are_there_to_the_bit_and_all_others_as_they_were(
    dtype, shape, is_mapped, tmp_path
):
    rng = np.random.default_rng(0)
    folder = tmp_path if is_mapped and shape != (0,) else None
    count = RowState(
        "count",
        (),
        np.dtype(np.float32),
    )
    types = RowTypes(
        shape,
        np.dtype(dtype),
        (count,),
    )
    part = Partition(
        0,
        N_ROWS,
        types,
        seen=0,
        folder=folder,
    )
    local = rng.permutation(N_ROWS)[:7]
    wanted = []
    new = []
    for array in part.arrays:
        array[...] = rng.normal(size=array.shape)
        rows = rng.normal(size=(7, *array.shape[1:]))
        rows = rows.astype(array.dtype)
        if rows.size:
            rows.flat[0] = -0.0
            rows.flat[-1] = np.nan
        after = array.copy()
        after[local] = rows
        wanted.append(after)
        # Every second row of a larger array: not in one piece.
        new.append(np.repeat(rows, 2, 0)[::2])

    part.put(local, new, version=3)

    for array, after in zip(part.arrays, wanted, strict=True):
        assert array.tobytes() == after.tobytes()
    seen = np.zeros(N_ROWS, int)
    seen[local] = 3
    assert part.seen is not None
    assert part.seen.tolist() == seen.tolist()


@given(st.integers(1, 1 << 22))
def test_padded_sizes_are_few_and_near(n):
    size = padded_size(n)
    assert n <= size == padded_size(size)
    assert size <= max(8, 2 * n - 1)
    if n > FINE_ROWS:
        assert size < 1.25 * n
        assert size % (1 << (size - 1).bit_length() - 3) == 0
