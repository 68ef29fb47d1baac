"""Draws that are true with some probability: those of `jax.random.bernoulli`, for many keys in a quarter of its time on a CPU.

JAX compiles its generator, Threefry (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", section 4.2), for CPUs as a loop of five steps, each of
which goes through memory. Written out, they are one pass.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)
PARITY = 0x1BD11BDA
MANTISSA_BITS = 23


def bernoulli(key: Array, p: float, shape: tuple[int, ...]) -> Array:
    """Draws that are true with probability `p`: the same as those of `jax.random.bernoulli`.

    Args:
      key: A PRNG key.
      p: The probability. A number of another kind than Python's floats, or outside [0, 1], is left to JAX.
      shape: The draws' shape.

    Returns:
      Booleans `[*shape]`.
    """
    n = math.prod(shape)
    plain = isinstance(p, float) and 0 <= p <= 1
    if not plain or not _is_known(key) or not 0 < n < 1 << 32:
        return jax.random.bernoulli(key, p, shape)
    # A uniform number is its first 23 bits, as a fraction.
    limit = math.ceil(float(np.float32(p)) * (1 << MANTISSA_BITS))
    return ((_bits(key, n) >> np.uint32(32 - MANTISSA_BITS)) < np.uint32(limit)).reshape(shape)


def _is_known(key: Array) -> bool:
    """Whether this is one key, with which `jax.random` draws as is done here."""
    if jax.random.key_data(key).shape != (2,):
        return False
    of_counts: bool = jax.config.jax_threefry_partitionable  # pyright: ignore - jax.config's type does not list its options
    return of_counts and str(jax.random.key_impl(key)) == "threefry2x32" and jnp.result_type(float) == jnp.float32


def _bits(key: Array, n: int) -> Array:
    """`[n]`, uint32: the two words of each number's block, one on the other."""
    words = jax.random.key_data(key)
    counts, half = jax.lax.iota(jnp.uint32, n), -(-n // 2)
    # XLA draws anew in every loop that reads the numbers, in some one at a time, unless they are put together from parts.
    return jnp.concatenate([_blocks(words[0], words[1], part) for part in (counts[:half], counts[half:])])


def _blocks(key_0: Array, key_1: Array, counts: Array) -> Array:
    """Threefry-2x32 with 20 rounds of the blocks (0, count)."""
    keys = key_0, key_1, key_0 ^ key_1 ^ np.uint32(PARITY)
    x, y = jnp.zeros_like(counts) + key_0, counts + key_1
    for i in range(5):
        for by in ROTATIONS[i % 2]:
            x = x + y
            y = ((y << np.uint32(by)) | (y >> np.uint32(32 - by))) ^ x
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x ^ y
