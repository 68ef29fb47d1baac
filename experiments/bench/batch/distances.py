"""Distances from a node of a graph, by as many rounds of messages as each graph says; by hand end to end, with segment sums."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax as amp
from experiments.bench.batch.work import Amount, Work, weights

H = 32
FARTHEST = 8
"""Rounds at most; nodes that are farther count as so far."""

SPEC = {
    "edges": amp.Edges("v"),
    "is_source": "int32[v]",
    "distance": "int32[v]",
    "rounds": "int32[]",
}


def graphs(amount: Amount) -> Work:
    """64 graphs of 4 to 24 nodes, with 1.2 edges a node, each in both directions."""
    rng = np.random.default_rng(0)
    examples = []
    for _ in range(amount.of(64)):
        examples.append(_graph(rng, int(rng.integers(4, 25))))
    sizes = [len(each["distance"]) for each in examples]
    first = np.cumsum([0, *sizes[:-1]])
    senders = []
    receivers = []
    for each, start in zip(examples, first, strict=True):
        senders.append(each["edges"].senders + start)
        receivers.append(each["edges"].receivers + start)
    rounds = np.array([each["rounds"] for each in examples])
    arrays = {
        "senders": np.concatenate(senders),
        "receivers": np.concatenate(receivers),
        "is_source": np.concatenate([each["is_source"] for each in examples]),
        "distance": np.concatenate([each["distance"] for each in examples]),
        "rounds": np.repeat(rounds, sizes),
        "share": np.repeat(1 / np.array(sizes), sizes).astype(np.float32) / len(sizes),
    }
    return Work(
        model,
        SPEC,
        weights(
            0,
            embed=(2, H),
            message=(H, H),
            gate=(2 * H, H),
            new=(2 * H, H),
            output=(H, FARTHEST + 1),
        ),
        examples,
        int(arrays["rounds"].sum()),
        plain,
        arrays,
    )


def _graph(rng: np.random.Generator, n: int) -> dict[str, Any]:
    """A random graph, with the distance of each node from the first."""
    pairs = rng.integers(0, n, (int(1.2 * n), 2)).astype(np.int32)
    senders = np.concatenate([pairs[:, 0], pairs[:, 1]])
    receivers = np.concatenate([pairs[:, 1], pairs[:, 0]])
    distance = np.full(n, FARTHEST, np.int32)
    distance[0] = 0
    for round_ in range(FARTHEST):
        reached = receivers[distance[senders] == round_]
        distance[reached] = np.minimum(distance[reached], round_ + 1)
    return {
        "edges": amp.Edges(senders, receivers),
        "is_source": (np.arange(n) == 0).astype(np.int32),
        "distance": distance,
        "rounds": np.int32(min(n, FARTHEST)),
    }


def model(p: Any, example: Any) -> jax.Array:
    """The mean loss of a graph's nodes.

    Args:
      p: Matrices: `embed` `[2, H]`, `message` `[H, H]`, `gate` and `new` `[2 H, H]`, `output` `[H, FARTHEST + 1]`.
      example: `edges`, and of each node `is_source` and its `distance`; the number of `rounds`.
    """

    def turn(i: Any, h: Any) -> Any:
        del i
        arrived = amp.propagate(
            [lambda own: own @ p["message"]],
            example["edges"],
            h,
        )
        return amp.map(
            lambda own, came: _updated(p, own, came),
            h,
            arrived,
        )

    def score(h: jax.Array, distance: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(h @ p["output"], distance)

    h = amp.map(lambda source: p["embed"][source], example["is_source"])
    h = amp.fori_loop(example["rounds"], turn, h)
    return amp.mean(amp.map(score, h, example["distance"]))


def plain(p: Any, arrays: Any) -> jax.Array:
    """The mean over a batch.

    Args:
      p: As `model` takes them.
      arrays: `senders` and `receivers` `[edges]`; of each node `is_source`, `distance`, `rounds`, and its `share` of the mean.
    """
    h = p["embed"][arrays["is_source"]]

    def turn(h: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
        sent = (h @ p["message"])[arrays["senders"]]
        arrived = jax.ops.segment_sum(
            sent,
            arrays["receivers"],
            len(h),
        )
        new = _updated(p, h, arrived)
        goes_on = number < arrays["rounds"]
        return jnp.where(goes_on[:, None], new, h), None

    h, _ = jax.lax.scan(turn, h, jnp.arange(FARTHEST))
    losses = optax.softmax_cross_entropy_with_integer_labels(
        h @ p["output"],
        arrays["distance"],
    )
    return jnp.sum(losses * arrays["share"])


def _updated(
    p: Any,
    own: jax.Array,
    arrived: jax.Array,
) -> jax.Array:
    """The states `[..., H]` of nodes after a round, by a gate."""
    both = jnp.concatenate([own, arrived], -1)
    gate = jax.nn.sigmoid(both @ p["gate"])
    return gate * own + (1 - gate) * jnp.tanh(both @ p["new"])
