"""The gated graph networks in plain JAX: minibatches of whole graphs side by side, the whole training step in one `jax.jit`.

The edges of a batch stand in the order of their kinds: one gather of senders, a matrix product for each kind, and one `segment_sum` over
receivers make a propagation step; the steps are unrolled. `experiments.bench.peers.ggnn_batches` says what goes together, and how it is padded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.train.initial_params import initial_params
from experiments.bench.ours import set_up
from experiments.bench.peers.ggnn_batches import (
    Batch,
    Layout,
    as_they_come,
    by_nodes,
    examples,
    one_shape,
)
from experiments.data.graphs import GraphInstances
from experiments.intervals import cosine
from experiments.models.ggnn import GatedReadout, GatedUnit, Score

EVALUATED = 100
"""Graphs in a minibatch of validation, which is laid out once."""


def states(params: Any, batch: Batch, steps: int) -> jax.Array:
    """The nodes' states `[n, H]` after all steps."""
    x = batch["x"]
    senders = batch["senders"]
    ends = np.cumsum([len(s) for s in senders])[:-1]
    sender = jnp.concatenate(senders)
    hidden = params["update"]["candidate"]["b"].size
    h = jnp.pad(
        x,
        ((0, 0), (0, hidden - x.shape[1])),
    )
    for _ in range(steps):
        maps = (params[f"edge{kind}"] for kind in range(len(senders)))
        sent = []
        for rows, m in zip(jnp.split(h[sender], ends), maps, strict=True):
            sent.append(rows @ m["w"] + m["b"])
        arrived = jax.ops.segment_sum(
            jnp.concatenate(sent),
            batch["receivers"],
            len(x),
        )
        h = GatedUnit(hidden)(params["update"], arrived, h)
    return h


def regression(
    params: Any,
    batch: Batch,
    steps: int,
    scale: float,
) -> tuple[jax.Array, jax.Array]:
    """The summed loss of a batch's graphs, and their summed error; graphs that are not there have neither."""
    h = states(params, batch, steps)
    x = batch["x"]
    rows = GatedReadout(h.shape[1], x.shape[1])(
        params["readout"],
        h,
        x,
    )
    predictions = jax.ops.segment_sum(
        rows, batch["graph"], len(batch["target"]), indices_are_sorted=True
    )
    difference = predictions[:, 0] - batch["target"]
    return 0.5 * (difference**2).sum(), scale * jnp.abs(difference).sum()


def selection(
    params: Any,
    batch: Batch,
    steps: int,
    nodes: int,
) -> tuple[jax.Array, jax.Array]:
    """The summed loss of a batch's graphs of `nodes` nodes each, and hits; graphs that are not there have neither."""
    h = states(params, batch, steps)
    x = batch["x"]
    scores = Score(h.shape[1], x.shape[1])(params["score"], h, x).reshape(
        -1,
        nodes,
    )
    answer = batch["answer"].reshape(-1, nodes)
    others = jnp.max(
        jnp.where(answer > 0, -jnp.inf, scores),
        axis=1,
        keepdims=True,
    )
    return optax.softmax_cross_entropy(scores, answer).sum(), jnp.sum(answer * (scores > others))


class Model:
    """Trains on minibatches of graphs, an Adam step for each.

    Args:
      experiment: `qm9` or `babi15`.
      batch: Graphs in a minibatch; 0 for the experiment's choice.
      layout: From graphs and their number in a minibatch to how they are laid out.
      regress: The loss of `qm9`, as `regression`.
      evaluated: Graphs in a minibatch of validation at most.
      seed: Of the order. Data and initial parameters are those of the experiment's seed 0.
      **arguments: Further ones of `experiments.bench.ours.set_up`.
    """

    def __init__(
        self,
        experiment: str,
        batch: int = 0,
        layout: Callable[[GraphInstances, int], Layout] = as_they_come,
        regress: Callable[..., tuple[jax.Array, jax.Array]] = regression,
        evaluated: int = EVALUATED,
        seed: int = 0,
        **arguments: Any,
    ):
        options, task = set_up(experiment, **arguments)
        train, self._valid, scale = examples(experiment, options)
        self._supply: GraphInstances = getattr(
            train, "supply", train
        )  # of which a pass takes the next `_n`
        self._start = 0
        self._n = len(train)
        self._batch = min(batch or options.batch, len(train))
        rate = options.learning_rate
        if experiment == "qm9":
            rate = cosine(
                rate,
                -(-self._n // self._batch) * options.epochs,
            )
            self._loss = functools.partial(regress, steps=options.steps, scale=scale)
        else:
            nodes = int(self._supply.graphs.sizes[0])
            self._loss = functools.partial(selection, steps=options.steps, nodes=nodes)
        self._tx = optax.adam(rate)
        self._rng = np.random.default_rng(seed)
        self._updates = 0
        self._params: Any = jax.tree.map(
            jnp.asarray,
            initial_params(task.graph, {}, 0),
        )
        self._state = self._tx.init(self._params)
        self._layout = layout(self._supply, self._batch)
        valid = layout(self._valid, min(evaluated, len(self._valid)))
        valid_batches = []
        for ids in valid.groups(np.arange(len(self._valid))):
            valid_batches.append(jax.device_put(valid.joined(ids)))
        self._valid_batches = valid_batches
        for each in self._layout.empty():  # compiles everything
            self._step(
                *jax.tree.map(jnp.copy, (self._params, self._state)),
                each,
            )
        self.evaluate()

    def train(self) -> int:
        """A pass over the training graphs in random order."""
        order = (self._start + self._rng.permutation(self._n)) % len(self._supply)
        self._start = (self._start + self._n) % len(self._supply)
        self._updates = 0
        for ids in self._layout.groups(order):
            self._params, self._state = self._step(
                self._params, self._state, self._layout.joined(ids)
            )
            self._updates += 1
        jax.block_until_ready(self._params)
        return self._n

    def infer(self) -> int:
        """A pass over the validation graphs."""
        self.evaluate()
        return len(self._valid)

    def evaluate(self) -> float:
        """The validation error of `qm9`, the validation accuracy of `babi15`."""
        measured = [self._measure(self._params, batch) for batch in self._valid_batches]
        return float(np.sum(measured)) / len(self._valid)

    def updates(self) -> float:
        """Optimizer steps in a pass."""
        return self._updates

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
    def _step(self, params: Any, state: Any, batch: Batch) -> Any:
        grads = jax.grad(lambda params: self._loss(params, batch)[0] / self._batch)(params)
        updates, state = self._tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    @functools.partial(jax.jit, static_argnums=0)
    def _measure(self, params: Any, batch: Batch) -> jax.Array:
        return self._loss(params, batch)[1]


qm9 = functools.partial(Model, "qm9")
babi15 = functools.partial(Model, "babi15")
qm9_by_atoms = functools.partial(Model, "qm9", layout=by_nodes)
qm9_one_shape = functools.partial(Model, "qm9", layout=one_shape)
