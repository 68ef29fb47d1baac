"""Graphs: attention over neighbours, small graphs of three layers, molecules; by hand end to end, with segment sums."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp
from experiments.bench.batch.work import Amount, Work, weights
from experiments.bench.peers import ggnn_batches, ggnn_jax
from experiments.data import qm9
from experiments.models import ggnn

H = 8
STEPS = 4
"""Steps of the molecules' network."""
LAYERS = ("first", "second", "third")


def attention(amount: Amount) -> Work:
    """A graph of 400 nodes, each of which attends to four others."""
    rng = np.random.default_rng(0)
    n = amount.of(400)
    x = rng.normal(size=(n, H)).astype(np.float32)
    near = rng.integers(0, n, (n, 4)).astype(np.int32)
    return Work(
        attention_model,
        {"x": f"float32[v,{H}]", "near": "int32[v,e]"},
        weights(
            0,
            w=(H, H),
            own=(H,),
            other=(H,),
        ),
        [{"x": x, "near": list(near)}],
        near.size,
        attention_by_hand,
        {
            "x": x,
            "own": np.repeat(np.arange(n, dtype=np.int32), 4),
            "other": near.ravel(),
        },
    )


def attention_model(p: Any, example: Any) -> jax.Array:
    """Sums the squares of each node's attention (Velickovic et al. 2018).

    Args:
      p: `w` `[H, H]`; `own` and `other` `[H]`, which score an edge.
      example: `x` `[v, H]`, and `near` `[v, e]`: the nodes that each attends to.
    """
    states = amp.map(lambda x: x @ p["w"], example["x"])

    def attend(h: jax.Array, near: Any) -> jax.Array:
        others = amp.map(lambda j: amp.take(states, j), near)
        scores = amp.map(
            lambda other: _score(p, h, other),
            others,
        )
        read = amp.sum(
            amp.map(
                lambda share, other: share * other,
                amp.softmax(scores),
                others,
            )
        )
        return jnp.sum(read**2)

    return amp.sum(
        amp.map(
            attend,
            states,
            example["near"],
        )
    )


def attention_by_hand(p: Any, arrays: Any) -> jax.Array:
    """The same by segment sums.

    Args:
      p: As `attention_model` takes them.
      arrays: `x` `[nodes, H]`; `own` and `other` `[edges]`, the nodes of each edge, sorted by the first.
    """
    h = arrays["x"] @ p["w"]
    n = len(h)
    own = arrays["own"]
    others = h[arrays["other"]]
    scores = _score(p, h[own], others)
    largest = jax.ops.segment_max(
        scores,
        own,
        n,
        indices_are_sorted=True,
    )
    parts = jnp.exp(scores - jax.lax.stop_gradient(largest)[own])
    totals = jax.ops.segment_sum(
        parts,
        own,
        n,
        indices_are_sorted=True,
    )
    shares = parts / totals[own]
    read = jax.ops.segment_sum(
        shares[:, None] * others,
        own,
        n,
        indices_are_sorted=True,
    )
    return jnp.sum(read**2)


def _score(p: Any, own: jax.Array, other: jax.Array) -> jax.Array:
    return jax.nn.leaky_relu(own @ p["own"] + other @ p["other"])


def small(amount: Amount) -> Work:
    """128 graphs of 8 to 19 nodes and twice as many edges, three layers."""
    rng = np.random.default_rng(0)
    width = 32
    examples = []
    for _ in range(amount.of(128)):
        n = int(rng.integers(8, 20))
        x = rng.normal(size=(n, width)).astype(np.float32)
        senders, receivers = rng.integers(0, n, (2, 2 * n)).astype(np.int32)
        examples.append({"x": x, "edges": amp.Edges(senders, receivers)})
    sizes = [len(each["x"]) for each in examples]
    first = np.cumsum([0, *sizes[:-1]])
    arrays = {
        "x": np.concatenate([each["x"] for each in examples]),
        "graph": np.repeat(
            np.arange(len(sizes), dtype=np.int32),
            sizes,
        ),
        "senders": np.concatenate(
            [
                each["edges"].senders + f
                for each, f in zip(
                    examples,
                    first,
                    strict=True,
                )
            ]
        ),
        "receivers": np.concatenate(
            [
                each["edges"].receivers + f
                for each, f in zip(
                    examples,
                    first,
                    strict=True,
                )
            ]
        ),
    }
    n_graphs = len(sizes)
    return Work(
        small_model,
        {"x": f"float32[v,{width}]", "edges": amp.Edges("v")},
        weights(
            0,
            **dict.fromkeys(LAYERS, (2 * width, width)),
            readout=(width, 1),
        ),
        examples,
        3 * sum(sizes),
        lambda p, a: small_by_hand(p, a, n_graphs),
        arrays,
    )


def small_model(p: Any, example: Any) -> jax.Array:
    """The square of a number that is read from the nodes after three layers.

    Args:
      p: For each layer a matrix `[2 F, F]`, and `readout` `[F, 1]`.
      example: `x` `[v, F]` and `edges`.
    """
    h = example["x"]
    for name in LAYERS:
        arrived = amp.propagate(
            [lambda x: x],
            example["edges"],
            h,
        )
        h = amp.map(
            lambda a, b, w=p[name]: _layer(w, a, b),
            h,
            arrived,
        )
    return jnp.sum((amp.sum(h) @ p["readout"]) ** 2)


def small_by_hand(p: Any, arrays: Any, n_graphs: int) -> jax.Array:
    """The same over a batch.

    Args:
      p: As `small_model` takes them.
      arrays: `x` `[nodes, F]`, `graph` `[nodes]`, `senders` and `receivers` `[edges]`.
      n_graphs: How many graphs there are.
    """
    h = arrays["x"]
    for name in LAYERS:
        arrived = jax.ops.segment_sum(
            h[arrays["senders"]],
            arrays["receivers"],
            len(h),
        )
        h = _layer(p[name], h, arrived)
    total = jax.ops.segment_sum(
        h,
        arrays["graph"],
        n_graphs,
        indices_are_sorted=True,
    )
    return jnp.sum((total @ p["readout"]) ** 2) / n_graphs


def _layer(w: jax.Array, h: jax.Array, arrived: jax.Array) -> jax.Array:
    return jax.nn.relu(jnp.concatenate([h, arrived], -1) @ w)


def molecules(amount: Amount, batch: int) -> Work:
    """QM9's gated graph network; by hand padded to one shape, edges in the order of their kinds.

    Args:
      amount: How much.
      batch: Molecules in the batch.
    """
    every = qm9.synthetic() if amount.synthetic else qm9.load(amount.data_dir)
    n = min(amount.of(batch), len(every) // 2)
    data = qm9.split(
        every,
        len(every) // 10,
        n_train=n,
    ).train
    ids = np.arange(n)
    counts = ggnn_batches.counts(data, ids)
    arrays = ggnn_batches.joined(
        data,
        ids,
        n,
        counts.sum(0)[None],
    )
    return Work(
        molecule_model,
        ggnn.regression_spec(
            qm9.N_FEATURES,
            qm9.N_KINDS,
        ),
        ggnn.init_regression(
            jax.random.key(0),
            qm9.N_FEATURES,
        ),
        list(data.plain()),
        STEPS * int(counts.sum()),
        lambda p, a: (
            ggnn_jax.regression(
                p,
                a,
                STEPS,
                1.0,
            )[0]
            / n
        ),
        arrays,
    )


def molecule_model(p: Any, s: Any) -> jax.Array:
    """Half the squared error of `experiments.models.ggnn.ggnn_regression`, its four steps written one after the other.

    Args:
      p: The parameters.
      s: `x` `[v, F]`, `edges` and `target`.
    """
    hidden = p["edge0"]["w"].shape[0]
    update = ggnn.GatedUnit(hidden)
    sends = []
    for kind in range(qm9.N_KINDS):
        sends.append(lambda h, m=p[f"edge{kind}"]: h @ m["w"] + m["b"])
    h = amp.map(ggnn.Pad(hidden), s["x"])
    for _ in range(STEPS):
        arrived = amp.propagate(
            sends,
            s["edges"],
            h,
        )
        h = amp.map(
            lambda a, own: update(p["update"], a, own),
            arrived,
            h,
        )
    readout = ggnn.GatedReadout(hidden, s["x"].shape[1])
    rows = amp.map(
        lambda own, x: readout(p["readout"], own, x),
        h,
        s["x"],
    )
    return 0.5 * (amp.sum(rows)[0] - s["target"]) ** 2
