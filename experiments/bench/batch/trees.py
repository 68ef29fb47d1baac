"""Trees: the treebank's Tree-LSTM, and child-sum trees; by hand level by level."""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import ampjax as amp
from experiments.bench.batch.work import Amount, Work
from experiments.bench.peers.sentiment_jax import batch_arrays, levels
from experiments.data import sst
from experiments.models import tree_lstm
from experiments.models.functions.zoo import child_sum_tree_lstm as child_sum

WIDTH = 32
"""Branches that are computed together, by hand."""

xent = optax.softmax_cross_entropy_with_integer_labels


def treebank(amount: Amount) -> Work:
    """64 trees of the treebank, or random ones where there is none."""
    there = amount.data_dir or os.environ.get("AMPJAX_DATA")
    if amount.synthetic or not there:
        trees, _ = sst.synthetic()
    else:
        trees, _ = sst.load(amount.data_dir)
    n = amount.of(64)
    cells = tree_lstm.Cells(
        "tai",
        300,
        150,
        1.0,
    )
    names = ("words", "leaves", "own", "children", "labels")
    arrays = dict(
        zip(
            names,
            batch_arrays(
                trees,
                np.arange(n),
                WIDTH,
            ),
            strict=True,
        )
    )
    plain = sst.plain(trees)
    return Work(
        tree_lstm.tree_lstm(cells),
        tree_lstm.SPEC,
        tree_lstm.init(
            jax.random.key(0),
            len(trees.vocabulary),
            cells,
        ),
        [plain[i] for i in range(n)],
        int(trees.ptr[n]),
        lambda p, a: _by_levels(cells, p, a) / n,
        arrays,
    )


def _by_levels(cells: tree_lstm.Cells, p: Any, arrays: Any) -> jax.Array:
    """The summed loss of a batch's nodes."""
    labels = arrays["labels"]
    leaves = cells.leaf(p["leaf"], p["embed"][arrays["words"]])
    states = jnp.zeros((len(labels), 2 * cells.hidden)).at[arrays["leaves"]].set(leaves)

    def level(states: jax.Array, now: Any) -> Any:
        own, (left, right) = now
        new = cells.branch(
            p["branch"],
            states[left],
            states[right],
        )
        return states.at[own].set(new), None

    states, _ = jax.lax.scan(
        level,
        states,
        (arrays["own"], arrays["children"]),
    )
    each = xent(
        cells.classify(p["classify"], states),
        jnp.maximum(labels, 0),
    )
    return jnp.where(
        labels >= 0,
        each,
        0,
    ).sum()


def child_sums(amount: Amount) -> Work:
    """Makes 64 trees of 38 nodes, each node below a random earlier node."""
    rng = np.random.default_rng(0)
    size = amount.of(38)
    trees = []
    for _ in range(amount.of(64)):
        above = [-1, *(rng.integers(0, i) for i in range(1, size))]
        parent = (size - 1 - np.array(above))[::-1]
        parent[-1] = -1
        trees.append(parent.astype(np.int32))
    words = rng.integers(
        0,
        child_sum.N_WORDS,
        (len(trees), size),
    ).astype(np.int32)
    labels = rng.integers(
        0,
        child_sum.N_CLASSES,
        (len(trees), size),
    ).astype(np.int32)
    examples = []
    for parent, word, label in zip(
        trees,
        words,
        labels,
        strict=True,
    ):
        value = {"word": word, "label": label}
        tree = amp.Tree(
            parent,
            _places(parent),
            value,
        )
        examples.append({"tree": tree, "label": label[-1]})
    return Work(
        child_sum.child_sum_tree_lstm,
        child_sum.SPEC,
        child_sum.init(jax.random.key(0)),
        examples,
        words.size,
        lambda p, a: _child_sums_by_hand(p, a) / len(trees),
        _child_levels(trees)
        | {
            "words": words.ravel(),
            "labels": labels.ravel(),
        },
    )


def _places(parent: np.ndarray) -> np.ndarray:
    """Each node's place among the children of its parent."""
    seen: dict[int, int] = {}
    result = np.zeros_like(parent)
    for node, above in enumerate(parent.tolist()):
        result[node] = seen.get(above, 0)
        seen[above] = int(result[node]) + 1
    return result


def _child_levels(trees: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Lists each level's nodes `[levels, nodes]`, and their children, with the node above each child `[levels, children]`."""
    size = len(trees[0])
    height = np.concatenate([levels(parent) for parent in trees])
    first = np.arange(len(trees)).repeat(size) * size
    parent = np.concatenate(trees)
    parent = np.where(
        parent >= 0,
        parent + first,
        -1,
    )
    n = len(parent)
    nodes = [np.flatnonzero(height == level) for level in range(height.max() + 1)]
    below = [np.flatnonzero((parent >= 0) & (height[parent] == k)) for k in range(len(nodes))]
    own = np.full(
        (len(nodes), max(map(len, nodes))),
        n,
        np.int32,
    )
    children = np.full(
        (len(nodes), max(map(len, below))),
        n,
        np.int32,
    )
    above = np.full(
        children.shape,
        own.shape[1],
        np.int32,
    )
    for level, (here, under) in enumerate(zip(nodes, below, strict=True)):
        own[level, : len(here)] = here
        children[level, : len(under)] = under
        above[level, : len(under)] = np.searchsorted(here, parent[under])
    return {
        "own": own,
        "children": children,
        "above": above,
    }


def _child_sums_by_hand(p: Any, arrays: Any) -> jax.Array:
    """The summed loss of all nodes."""
    words = arrays["words"]
    n = len(words)
    x = jnp.concatenate([p["embed"][words], jnp.zeros((1, p["embed"].shape[1]))])
    start = jnp.zeros_like(x)
    gates = p["gates"]
    forget = p["forget"]

    def level(states: Any, now: Any) -> Any:
        h, c = states
        own, children, above = now
        mine = x[own]
        size = len(own)
        # what comes from below, summed up for each node of this level
        inputs = jnp.concatenate(
            [mine.at[above].get(mode="clip"), h[children]],
            -1,
        )
        kept = jax.nn.sigmoid(inputs @ forget["w"] + forget["b"] + 1) * c[children]
        summed = jax.ops.segment_sum(
            h[children],
            above,
            size,
        )
        kept = jax.ops.segment_sum(
            kept,
            above,
            size,
        )
        enter, out, new = jnp.split(
            jnp.concatenate([mine, summed], -1) @ gates["w"] + gates["b"], 3, -1
        )
        cell = jax.nn.sigmoid(enter) * jnp.tanh(new) + kept
        hidden = jax.nn.sigmoid(out) * jnp.tanh(cell)
        return (h.at[own].set(hidden), c.at[own].set(cell)), None

    (h, _), _ = jax.lax.scan(
        level,
        (start, start),
        (arrays["own"], arrays["children"], arrays["above"]),
    )
    logits = h[:n] @ p["classify"]["w"] + p["classify"]["b"]
    return xent(logits, arrays["labels"]).sum()
