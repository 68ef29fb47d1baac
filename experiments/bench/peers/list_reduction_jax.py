"""List reduction in plain JAX: the whole training step in one `jax.jit`, padded with a mask, or compiled once for each length."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments.data.list_reduction import MAX_LENGTH, ListReduction, splits
from experiments.models.rnn import init

Batch = tuple[np.ndarray, np.ndarray | None, np.ndarray]
"""Tokens `[t, b]`, lengths `[b]` (None where all are equal) and labels `[b]`, -1 where a batch is filled up."""


def forward(
    params: Any,
    tokens: jax.Array,
    lengths: jax.Array | None,
) -> jax.Array:
    """Logits `[b, 10]` of tokens `[t, b]`; with lengths `[b]`, a state stays as it is once its sequence has ended."""
    table = params["embed"]
    linear1 = params["linear1"]
    linear2 = params["linear2"]

    def step(
        h: jax.Array,
        inputs: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, None]:
        t, token = inputs
        new = jax.nn.relu(jnp.concatenate([table[token], h], axis=-1) @ linear1["w"] + linear1["b"])
        return (new if lengths is None else jnp.where((t < lengths)[:, None], new, h)), None

    h = jnp.zeros((tokens.shape[1], table.shape[1]))
    h, _ = jax.lax.scan(
        step,
        h,
        (jnp.arange(tokens.shape[0]), tokens),
        unroll=True,
    )
    return h @ linear2["w"] + linear2["b"]


def loss(
    params: Any,
    tokens: jax.Array,
    lengths: jax.Array | None,
    labels: jax.Array,
) -> jax.Array:
    """Mean cross entropy over the labels that are not -1."""
    each = optax.softmax_cross_entropy_with_integer_labels(
        forward(params, tokens, lengths), jnp.maximum(labels, 0)
    )
    return jnp.where(labels >= 0, each, 0.0).sum() / (labels >= 0).sum()


class Model:
    """Trains on minibatches, an Adam step for each.

    Args:
      by_length: Batches of one length each, without padding; else of mixed lengths, padded to 10.
      n_train: Training sequences.
      n_valid: Validation sequences.
      batch: Sequences in a minibatch.
      epochs: Passes over which the learning rate falls to 0.
      learning_rate: Adam's.
      seed: Of parameters, data and order.
    """

    def __init__(
        self,
        by_length: bool,
        n_train: int,
        n_valid: int,
        *,
        batch: int = 100,
        epochs: int = 13,
        learning_rate: float = 2e-3,
        seed: int = 0,
    ):
        self._rng = np.random.default_rng(seed)
        self._train, self._valid = splits(n_train, n_valid, seed)
        self._minibatches = functools.partial(minibatches, batch=batch, by_length=by_length)
        self._params: Any = init(jax.random.key(seed))
        self.n_updates = len(list(self._minibatches(self._train)))
        self._tx = optax.adam(optax.cosine_decay_schedule(learning_rate, epochs * self.n_updates))
        self._state = self._tx.init(self._params)
        kept = jax.tree.map(
            jnp.copy,
            (self._params, self._state),
        )
        for data in (self._train, self._valid):  # compiles everything
            for each in self._minibatches(data):
                (self._params, self._state) = self._step(
                    self._params,
                    self._state,
                    *each,
                )
                self._hits(self._params, *each)
        self._params, self._state = kept

    def train(self) -> int:
        """A pass over the training sequences in random order."""
        for batch in self._minibatches(self._train, rng=self._rng):
            self._params, self._state = self._step(
                self._params,
                self._state,
                *batch,
            )
        jax.block_until_ready(self._params)
        return len(self._train)

    def infer(self) -> int:
        """A pass over the validation sequences."""
        self.evaluate()
        return len(self._valid)

    def evaluate(self) -> float:
        """The accuracy over the validation sequences."""
        hits = []
        for batch in self._minibatches(self._valid):
            hits.append(self._hits(self._params, *batch))
        return float(sum(np.asarray(h) for h in hits)) / len(self._valid)

    def updates(self) -> float:
        """Optimizer steps in a pass."""
        return self.n_updates

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
    def _step(
        self,
        params: Any,
        state: Any,
        tokens: Any,
        lengths: Any,
        labels: Any,
    ) -> Any:
        grads = jax.grad(loss)(params, tokens, lengths, labels)
        updates, state = self._tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    @functools.partial(jax.jit, static_argnums=0)
    def _hits(
        self,
        params: Any,
        tokens: Any,
        lengths: Any,
        labels: Any,
    ) -> jax.Array:
        return jnp.sum(jnp.argmax(forward(params, tokens, lengths), axis=-1) == labels)


def minibatches(
    data: ListReduction,
    batch: int,
    by_length: bool,
    rng: np.random.Generator | None = None,
) -> Iterator[Batch]:
    """Minibatches of one length each, or of mixed lengths and padded to 10; in random order if there is a generator."""
    if rng is None:
        order = np.arange(len(data))
    else:
        order = rng.permutation(len(data))
    groups = [order]
    if by_length:
        groups = []
        for length in np.unique(data.lengths):
            groups.append(order[data.lengths[order] == length])
    chunks = []
    for group in groups:
        for i in range(0, len(group), batch):
            chunks.append(group[i : i + batch])
    for c in range(len(chunks)) if rng is None else rng.permutation(len(chunks)):
        ids = np.resize(chunks[c], batch)
        n = len(chunks[c])
        labels = np.where(
            np.arange(batch) < n,
            data.labels[ids],
            -1,
        )
        if by_length:
            width = int(data.lengths[ids[0]])
        else:
            width = MAX_LENGTH
        if by_length:
            lengths = None
        else:
            lengths = data.lengths[ids].astype(np.int32)
        yield np.ascontiguousarray(data.tokens[ids, :width].T), lengths, labels


def padded(**arguments: Any) -> Model:
    """Padded to length 10, with a mask."""
    return Model(False, **arguments)


def per_length(**arguments: Any) -> Model:
    """Compiled once for each length."""
    return Model(True, **arguments)
