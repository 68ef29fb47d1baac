"""Arrays that JAX takes without a copy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ampjax.sparse.rows.aligned_arrays import ALIGNMENT, aligned_empty


@pytest.mark.parametrize(
    "dtype",
    [np.float32, jnp.bfloat16, np.float16, np.int64, np.bool_],
)
@pytest.mark.parametrize(
    "shape",
    [(0, 4), (1,), (3, 5), (1001, 3), (2, 0, 7), ()],
)
def test_they_are_aligned_and_otherwise_like_any_other(shape, dtype):
    for _ in range(5):
        array = aligned_empty(shape, dtype)
        assert array.shape == shape
        assert array.dtype == np.dtype(dtype)
        assert array.flags.c_contiguous
        assert not array.size or array.ctypes.data % ALIGNMENT == 0
        array[...] = 1
        assert (array == 1).all()


def test_jax_uses_their_memory_on_a_cpu():
    device = jax.local_devices(backend="cpu")[0]
    for n in (1, 17, 1000):
        array = aligned_empty((n, 3), np.float32)
        array[...] = 2
        assert jax.device_put(array, device).unsafe_buffer_pointer() == array.ctypes.data
