"""The gated graph networks in plain JAX: minibatches of whole graphs side by side, the whole training step in one `jax.jit`.

The edges of a batch stand in the order of their kinds: one gather of senders, a matrix product for each kind, and one `segment_sum` over
receivers make a propagation step; the steps are unrolled. Nodes, and edges of each kind, are padded to what a batch hardly ever exceeds, or
else to what it never does, so that two sizes are all that is compiled.
"""

from __future__ import annotations

import functools
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ampjax.data.graphs import GraphInstances, Graphs
from ampjax.models.ggnn import GatedReadout, GatedUnit, Score
from ampjax.params import initial_params
from experiments.bench.ours import set_up
from experiments.intervals import cosine

EVALUATED = 100
"""Graphs in a minibatch of validation, which is laid out once."""

Batch = dict[str, Any]
"""`x [n, F]`; `graph [n]`, each node's (beyond all graphs where padded); `senders`, for each kind `[e]`, and all their `receivers [sum e]`
(beyond all nodes where padded); and `target [b]`, or `answer [n]`."""


def states(params: Any, batch: Batch, steps: int) -> jax.Array:
    """The nodes' states `[n, H]` after all steps."""
    x, senders = batch["x"], batch["senders"]
    ends, sender = np.cumsum([len(s) for s in senders])[:-1], jnp.concatenate(senders)
    hidden = params["update"]["candidate"]["b"].size
    h = jnp.pad(x, ((0, 0), (0, hidden - x.shape[1])))
    for _ in range(steps):
        maps = (params[f"edge{kind}"] for kind in range(len(senders)))
        sent = [rows @ m["w"] + m["b"] for rows, m in zip(jnp.split(h[sender], ends), maps, strict=True)]
        arrived = jax.ops.segment_sum(jnp.concatenate(sent), batch["receivers"], len(x))
        h = GatedUnit(hidden)(params["update"], arrived, h)
    return h


def regression(params: Any, batch: Batch, steps: int, square: Any) -> tuple[jax.Array, jax.Array]:
    """The summed loss of a batch's graphs, and their summed error; graphs that are not there have neither. `square` is the loss's body."""
    h, x = states(params, batch, steps), batch["x"]
    rows = GatedReadout(h.shape[1], x.shape[1])(params["readout"], h, x)
    predictions = jax.ops.segment_sum(rows, batch["graph"], len(batch["target"]), indices_are_sorted=True)
    loss, metrics = jax.vmap(square.apply, (None, 0, 0))((), predictions, batch["target"])
    return loss.sum(), metrics["error"].sum()


def selection(params: Any, batch: Batch, steps: int, nodes: int) -> tuple[jax.Array, jax.Array]:
    """The summed loss of a batch's graphs of `nodes` nodes each, and hits; graphs that are not there have neither."""
    h, x = states(params, batch, steps), batch["x"]
    scores = Score(h.shape[1], x.shape[1])(params["score"], h, x).reshape(-1, nodes)
    answer = batch["answer"].reshape(-1, nodes)
    others = jnp.max(jnp.where(answer > 0, -jnp.inf, scores), axis=1, keepdims=True)
    return optax.softmax_cross_entropy(scores, answer).sum(), jnp.sum(answer * (scores > others))


class Model:
    """Trains on minibatches of graphs, an Adam step for each.

    Args:
      experiment: `qm9` or `babi15`.
      batch: Graphs in a minibatch; 0 for the experiment's choice.
      seed: Of the order. Data and initial parameters are those of the experiment's seed 0.
      **arguments: Further ones of `experiments.bench.ours.set_up`.
    """

    def __init__(self, experiment: str, batch: int = 0, seed: int = 0, **arguments: Any):
        options, task = set_up(experiment, **arguments)
        train: Any = task.train
        self._supply: GraphInstances = getattr(train, "supply", train)  # of which a pass takes the next `_n`
        self._start, self._n, self._batch = 0, len(train), min(batch or options.batch, len(train))
        rate = options.learning_rate
        if experiment == "qm9":
            rate = cosine(rate, -(-self._n // self._batch) * options.epochs)
            square = task.graph.nodes["square"].op.body
            self._loss = functools.partial(regression, steps=options.steps, square=square)
        else:
            nodes = int(self._supply.graphs.sizes[0])
            self._loss = functools.partial(selection, steps=options.steps, nodes=nodes)
        self._tx, self._rng = optax.adam(rate), np.random.default_rng(seed)
        self._params: Any = jax.tree.map(jnp.asarray, initial_params(task.graph, {}, 0))
        self._state = self._tx.init(self._params)
        self._sizes = sizes(self._supply, self._batch)
        self._valid, n_valid = cast(GraphInstances, task.valid), min(EVALUATED, len(task.valid))
        most = sizes(self._valid, n_valid)[-1:]
        parts = np.split(np.arange(len(self._valid)), range(n_valid, len(self._valid), n_valid))
        self._valid_batches = [jax.device_put(joined(self._valid, ids, n_valid, most)) for ids in parts]
        for size in self._sizes:  # compiles everything
            self._step(
                *jax.tree.map(jnp.copy, (self._params, self._state)),
                joined(self._supply, np.arange(0), self._batch, size[None]),
            )
        self.evaluate()

    def train(self) -> int:
        """A pass over the training graphs in random order."""
        order = (self._start + self._rng.permutation(self._n)) % len(self._supply)
        self._start = (self._start + self._n) % len(self._supply)
        for first in range(0, self._n, self._batch):
            batch = joined(self._supply, order[first : first + self._batch], self._batch, self._sizes)
            self._params, self._state = self._step(self._params, self._state, batch)
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
        return -(-self._n // self._batch)

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


def sizes(data: GraphInstances, batch: int) -> np.ndarray:
    """`[2, 1 + n_kinds]`: nodes, and edges of each kind, that `batch` graphs at random hardly ever exceed, and that they never do."""
    graphs, ids = data.graphs, data.ids
    edges, graph = _edges(graphs, ids)
    flat = np.bincount(graph * graphs.n_kinds + graphs.kinds[edges], minlength=len(ids) * graphs.n_kinds)
    each = np.column_stack([np.diff(graphs.node_ptr)[ids], flat.reshape(-1, graphs.n_kinds)])
    most = np.sort(each, axis=0)[-batch:].sum(axis=0)
    usual = np.ceil(batch * each.mean(axis=0) + 3 * np.sqrt(batch) * each.std(axis=0)).astype(int)
    return np.stack([np.minimum(usual, most), most])


def joined(data: GraphInstances, ids: np.ndarray, batch: int, sizes: np.ndarray) -> Batch:
    """The graphs `ids` side by side, padded to `batch` graphs and to the first of `sizes` that has room."""
    graphs, ids = data.graphs, data.ids[ids]
    n = np.diff(graphs.node_ptr)[ids]
    first = np.cumsum(n) - n
    nodes = _ranges(graphs.node_ptr[ids], n)
    edges, graph = _edges(graphs, ids)
    kinds = graphs.kinds[edges]
    n_edges = np.bincount(kinds, minlength=graphs.n_kinds)
    n_nodes, *slots = next(size for size in sizes.tolist() if (size >= np.array([len(nodes), *n_edges])).all())
    order = np.argsort(kinds, kind="stable")
    places = _ranges(np.cumsum(slots) - slots, n_edges)
    senders, receivers = np.zeros(sum(slots), np.int32), np.full(sum(slots), n_nodes, np.int32)
    senders[places], receivers[places] = (
        (ends[edges] + first[graph])[order] for ends in (graphs.senders, graphs.receivers)
    )
    owner = np.full(n_nodes, batch, np.int32)
    owner[: len(nodes)] = np.repeat(np.arange(len(ids)), n)
    rows = {name: _filled(values[nodes], n_nodes) for name, values in data.nodes.items()}
    targets = {name: _filled(values[ids], batch) for name, values in data.targets.items()}
    return {
        **rows,
        **targets,
        "graph": owner,
        "senders": np.split(senders, np.cumsum(slots)[:-1]),
        "receivers": receivers,
    }


def _edges(graphs: Graphs, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The edges that the graphs `ids` send, and for each the place of its graph among `ids`."""
    first, end = graphs.out_ptr[graphs.node_ptr[ids]], graphs.out_ptr[graphs.node_ptr[ids + 1]]
    return _ranges(first, end - first), np.repeat(np.arange(len(ids)), end - first)


def _ranges(first: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`first[i] ... first[i] + sizes[i] - 1` for each `i`, one after the other."""
    return np.arange(sizes.sum()) + np.repeat(first - (np.cumsum(sizes) - sizes), sizes)


def _filled(rows: np.ndarray, n: int) -> np.ndarray:
    """`rows` and zeros, `n` together."""
    return np.concatenate([rows, np.zeros((n - len(rows), *rows.shape[1:]), rows.dtype)])
