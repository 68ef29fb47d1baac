"""The WikiNER tagger in plain JAX: minibatches of sentences padded with masks, the whole training step in one `jax.jit`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.train.initial_params import initial_params
from experiments.bench.ours import set_up
from experiments.data.wikiner import OUTSIDE, Sentences
from experiments.models.tagger import Sizes
from experiments.wikiner import load

Batch = dict[str, np.ndarray]
"""`words [b, n]` (-1 where rare), `tags [b, n]` (-1 where padded), `lengths [b]`; `characters [r, k]`, `sizes [r]` of rare words and
their `places [r]` among the `b * n` words (beyond them where padded)."""


def lstm(
    x: jax.Array,
    lengths: jax.Array,
    inputs: Any,
    w: jax.Array,
    reverse: bool,
) -> tuple[jax.Array, jax.Array]:
    """All `h [b, n, H]` of an LSTM over `x [b, n, features]`, and the last one `[b, H]`; padding leaves a state as it is."""
    gates = jnp.swapaxes(
        x @ inputs["w"] + inputs["b"],
        0,
        1,
    )
    inside = (jnp.arange(x.shape[1])[:, None] < lengths)[..., None]

    def step(state: Any, now: Any) -> Any:
        h, c = state
        z, real = now
        i, f, o, g = jnp.split(
            z + h @ w,
            4,
            axis=-1,
        )
        c_new = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jnp.where(
            real,
            jax.nn.sigmoid(o) * jnp.tanh(c_new),
            h,
        )
        c = jnp.where(real, c_new, c)
        return (h, c), h

    zeros = jnp.zeros((x.shape[0], w.shape[0]))
    (last, _), every = jax.lax.scan(
        step,
        (zeros, zeros),
        (gates, inside),
        reverse=reverse,
    )
    return jnp.swapaxes(every, 0, 1), last


def both_ways(
    params: Any, kind: str, x: jax.Array, lengths: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """All states and the last ones of both directions, side by side."""
    ways = (("forward", False), ("backward", True))
    pairs = []
    for w, reverse in ways:
        pairs.append(lstm(x, lengths, params[f"{kind}_input"][w], params[f"{kind}_{w}"], reverse))
    every, last = (jnp.concatenate(part, axis=-1) for part in zip(*pairs, strict=True))
    return every, last


def forward(
    params: Any,
    batch: Any,
    key: Any = None,
) -> jax.Array:
    """Logits `[b, n, 9]`."""
    b, n = batch["words"].shape
    x = params["embed"].at[batch["words"].reshape(-1)].get(mode="clip")
    _, spelled = both_ways(
        params, "char", params["char_embed"][batch["characters"]], batch["sizes"]
    )
    x = (
        x.at[batch["places"]]
        .set(spelled, mode="drop")
        .reshape(
            b,
            n,
            -1,
        )
    )
    if key is not None:
        x = x + Sizes().noise * jax.random.normal(key, x.shape)
    states, _ = both_ways(params, "word", x, batch["lengths"])
    return jnp.tanh(states @ params["hidden"]) @ params["output"]["w"]


def loss(
    params: Any,
    batch: Any,
    key: Any = None,
) -> jax.Array:
    """The summed cross entropy of all words."""
    tags = batch["tags"]
    each = optax.softmax_cross_entropy_with_integer_labels(
        forward(params, batch, key), jnp.maximum(tags, 0)
    )
    return jnp.where(tags >= 0, each, 0.0).sum()


class Model:
    """Trains on minibatches, an Adam step for each.

    Args:
      batch: Sentences in a minibatch, padded to a few widths.
      bucketed: Whether sentences of like lengths go together; else any do.
      seed: Of noise and order. Data and initial parameters are those of the experiment's seed 0.
      **arguments: Further ones of `experiments.bench.ours.set_up`.
    """

    def __init__(
        self,
        batch: int = 32,
        bucketed: bool = True,
        seed: int = 0,
        **arguments: Any,
    ):
        options, task = set_up("wikiner", **arguments)
        self._rng = np.random.default_rng(seed)
        self._key = jax.random.key(seed)
        self._minibatches = functools.partial(by_length if bucketed else at_random, batch=batch)
        self._train, self._valid = load(options)
        self._params: Any = jax.tree.map(
            jnp.asarray,
            initial_params(task.graph, {}, 0),
        )
        self._tx = optax.adam(options.learning_rate)
        self._state = self._tx.init(self._params)
        self.n_updates = -(-len(self._train) // batch)
        kept = jax.tree.map(
            jnp.copy,
            (self._params, self._state),
        )
        for each in self._minibatches(self._train, rng=self._rng):  # compiles everything
            self._params, self._state = self._step(
                self._params,
                self._state,
                each,
                self._key,
            )
        self.metrics()
        self._params, self._state = kept

    def train(self) -> int:
        """A pass over the training sentences, minibatches in random order."""
        for batch in self._minibatches(self._train, rng=self._rng):
            self._key, key = jax.random.split(self._key)
            self._params, self._state = self._step(
                self._params,
                self._state,
                batch,
                key,
            )
        jax.block_until_ready(self._params)
        return len(self._train)

    def infer(self) -> int:
        """A pass over the validation sentences."""
        self.metrics()
        return len(self._valid)

    def evaluate(self) -> float:
        """The accuracy over the validation words."""
        return self.metrics()["accuracy"]

    def metrics(self) -> dict[str, float]:
        """The accuracy over all validation words, and over those inside entities."""
        counts = np.sum(
            [self._count(self._params, b) for b in self._minibatches(self._valid)],
            axis=0,
        )
        return {
            "accuracy": float(counts[0] / counts[1]),
            "accuracy_without_o": float(counts[2] / counts[3]),
        }

    def updates(self) -> float:
        """Optimizer steps in a pass."""
        return self.n_updates

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
    def _step(
        self,
        params: Any,
        state: Any,
        batch: Any,
        key: Any,
    ) -> Any:
        grads = jax.grad(loss)(params, batch, key)
        updates, state = self._tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    @functools.partial(jax.jit, static_argnums=0)
    def _count(self, params: Any, batch: Any) -> jax.Array:
        tags = batch["tags"]
        hits = jnp.argmax(forward(params, batch), axis=-1) == tags
        return jnp.stack(
            [x.sum() for x in (hits, tags >= 0, hits & (tags != OUTSIDE), tags > OUTSIDE)]
        )


def by_length(
    data: Sentences, batch: int, rng: np.random.Generator | None = None
) -> Iterator[Batch]:
    """Sentences of like lengths together; with a generator, random among equals, and minibatches in random order."""
    if rng is None:
        noise = np.arange(len(data))
    else:
        noise = rng.random(len(data))
    order = np.lexsort((noise, np.diff(data.ptr)))
    chunks = []
    for i in range(0, len(order), batch):
        chunks.append(order[i : i + batch])
    for c in range(len(chunks)) if rng is None else rng.permutation(len(chunks)):
        yield padded(data, chunks[c], batch)


def at_random(
    data: Sentences, batch: int, rng: np.random.Generator | None = None
) -> Iterator[Batch]:
    """Sentences as they come; with a generator, in random order."""
    if rng is None:
        order = np.arange(len(data))
    else:
        order = rng.permutation(len(data))
    for i in range(0, len(order), batch):
        yield padded(data, order[i : i + batch], batch)


def padded(data: Sentences, ids: np.ndarray, n_rows: int) -> Batch:
    """A minibatch, padded in sentences to `n_rows`, in words, rare words and characters to the next of a few sizes."""
    lengths = np.zeros(n_rows, np.int32)
    lengths[: len(ids)] = np.diff(data.ptr)[ids]
    words = np.full(
        (n_rows, width(lengths.max())),
        -1,
        np.int32,
    )
    tags = words.copy()
    sizes = []
    spellings = []
    places = []
    for row, i in enumerate(ids):
        span = slice(data.ptr[i], data.ptr[i + 1])
        words[row, : lengths[row]] = data.words[span]
        tags[row, : lengths[row]] = data.tags[span]
        for t in np.flatnonzero(data.words[span] < 0):
            spellings.append(
                data.characters[data.char_ptr[span.start + t] : data.char_ptr[span.start + t + 1]]
            )
            sizes.append(len(spellings[-1]))
            places.append(row * words.shape[1] + t)
    n_rare = width(max(1, len(sizes)))
    characters = np.zeros(
        (n_rare, width(max(sizes, default=1))),
        np.int32,
    )
    for row, spelling in enumerate(spellings):
        characters[row, : len(spelling)] = spelling
    fill = n_rare - len(sizes)
    return {
        "words": words,
        "tags": tags,
        "lengths": lengths,
        "characters": characters,
        "sizes": np.array([*sizes, *[0] * fill], np.int32),
        "places": np.array(
            [*places, *[words.size] * fill],
            np.int32,
        ),
    }


def width(n: int) -> int:
    """The next power of two of at least 8."""
    return max(8, 1 << (int(n) - 1).bit_length())
