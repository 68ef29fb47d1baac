"""JAX's random generator Threefry, written out: the same numbers as `jax.random` gives, for many keys at once in one pass.

JAX compiles its generator (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.2) for CPUs as a loop of five
steps, each of which goes through memory; the loop also takes several fused kernels, and 0.15 s to compile. Knows keys; nothing of what is
drawn.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = 0x1BD11BDA


def is_threefry(key: Array) -> bool:
    """Tells whether a value is one key of JAX's generator Threefry-2x32."""
    return (
        jax.random.key_data(key).shape == (2,) and str(jax.random.key_impl(key)) == "threefry2x32"
    )


@partial(jax.jit, inline=True)
def blocks(key: Array, counts: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds of the blocks (0, count).

    Args:
      key: A key, for which `is_threefry` holds.
      counts: uint32, of any shape.

    Returns:
      The two words of each block, uint32, each of the shape of `counts`.
    """
    key_0, key_1 = jax.random.key_data(key)
    keys = key_0, key_1, key_0 ^ key_1 ^ np.uint32(PARITY)
    # The block is (0, count); key words 0 and 1 are added before the first round.
    x = jnp.zeros_like(counts) + key_0
    y = counts + key_1
    for i in range(5):
        for by in ROTATIONS[i % 2]:
            # A round: add, rotate, exclusive or.
            x = x + y
            y = ((y << np.uint32(by)) | (y >> np.uint32(32 - by))) ^ x
        # After four rounds two key words and a counter are added, in turn.
        x = x + keys[(i + 1) % 3]
        y = y + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x, y


def fold_in(key: Array, number: Array) -> Array:
    """The key that `jax.random.fold_in` makes of a key and a number.

    Args:
      key: A key. A raw one, or one of another generator, is left to JAX.
      number: A number; what isn't uint32 is left to JAX.

    Returns:
      The new key.
    """
    typed = jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed or not is_threefry(key) or jnp.result_type(number) != jnp.uint32:
        return jax.random.fold_in(key, number)
    return jax.random.wrap_key_data(
        jnp.stack(blocks(key, jnp.asarray(number))), impl="threefry2x32"
    )
