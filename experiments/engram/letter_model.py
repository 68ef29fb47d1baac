"""A small transformer that predicts characters, with or without a memory of n-grams behind its first block, in plain JAX."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.nn import NgramTable
from ampjax.optim import rowwise_adagrad

Params = dict[str, Any]
Batch = dict[str, Any]
"""`letters` `[rows, context + 1]` int32; with a memory `ids` `[rows, context, n_ids]` int32."""

HEAD_WIDTH = 32
ROWS_AT_ONCE = 1 << 18
"""Rows that are drawn together."""


@dataclass(frozen=True)
class LetterModel:
    """A transformer; as in the paper, the memory comes after the first block.

    Args:
      n_letters: Different characters.
      context: Characters that it sees at once.
      width: Features of a hidden state, a multiple of 32, which is the width of a head.
      blocks: Blocks.
      memory: The table of n-grams; None for none.
    """

    n_letters: int
    context: int = 128
    width: int = 128
    blocks: int = 2
    memory: NgramTable | None = None

    def init(self, key: jax.Array) -> Params:
        """Makes dense parameters, without the memory's table (`init_table`).

        Args:
          key: Draws them; those of a model with a memory are the same as without, and some more.
        """
        n_keys = 4 + 4 * self.blocks
        keys = iter(jax.random.split(key, n_keys))
        width = self.width

        def matrix(n_in: int, n_out: int) -> jax.Array:
            drawn = jax.random.normal(next(keys), (n_in, n_out))
            return drawn / jnp.sqrt(n_in)

        def small(n: int) -> jax.Array:
            return 0.1 * jax.random.normal(next(keys), (n, width))

        blocks = []
        for _ in range(self.blocks):
            blocks.append(
                {
                    "qkv": matrix(width, 3 * width),
                    "attended": matrix(width, width),
                    "up": matrix(width, 4 * width),
                    "down": matrix(4 * width, width),
                    "norms": jnp.ones((2, width)),
                }
            )
        params = {
            "embed": small(self.n_letters),
            "place": small(self.context),
            "output": matrix(width, self.n_letters),
            "blocks": blocks,
        }
        if self.memory is not None:
            one_row = NgramTable(
                n_rows=1,
                features=self.memory.features,
                n_hidden=width,
                orders=self.memory.orders,
                n_heads=self.memory.n_heads,
            )
            params["ngrams"] = one_row.init(next(keys))
            del params["ngrams"]["table"]
        return params

    def batch(self, letters: np.ndarray) -> Batch:
        """A batch with the rows that its n-grams read.

        Args:
          letters: `[rows, context + 1]` int32.
        """
        if self.memory is None:
            return {"letters": letters}
        ids = self.memory.ids(letters[:, :-1])
        return {"letters": letters, "ids": ids}

    def losses(self, params: Params, batch: Batch) -> jax.Array:
        """Cross-entropies of next characters, in nats.

        Args:
          params: As `init` makes them; with a memory also `params["ngrams"]["table"]`.
          batch: A batch.

        Returns:
          `[rows, context]`.
        """
        letters = batch["letters"]
        read = letters[:, :-1]
        x = params["embed"][read] + params["place"]
        for number, block in enumerate(params["blocks"]):
            x = self._block(block, x)
            if number == 0 and self.memory is not None:
                x = x + self.memory(
                    params["ngrams"],
                    x,
                    batch["ids"],
                )
        logits = _norm(x) @ params["output"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, letters[:, 1:])

    def loss(self, params: Params, batch: Batch) -> jax.Array:
        """The mean of `losses`.

        Args:
          params: As for `losses`.
          batch: A batch.
        """
        return self.losses(params, batch).mean()

    def _block(self, block: Params, x: jax.Array) -> jax.Array:
        rows, context, width = x.shape
        heads = (_norm(x) * block["norms"][0]) @ block["qkv"]
        heads = heads.reshape(
            rows,
            context,
            3,
            -1,
            HEAD_WIDTH,
        )
        q, k, v = jnp.moveaxis(heads, 2, 0)
        scores = jnp.einsum("rqhd,rkhd->rhqk", q, k) / HEAD_WIDTH**0.5
        everything = jnp.ones((context, context), bool)
        seen = jnp.tril(everything)
        scores = jnp.where(seen, scores, -1e9)
        weights = jax.nn.softmax(scores)
        attended = jnp.einsum("rhqk,rkhd->rqhd", weights, v)
        attended = attended.reshape(rows, context, width)
        x = x + attended @ block["attended"]
        hidden = (_norm(x) * block["norms"][1]) @ block["up"]
        return x + jax.nn.gelu(hidden) @ block["down"]


def init_table(
    memory: NgramTable,
    seed: int,
    into: np.ndarray | None = None,
) -> np.ndarray:
    """Draws the rows of a memory in blocks, so that memory holds one copy.

    Args:
      memory: The table.
      seed: Draws them.
      into: An array for them, such as a mapped file; None makes one in memory.

    Returns:
      `[n_ids * n_rows, features]` float32.
    """
    n = memory.n_ids * memory.n_rows
    rng = np.random.default_rng(seed)
    if into is None:
        table = np.empty((n, memory.features), np.float32)
    else:
        table = into
    for start in range(0, n, ROWS_AT_ONCE):
        block = table[start : start + ROWS_AT_ONCE]
        block[:] = rng.standard_normal(block.shape, np.float32)
        block *= np.float32(memory.scale)
    return table


def with_table(params: Params, table: Any) -> Params:
    """Adds the rows of the memory to parameters.

    Args:
      params: As `LetterModel.init` makes them.
      table: The rows, or some of them.
    """
    ngrams = {**params["ngrams"], "table": table}
    return {**params, "ngrams": ngrams}


def dense_optimizer(rate: float) -> optax.GradientTransformation:
    """Adam, for all parameters but tables.

    Args:
      rate: The learning rate.
    """
    return optax.adam(rate)


def optimizer(rate: float, table_rate: float) -> optax.GradientTransformation:
    """Adam, and for the table of a memory Adagrad with one number a row.

    Args:
      rate: The learning rate of Adam.
      table_rate: The table's.
    """

    def kinds(params: Params) -> Params:
        result = jax.tree.map(lambda _: "dense", params)
        if "table" in params.get("ngrams", {}):
            result["ngrams"]["table"] = "table"
        return result

    each: dict[Any, optax.GradientTransformation] = {
        "dense": dense_optimizer(rate),
        "table": rowwise_adagrad(table_rate),
    }
    return optax.partition(each, kinds)


def _norm(x: jax.Array) -> jax.Array:
    mean_square = jnp.mean(x * x, -1, keepdims=True)
    return x * jax.lax.rsqrt(mean_square + 1e-6)
