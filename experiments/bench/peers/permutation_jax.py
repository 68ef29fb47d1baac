"""Operations in an order of each instance's own, in plain JAX: the union of all paths in one `jax.jit`.

A step does every operation on every instance, and a mask keeps the one that is due: K² operations for K.
"""

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
from experiments.data.permutation import Shuffles
from experiments.models.permutation import embed
from experiments.permutation import splits

Batch = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Digits `[b, 6]`, orders `[b, K]`, labels `[b]`, -1 where a batch is filled up."""


def forward(
    params: Any,
    digits: jax.Array,
    orders: jax.Array,
) -> jax.Array:
    """Logits `[b, 10]`."""
    n = orders.shape[1]
    maps = [params[f"operation{k}"] for k in range(n)]
    w, b = (
        jnp.concatenate([m[part] for m in maps], axis=-1) for part in ("w", "b")
    )  # all operations in one product
    h = embed(params["embed"], digits)

    def step(
        h: jax.Array,
        due: jax.Array,
    ) -> tuple[jax.Array, None]:
        every = jax.nn.relu(h @ w + b).reshape(
            len(h),
            n,
            -1,
        )
        return jnp.where((due[:, None] == jnp.arange(n))[..., None], every, 0.0).sum(axis=1), None

    h, _ = jax.lax.scan(
        step,
        h,
        orders.T,
        unroll=True,
    )
    return h @ params["output"]["w"] + params["output"]["b"]


def loss(
    params: Any,
    digits: jax.Array,
    orders: jax.Array,
    labels: jax.Array,
) -> jax.Array:
    """Mean cross entropy over the labels that are not -1."""
    logits = forward(params, digits, orders)
    each = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
    return jnp.where(labels >= 0, each, 0.0).sum() / (labels >= 0).sum()


class Model:
    """Trains on minibatches, an Adam step for each.

    Args:
      batch: Instances in a minibatch.
      seed: Of the order. Data and initial parameters are those of the experiment's seed 0.
      **arguments: Further ones of `experiments.bench.ours.set_up`.
    """

    def __init__(
        self,
        batch: int = 100,
        seed: int = 0,
        **arguments: Any,
    ):
        options, task = set_up("permutation", **arguments)
        self._train, self._valid = splits(options, 0)
        self._rng = np.random.default_rng(seed)
        self._batch = batch
        self._params: Any = jax.tree.map(
            jnp.asarray,
            initial_params(task.graph, {}, 0),
        )
        self._tx = optax.adam(options.learning_rate)
        self._state = self._tx.init(self._params)
        first = next(minibatches(self._train, batch))
        self._step(
            *jax.tree.map(jnp.copy, (self._params, self._state)),
            *first,
        )  # compiles it
        self.evaluate()

    def train(self) -> int:
        """A pass over the training instances in random order."""
        for batch in minibatches(self._train, self._batch, self._rng):
            self._params, self._state = self._step(
                self._params,
                self._state,
                *batch,
            )
        jax.block_until_ready(self._params)
        return len(self._train)

    def infer(self) -> int:
        """A pass over the validation instances."""
        self.evaluate()
        return len(self._valid)

    def evaluate(self) -> float:
        """The accuracy over the validation instances."""
        hits = []
        for batch in minibatches(self._valid, self._batch):
            hits.append(self._hits(self._params, *batch))
        return float(np.sum(hits)) / len(self._valid)

    def updates(self) -> float:
        """Optimizer steps in a pass."""
        return -(-len(self._train) // self._batch)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
    def _step(
        self,
        params: Any,
        state: Any,
        *batch: Any,
    ) -> Any:
        grads = jax.grad(loss)(params, *batch)
        updates, state = self._tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    @functools.partial(jax.jit, static_argnums=0)
    def _hits(
        self,
        params: Any,
        digits: Any,
        orders: Any,
        labels: Any,
    ) -> jax.Array:
        return jnp.sum(jnp.argmax(forward(params, digits, orders), axis=-1) == labels)


def minibatches(
    data: Shuffles, batch: int, rng: np.random.Generator | None = None
) -> Iterator[Batch]:
    """Minibatches, in random order if there is a generator; the last one is filled up."""
    if rng is None:
        order = np.arange(len(data))
    else:
        order = rng.permutation(len(data))
    for i in range(0, len(order), batch):
        ids = np.resize(order[i : i + batch], batch)
        n = len(order) - i
        yield (
            data.digits[ids],
            data.orders[ids].astype(np.int32),
            np.where(
                np.arange(batch) < n,
                data.labels[ids],
                -1,
            ),
        )
