"""A small transformer that predicts characters, in plain JAX."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.optim import RandomDelay
from experiments.data import multi30k
from experiments.staleness.training import grid_of_losses

WIDTH = 32
HEADS = 2
BLOCKS = 2
CONTEXT = 24
BATCH = 8
VALID_ROWS = 32


def text(
    data_dir: Path | None,
    n: int = 60_000,
) -> tuple[np.ndarray, int]:
    """Characters of Multi30k's English captions where they are; else of sentences that a small grammar makes.

    Args:
      data_dir: The folder with data; else `AMPJAX_DATA`.
      n: Characters at most.

    Returns:
      Their numbers `[n]`, int32, and how many there are.
    """
    if data_dir or os.environ.get("AMPJAX_DATA"):
        data = multi30k.load(data_dir, n_train=2000)
        words = data.source_vocabulary.words
        columns = data.train.source
        numbers = []
        for a, b in itertools.pairwise(columns.ptr):
            numbers.append(columns.words[a:b])
        sentences = []
        for sentence in numbers:
            sentences.append(" ".join(str(words[i]) for i in sentence))
    else:
        sentences = generated(2000, np.random.default_rng(0))
    joined = "\n".join(sentences)[:n]
    letters = sorted(set(joined))
    number = {letter: i for i, letter in enumerate(letters)}
    return np.array([number[letter] for letter in joined], np.int32), len(letters)


def generated(
    n: int,
    rng: np.random.Generator,
) -> list[str]:
    """Sentences of a small grammar.

    Args:
      n: How many.
      rng: Draws them.
    """
    nouns = [
        "dog",
        "cat",
        "man",
        "woman",
        "boy",
        "girl",
        "house",
        "street",
        "ball",
        "river",
        "tree",
        "horse",
    ]
    verbs = ["sees", "follows", "paints", "holds", "leaves", "likes", "finds", "draws"]
    adjectives = ["red", "old", "small", "young", "large", "wet", "quiet"]

    def phrase() -> str:
        words = ["the" if rng.random() < 0.5 else "a"]
        if rng.random() < 0.5:
            words += [str(rng.choice(adjectives))]
        else:
            words += []
        return " ".join([*words, str(rng.choice(nouns))])

    return [f"{phrase()} {rng.choice(verbs)} {phrase()} ." for _ in range(n)]


def init(key: jax.Array, n_letters: int) -> Any:
    """Parameters.

    Args:
      key: Draws them.
      n_letters: Different characters.
    """
    keys = iter(jax.random.split(key, 3 + 4 * BLOCKS))

    def matrix(n_in: int, n_out: int) -> jax.Array:
        return jax.random.normal(next(keys), (n_in, n_out)) / jnp.sqrt(n_in)

    blocks = []
    for _ in range(BLOCKS):
        blocks.append(
            {
                "qkv": matrix(WIDTH, 3 * WIDTH),
                "attended": matrix(WIDTH, WIDTH),
                "up": matrix(WIDTH, 4 * WIDTH),
                "down": matrix(4 * WIDTH, WIDTH),
                "norms": jnp.ones((2, WIDTH))[:, None, :].reshape(
                    2,
                    1,
                    WIDTH,
                ),
            }
        )
    embed, place = (0.1 * jax.random.normal(next(keys), (n, WIDTH)) for n in (n_letters, CONTEXT))
    return {
        "embed": embed,
        "place": place,
        "blocks": blocks,
        "output": matrix(WIDTH, n_letters),
    }


def logits(params: Any, letters: jax.Array) -> jax.Array:
    """Scores of each next character.

    Args:
      params: Parameters.
      letters: `[rows, CONTEXT]`, int32.

    Returns:
      `[rows, CONTEXT, letters]`.
    """
    x = params["embed"][letters] + params["place"]
    seen = jnp.tril(jnp.ones((CONTEXT, CONTEXT), bool))
    for block in params["blocks"]:
        heads = (_norm(x) * block["norms"][0]) @ block["qkv"]
        q, k, v = jnp.moveaxis(
            heads.reshape(
                *x.shape[:2],
                3,
                HEADS,
                WIDTH // HEADS,
            ),
            2,
            0,
        )
        scores = jnp.einsum("rqhd,rkhd->rhqk", q, k) / jnp.sqrt(WIDTH / HEADS)
        weights = jax.nn.softmax(jnp.where(seen, scores, -1e9))
        x = x + jnp.einsum("rhqk,rkhd->rqhd", weights, v).reshape(x.shape) @ block["attended"]
        x = x + jax.nn.gelu((_norm(x) * block["norms"][1]) @ block["up"]) @ block["down"]
    return _norm(x) @ params["output"]


def grid(
    remedy: str,
    delay: int | RandomDelay,
    letters: np.ndarray,
    n: int,
    *,
    rates: Any,
    seeds: Any,
    steps: int,
) -> np.ndarray:
    """The losses at the ends of runs, for all learning rates and seeds.

    Args:
      remedy: By its name.
      delay: In updates.
      letters: The text, as numbers.
      n: Different characters.
      rates: Learning rates, before the remedy's own scale.
      seeds: Of parameters and batches.
      steps: Updates of a run.

    Returns:
      The mean validation loss of the last tenth, in nats a character, `[rates, seeds]`; inf where it diverged.
    """
    cut = len(letters) * 9 // 10
    held = jnp.asarray(np.linspace(cut, len(letters) - CONTEXT - 1, VALID_ROWS).astype(int))
    data = jnp.asarray(letters)

    def loss(params: Any, starts: jax.Array) -> jax.Array:
        rows = data[starts[:, None] + jnp.arange(CONTEXT + 1)]
        scores = jax.nn.log_softmax(logits(params, rows[:, :-1]))
        return -jnp.take_along_axis(scores, rows[:, 1:, None], -1).mean()

    def train(params: Any, key: jax.Array) -> jax.Array:
        return loss(
            params,
            jax.random.randint(
                key,
                (BATCH,),
                0,
                cut - CONTEXT - 1,
            ),
        )

    return grid_of_losses(
        remedy,
        delay,
        lambda key: init(key, n),
        train,
        lambda params: loss(params, held),
        rates=rates,
        seeds=seeds,
        steps=steps,
    )


def _norm(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)
