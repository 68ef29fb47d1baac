import jax
import numpy as np

from ampjax.parallel.steps.packed_leaves import pack_integers, unpack_integers


def test_a_tree_comes_out_of_a_program_as_jax_takes_its_leaves():
    tree = {
        "ids": np.array([[1, -(2**31)], [2**31 - 1, 0]]),
        "small": np.arange(3, dtype=np.int32),
        "bytes": np.arange(2, dtype=np.uint8),
        "flag": np.array(True),
        "one": np.array(7),
        "none": np.zeros((0, 2), np.int64),
        "device": jax.numpy.arange(2),
        "float": np.array([0.5, 1.5]),
    }
    form, leaves = pack_integers(tree)
    assert leaves.integers.tolist() == [0, 1, 1, -(2**31), 2**31 - 1, 0, 7, 0, 1, 2]
    made = jax.jit(unpack_integers, static_argnums=0)(form, leaves)
    wanted = jax.jit(lambda tree: tree)(tree)
    assert jax.tree.map(np.shape, made) == jax.tree.map(np.shape, wanted)
    assert jax.tree.map(lambda leaf: leaf.dtype, made) == jax.tree.map(
        lambda leaf: leaf.dtype, wanted
    )
    assert jax.tree.map(np.ndarray.tolist, jax.device_get(made)) == jax.tree.map(
        np.ndarray.tolist, jax.device_get(wanted)
    )
