"""A table of hashed n-grams beside a language model (Engram): the rows that a text reads, and their part in its hidden states.

Knows arrays; nothing of runners or of where the table is. A runner finds it sparse by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import SettingsError
from ampjax.nn.ngram_hash import ngram_hashes
from ampjax.utils.setting_checks import at_least

Params = dict[str, jax.Array]
MOST_ROWS = 2**31 - 1
"""What ids of 32 bits can number."""


@dataclass(frozen=True)
class NgramTable:
    """A memory of n-grams for a language model: a large table of which a text reads a few rows for each token.

    Engram (Cheng et al. 2026, arXiv 2601.07372, §2). Each n-gram that ends at a token is hashed several times; each hash names a row, and
    the rows together are the memory e of the token. The hidden state h decides how much of it is let in:

        k = e W_k,   v = e W_v,   α = sigmoid(norm(h) · norm(k) / √d),   u = α v,   y = u + silu(conv(norm(u)))

    where `norm` divides by the root of the mean square and has a scale, and `conv` is depthwise and causal, over `kernel` tokens that are
    `max(orders)` apart; its weights start at zero. Add y to h. Simpler than in the paper are: one branch, any number of rows, and
    tokens as you pass them. (The authors' program takes a root of the gate's argument, with its sign, before the sigmoid; the paper does not.)

    Ids follow from tokens alone. Compute them in the loss or in the input pipeline, where NumPy gives the same bits; either way
    `px.get_runner` finds that `params["table"]` is sparse.

    Args:
      n_rows: Rows of each head; the table has `n_heads * len(orders)` times as many.
      features: Length of a row.
      n_hidden: d, the length of a hidden state.
      orders: The lengths n of n-grams.
      n_heads: The hashes of each n-gram.
      kernel: Tokens that the convolution sees; 0 leaves it out.
      seed: Another seed makes other hashes. Layers of one model take different ones.
      scale: Standard deviation of the table's initial values.

    Raises:
      SettingsError: If a number is out of its range, or ids of 32 bits do not number all rows.

    >>> layer = NgramTable(n_rows=1000, features=8, n_hidden=16)
    >>> print(layer.ids(np.array([5, 6, 5, 6])))  # two heads of 2-grams, two of 3-grams; each has a thousand rows of its own
    [[ 828 1740 2068 3653]
     [ 127 1226 2572 3451]
     [  82 1848 2448 3856]
     [ 127 1226 2006 3737]]
    >>> params = layer.init(jax.random.key(0))
    >>> params["table"].shape, layer(params, jnp.ones((4, 16)), layer.ids(np.array([5, 6, 5, 6]))).shape
    ((4000, 8), (4, 16))
    """

    n_rows: int
    features: int
    n_hidden: int
    orders: tuple[int, ...] = (2, 3)
    n_heads: int = 2
    kernel: int = 4
    seed: int = 0
    scale: float = 0.02

    def __post_init__(self) -> None:
        for name in ("n_rows", "features", "n_hidden", "n_heads"):
            at_least(name, getattr(self, name), 1)
        at_least("kernel", self.kernel, 0)
        at_least("seed", self.seed, 0)
        if not self.orders:
            raise SettingsError("setting `orders`", "lengths of n-grams", "none", "Pass `(2, 3)`.")
        for order in self.orders:
            at_least("orders", order, 1)
        if max(self.orders) > 255 or self.n_heads > 256:
            raise SettingsError(
                "NgramTable",
                "orders below 256 and at most 256 heads",
                f"{max(self.orders)} and {self.n_heads}",
                "Take fewer; 2 and 3, and 2 to 8 heads, are usual.",
            )
        if self.n_rows * self.n_ids > MOST_ROWS:
            raise SettingsError(
                "NgramTable, `n_rows`",
                f"at most {MOST_ROWS // self.n_ids} for {self.n_ids} heads",
                f"{self.n_rows}",
                "Take fewer rows, or two tables.",
            )

    @property
    def n_ids(self) -> int:
        """The rows that a token reads."""
        return self.n_heads * len(self.orders)

    def ids(self, tokens: Any) -> Any:
        """Finds the rows that each token reads, from its n-grams.

        Args:
          tokens: Token ids, `[..., n_tokens]`, NumPy's or JAX's; a negative one stands for none. See `ngram_hashes`, whose results modulo
            `n_rows` number the rows of each head.

        Returns:
          `[..., n_tokens, n_ids]`, int32: NumPy's array of NumPy's tokens, JAX's of JAX's, with the same bits.

        Raises:
          DataError: If tokens are no integers with an axis.
        """
        hashes = ngram_hashes(
            tokens,
            self.orders,
            self.n_heads,
            self.seed,
        )
        xp = jnp if isinstance(hashes, jax.Array) else np
        rows = (hashes % xp.uint32(self.n_rows)).astype(xp.int32)
        starts = xp.arange(self.n_ids, dtype=xp.int32) * xp.int32(self.n_rows)
        return rows + starts

    def init(self, key: jax.Array) -> Params:
        """Makes initial parameters.

        Args:
          key: A PRNG key.

        Returns:
          `table [n_ids * n_rows, features]`; `key` and `value` `[n_ids * features, n_hidden]`; `hidden_scale` and `key_scale` `[n_hidden]`; with a
          convolution `conv [kernel, n_hidden]` and `conv_scale [n_hidden]`; all float32.
        """
        for_table, for_key, for_value = jax.random.split(key, 3)
        n_memory = self.n_ids * self.features
        shape = (n_memory, self.n_hidden)
        params = {
            "table": self.scale
            * jax.random.normal(
                for_table,
                (self.n_ids * self.n_rows, self.features),
            ),
            "key": n_memory**-0.5 * jax.random.normal(for_key, shape),
            "value": n_memory**-0.5 * jax.random.normal(for_value, shape),
            "hidden_scale": jnp.ones(self.n_hidden),
            "key_scale": jnp.ones(self.n_hidden),
        }
        if self.kernel:
            params["conv"] = jnp.zeros((self.kernel, self.n_hidden))
            params["conv_scale"] = jnp.ones(self.n_hidden)
        return params

    def __call__(
        self,
        params: Params,
        hidden: Any,
        ids: Any,
    ) -> jax.Array:
        """Reads the memory of each token, and lets in as much as the hidden state asks for.

        Args:
          params: As `init` makes them.
          hidden: Hidden states, `[..., n_tokens, n_hidden]`.
          ids: As `ids` makes them, `[..., n_tokens, n_ids]`.

        Returns:
          What is to be added to the hidden states, `[..., n_tokens, n_hidden]`.
        """
        memory = params["table"][ids]
        n_memory = memory.shape[-2] * memory.shape[-1]
        memory = memory.reshape(*memory.shape[:-2], n_memory)
        asked = _norm_rows(hidden, params["hidden_scale"])
        offered = _norm_rows(memory @ params["key"], params["key_scale"])
        likeness = (asked * offered).sum(-1, keepdims=True)
        gate = jax.nn.sigmoid(likeness / self.n_hidden**0.5)
        let_in = gate * (memory @ params["value"])
        if not self.kernel:
            return let_in
        normed = _norm_rows(let_in, params["conv_scale"])
        convolved = _convolve(normed, params["conv"], max(self.orders))
        return let_in + jax.nn.silu(convolved)


def _norm_rows(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Vectors over the root of their mean square, times a scale."""
    mean_square = jnp.square(x).mean(-1, keepdims=True)
    return scale * x * jax.lax.rsqrt(mean_square + 1e-6)


def _convolve(x: jax.Array, weights: jax.Array, dilation: int) -> jax.Array:
    """A depthwise causal convolution, `[..., n_tokens, d]`: the last weight is for the newest token."""
    n_tokens = x.shape[-2]
    result = x * weights[-1]
    for age in range(1, len(weights)):
        back = age * dilation
        zeros = jnp.zeros(
            (*x.shape[:-2], back, x.shape[-1]),
            x.dtype,
        )
        older = jnp.concatenate(
            [zeros, x],
            axis=-2,
        )[..., :n_tokens, :]
        result = result + older * weights[-1 - age]
    return result
