"""The perceptron in plain JAX: the whole training step in one `jax.jit`."""

from __future__ import annotations

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.train.initial_params import initial_params
from experiments.bench.ours import set_up
from experiments.data.mnist import Batches
from experiments.mnist import rate
from experiments.models.layers.losses import labelled_cross_entropy


def forward(params: Any, images: jax.Array) -> jax.Array:
    """Logits `[b, 10]` of images `[b, 784]`; `params` has `linear1`, `linear2`, ... in their order."""
    x = images
    for i, layer in enumerate(params.values()):
        x = x if i == 0 else jax.nn.relu(x)
        x = x @ layer["w"] + layer["b"]
    return x


def loss(
    params: Any,
    images: jax.Array,
    labels: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Mean cross entropy over the labels that are not -1, and hits."""
    value, metrics = labelled_cross_entropy(forward(params, images), labels)
    return value, metrics["accuracy"][0]


class Model:
    """Trains on batches, an SGD step for each.

    Args:
      batch: Images in a batch.
      seed: Of the order. Data and initial parameters are those of the experiment's seed 0.
      **arguments: Further ones of `experiments.bench.ours.set_up`.
    """

    def __init__(
        self,
        batch: int = 100,
        seed: int = 0,
        **arguments: Any,
    ):
        options, task = set_up("mnist", batch_size=batch, **arguments)
        self._train = cast(Batches, task.train)
        self._valid = cast(Batches, task.valid)
        self._rng = np.random.default_rng(seed)
        self._params: Any = jax.tree.map(
            jnp.asarray,
            initial_params(task.graph, {}, 0),
        )
        self._tx = optax.sgd(rate(options))
        self._state = self._tx.init(self._params)
        first = next(minibatches(self._train))
        self._step(
            *jax.tree.map(jnp.copy, (self._params, self._state)),
            *first,
        )  # compiles it
        self.evaluate()

    def train(self) -> int:
        """A pass over the training images in random order."""
        for batch in minibatches(self._train, self._rng):
            self._params, self._state = self._step(
                self._params,
                self._state,
                *batch,
            )
        jax.block_until_ready(self._params)
        return self._train.n_examples

    def infer(self) -> int:
        """A pass over the validation images."""
        self.evaluate()
        return self._valid.n_examples

    def evaluate(self) -> float:
        """The accuracy over the validation images."""
        hits = []
        for batch in minibatches(self._valid):
            hits.append(self._hits(self._params, *batch))
        return float(np.sum(hits)) / self._valid.n_examples

    def updates(self) -> float:
        """Optimizer steps in a pass."""
        return len(self._train)

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
    def _step(
        self,
        params: Any,
        state: Any,
        images: Any,
        labels: Any,
    ) -> Any:
        grads = jax.grad(lambda params: loss(params, images, labels)[0])(params)
        updates, state = self._tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    @functools.partial(jax.jit, static_argnums=0)
    def _hits(
        self,
        params: Any,
        images: Any,
        labels: Any,
    ) -> jax.Array:
        return loss(params, images, labels)[1]


def minibatches(
    data: Batches,
    rng: np.random.Generator | None = None,
) -> Any:
    """Images `[b, 784]` and labels `[b]`, -1 where the last batch is filled up; newly drawn if there is a generator."""
    data = data if rng is None else data.reshuffle(rng)
    for i in range(len(data)):
        batch = data.gather(np.array([i]))
        yield batch["image"].payload[0], batch["label"].payload[0]
