"""The hash of n-grams, in unsigned integers of 32 bits, the same in NumPy and in JAX.

Knows tokens and numbers; nothing of tables or layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError

_MASK = 0xFFFFFFFF
_GOLDEN = 0x9E3779B9
_SHIFTS = (16, 13, 16)
_FACTORS = (0x85EBCA6B, 0xC2B2AE35)


def ngram_hashes(
    tokens: Any,
    orders: Sequence[int],
    n_heads: int,
    seed: int = 0,
) -> Any:
    """Hashes the n-grams that end at each token, several times each.

    For head k of n-grams, position t and all arithmetic modulo 2^32,

        h = mix(x[t]·m[0] ^ x[t-1]·m[1] ^ ... ^ x[t-n+1]·m[n-1])

    where x is the token plus 1, and 0 before the begin and for a negative token. `mix` is the end of MurmurHash3: `h ^= h >> 16`,
    `h *= 0x85ebca6b`, `h ^= h >> 13`, `h *= 0xc2b2ae35`, `h ^= h >> 16`. The multipliers are odd, `m[i] = mix(seed + 0x9e3779b9·j) | 1`, where
    `j = (n·256 + k)·256 + i + 1`. So each head has a hash of its own. Products of tokens, joined by exclusive or, are the hash of Engram (arXiv 2601.07372,
    §2.2), which has 64 bits, one set of multipliers for all heads, and a prime number of rows for each.

    Args:
      tokens: Token ids, `[..., n_tokens]`, integers below 2^32 - 1; a negative one stands for none. `max(orders) - 1` of them keep two texts apart.
      orders: The lengths n of n-grams, each from 1 to 255.
      n_heads: The hashes of each n-gram, 256 at most.
      seed: Another seed makes other hashes.

    Returns:
      `[..., n_tokens, len(orders) * n_heads]`, uint32, the heads of the first order first: NumPy's array of NumPy's tokens, JAX's of JAX's,
      with the same bits.

    Raises:
      DataError: If tokens are no integers with an axis, or one is too large.

    >>> ngram_hashes([[7, 7, 9]], orders=(2,), n_heads=2).tolist()
    [[[3564788912, 109794311], [3058970295, 4195057481], [2134208981, 2492814128]]]
    """
    xp = jnp if isinstance(tokens, jax.Array) else np
    x = _number_grams(xp, tokens)
    by_age = [x]
    for age in range(1, max(orders)):
        by_age.append(_older(xp, x, age))
    hashes = []
    for n in orders:
        for head in range(n_heads):
            joined = xp.zeros_like(x)
            for age in range(n):
                factor = xp.uint32(multiplier(seed, n, head, age))
                joined = joined ^ (by_age[age] * factor)
            hashes.append(_mix(xp, joined))
    return xp.stack(hashes, axis=-1)


def multiplier(seed: int, order: int, head: int, age: int) -> int:
    """The odd number by which a token is multiplied.

    Args:
      seed: The seed.
      order: The length of the n-gram.
      head: Which of its hashes it is.
      age: The token's place before the last one.
    """
    number = (order * 256 + head) * 256 + age + 1
    return mix((seed + _GOLDEN * number) & _MASK) | 1


def mix(number: int) -> int:
    """The end of MurmurHash3 for a Python integer of 32 bits, where each bit changes half of the result's."""
    number ^= number >> _SHIFTS[0]
    number = number * _FACTORS[0] & _MASK
    number ^= number >> _SHIFTS[1]
    number = number * _FACTORS[1] & _MASK
    return number ^ number >> _SHIFTS[2]


def _mix(xp: Any, numbers: Any) -> Any:
    """`mix` of arrays."""
    first, second, third = map(xp.uint32, _SHIFTS)
    numbers = (numbers ^ (numbers >> first)) * xp.uint32(_FACTORS[0])
    numbers = (numbers ^ (numbers >> second)) * xp.uint32(_FACTORS[1])
    return numbers ^ (numbers >> third)


def _number_grams(xp: Any, tokens: Any) -> Any:
    """Tokens plus 1, 0 where there is none, uint32."""
    array = xp.asarray(tokens)
    if array.dtype.kind not in "iu" or not array.ndim:
        fix = "Pass the ids of tokens, with an axis of positions."
        raise DataError(
            "n-grams, `tokens`",
            "integers [..., n_tokens]",
            f"{array.dtype}{list(array.shape)}",
            fix,
        )
    if xp is np and array.size and array.max() >= _MASK:
        fix = "Number the tokens from 0."
        raise DataError("n-grams, `tokens`", "numbers below 2^32 - 1", f"{array.max()}", fix)
    return xp.where(
        array < 0,
        xp.uint32(0),
        array.astype(xp.uint32) + xp.uint32(1),
    )


def _older(xp: Any, x: Any, age: int) -> Any:
    """By position the token that stands so many places before, 0 where there is none."""
    zeros = xp.zeros((*x.shape[:-1], age), xp.uint32)
    return xp.concatenate([zeros, x], axis=-1)[..., : x.shape[-1]]
