"""The bodies of random graphs: a few functions and frozen layers. Those that look equal are equal, so that cases share kernels.

Payloads have four features. Bodies are bounded, and smooth enough to be compared in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

FEATURES = 4
"""Every payload has this many features (a concat's result twice as many, until the next node)."""


def squash(x: jax.Array) -> jax.Array:
    """`x / sqrt(1 + x²)`: a square root and a division.

    Args:
      x: A payload `[4]`.
    """
    return x / jnp.sqrt(1 + x * x)


def logarithm(x: jax.Array) -> jax.Array:
    """`log(1 + x²)`.

    Args:
      x: A payload `[4]`.
    """
    return jnp.log1p(x * x)


def halves(x: jax.Array, y: jax.Array) -> jax.Array:
    """The mean of two payloads.

    Args:
      x: A payload `[4]`.
      y: Another payload `[4]`.
    """
    return 0.5 * (x + y)


def product(x: jax.Array, y: jax.Array) -> jax.Array:
    """`x · tanh(y)`.

    Args:
      x: A payload `[4]`.
      y: Another payload `[4]`.
    """
    return x * jnp.tanh(y)


def twins(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two outputs of one input.

    Args:
      x: A payload `[4]`.

    Returns:
      Two payloads `[4]`.
    """
    return jnp.tanh(x), 0.5 * x


@dataclass(frozen=True)
class Dense:
    """`tanh(x @ w + b)` to four features.

    Args:
      n_in: Features in.
      dtype: The parameters' dtype.
    """

    n_in: int = FEATURES
    dtype: str = "float32"

    def init(
        self,
        key: jax.Array,
    ) -> dict[str, jax.Array]:
        """`w [n_in, 4]` and `b [4]`."""
        w = jax.random.normal(
            key,
            (self.n_in, FEATURES),
            self.dtype,
        )
        b = jax.random.normal(key, (FEATURES,), self.dtype)
        return {
            "w": 0.6 * w * self.n_in**-0.5,
            "b": 0.1 * b,
        }  # small: a saturated tanh loses digits in float32

    def __call__(
        self,
        params: dict[str, jax.Array],
        x: jax.Array,
    ) -> jax.Array:
        """`[n_in] -> [4]`."""
        return jnp.tanh(x @ params["w"] + params["b"])


@dataclass(frozen=True)
class Scale:
    """`x · s`, with a parameter per feature."""

    dtype: str = "float32"

    def init(self, key: jax.Array) -> jax.Array:
        """`s [4]`."""
        return 1 + 0.2 * jax.random.normal(key, (FEATURES,), self.dtype)

    def __call__(
        self,
        params: jax.Array,
        x: jax.Array,
    ) -> jax.Array:
        """`[4] -> [4]`."""
        return x * params


@dataclass(frozen=True)
class Gate:
    """Mixes two payloads by a gate that reads the first (the sine keeps the two different, so that no gradient is zero by identity)."""

    dtype: str = "float32"

    def init(self, key: jax.Array) -> jax.Array:
        """`w [4, 4]`."""
        return 0.5 * jax.random.normal(key, (FEATURES, FEATURES), self.dtype)

    def __call__(
        self,
        params: jax.Array,
        x: jax.Array,
        y: jax.Array,
    ) -> jax.Array:
        """`[4], [4] -> [4]`."""
        gate = jax.nn.sigmoid(x @ params)
        return gate * jnp.sin(1 + x) + (1 - gate) * y


@dataclass(frozen=True)
class Cell:
    """A small recurrent cell with two inputs and two outputs, like an LSTM's `h` and `c`."""

    dtype: str = "float32"

    def init(self, key: jax.Array) -> jax.Array:
        """`w [4, 4]`."""
        return 0.5 * jax.random.normal(key, (FEATURES, FEATURES), self.dtype)

    def __call__(
        self, params: jax.Array, h: jax.Array, c: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """`[4], [4] -> [4], [4]`."""
        c = 0.5 * c + jnp.tanh(h @ params)
        return jnp.tanh(c), c


@dataclass(frozen=True)
class Table:
    """An embedding of `n_rows` tokens in four features."""

    n_rows: int = 5
    dtype: str = "float32"

    def init(self, key: jax.Array) -> jax.Array:
        """The table `[n_rows, 4]`."""
        return jax.random.normal(
            key,
            (self.n_rows, FEATURES),
            self.dtype,
        )

    def __call__(
        self,
        params: jax.Array,
        token: jax.Array,
    ) -> jax.Array:
        """`[] -> [4]`."""
        return params[token]


@dataclass(frozen=True)
class Largest:
    """The number of the largest of the first `n` features."""

    n: int

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[4] -> []`, an integer."""
        return jnp.argmax(x[: self.n])


def square_loss(x: jax.Array) -> jax.Array:
    """Half the squared norm of one payload.

    Args:
      x: A payload `[4]`.

    Returns:
      A scalar.
    """
    return 0.5 * jnp.sum(x * x)


def distance_loss(
    x: jax.Array,
    y: jax.Array,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Half the squared distance, with a scalar metric.

    Args:
      x: A payload `[4]`.
      y: Another payload `[4]`.

    Returns:
      The loss, and the metric `distance`.
    """
    loss = 0.5 * jnp.sum((x - y) ** 2)
    return loss, {"distance": jnp.sqrt(1 + loss)}


def token_loss(
    x: jax.Array,
    token: jax.Array,
) -> tuple[jax.Array, dict[str, Any]]:
    """Cross entropy of the four features with a label in `[0, 4)`, with a pair as metric.

    Args:
      x: Logits `[4]`.
      token: The label, an integer.

    Returns:
      The loss, and the metric `hits` as (sum, count).
    """
    hit = (jnp.argmax(x) == token).astype(x.dtype)
    return jax.nn.logsumexp(x) - x[token], {"hits": (hit, jnp.ones_like(hit))}


def sum_rows(
    rows: jax.Array,
    segment_ids: jax.Array,
    n_segments: int,
) -> jax.Array:
    """The sum of each segment's rows; zero for an empty one.

    Args:
      rows: `[r, 4]`.
      segment_ids: `[r]`: the segment of each row, sorted.
      n_segments: Number of segments.

    Returns:
      `[n_segments, 4]`.
    """
    return jax.ops.segment_sum(rows, segment_ids, n_segments)


def mean_rows(
    rows: jax.Array,
    segment_ids: jax.Array,
    n_segments: int,
) -> jax.Array:
    """The sum of each segment's rows over one more than their number.

    Args:
      rows: `[r, 4]`.
      segment_ids: `[r]`: the segment of each row, sorted.
      n_segments: Number of segments.

    Returns:
      `[n_segments, 4]`.
    """
    ones = jnp.ones((len(segment_ids), 1), rows.dtype)
    return sum_rows(rows, segment_ids, n_segments) / (1 + sum_rows(ones, segment_ids, n_segments))
