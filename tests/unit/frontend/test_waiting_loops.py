"""Trees whose nodes have sequences of children, as loops of steps of equally many rows: values, gradients, metrics, and the compiled program."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import NIGHTLY
from support.effort import examples as tried
from support.loop_bodies import bodies_of_loops

import ampjax as amp
from ampjax.frontend.batch_rules.waiting_loops import _steps
from ampjax.frontend.loops.loop_forms import loops_as

WIDTH = 3
LARGEST = 30 if NIGHTLY else 12
MOST = 6 if NIGHTLY else 3
"""Nodes of a random tree, and trees: each node of each is computed one by one."""

RNG = np.random.default_rng(5)
PARAMS = {
    "embed": RNG.normal(size=(7, WIDTH)).astype(np.float32),
    "own": RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32),
    "child": RNG.normal(size=(WIDTH, WIDTH)).astype(np.float32),
}
SPEC = {"tree": amp.Tree("int32[v]", "int32[v]", "int32[v]")}


def tree(seed, n):
    """A tree of so many nodes, each of which hangs below a random one shortly before."""
    rng = np.random.default_rng(seed)
    parent = [-1]
    side = [0]
    for node in range(1, n):
        above = int(
            rng.integers(
                max(0, node - 6),
                node,
            )
        )
        side.append(parent.count(above))
        parent.append(above)
    columns = []
    for each in (parent, side):
        columns.append(np.array(each, np.int32))
    return {
        "tree": amp.Tree(
            *columns,
            rng.integers(0, 7, n).astype(np.int32),
        )
    }


def child_sums(p, s):
    """A small Tree-LSTM's sum over children, with a gate for each child."""

    def leaf(word):
        h = jnp.tanh(p["embed"][word])
        return h, 2 * h

    def branch(word, children):
        h, c = children
        x = p["embed"][word]
        gate = lambda h, c: jax.nn.sigmoid(x + h @ p["child"]) * c
        kept = amp.sum(amp.map(gate, h, c))
        return jnp.tanh(amp.sum(h) @ p["own"] + x), kept

    _, (h, c) = amp.fold_tree(leaf, branch, s["tree"])
    return (h * c).sum()


BINARY = {
    "tree": amp.Tree(
        [-1, 0, 0, 1, 1],
        [0, 0, 1, 0, 1],
        [3, 6, 1, 2, 5],
    )
}
"""Two branches, of the words 3 and 6, over three leaves."""


def close(found, want):
    for one, other in zip(
        jax.tree.leaves(found),
        jax.tree.leaves(want),
        strict=True,
    ):
        largest = max(
            1.0,
            float(np.abs(other).max()),
        )
        np.testing.assert_allclose(
            one,
            other,
            1e-4,
            1e-5 * largest,
        )


@pytest.mark.parametrize("form", ["steps", "scan"])
@settings(max_examples=tried(16))
@given(
    sizes=st.lists(
        st.integers(1, LARGEST),
        min_size=1,
        max_size=MOST,
    ),
    seed=st.integers(0, 1 << 16),
)
def test_trees_are_those_of_each_example(form, sizes, seed):
    examples = []
    for i, n in enumerate(sizes):
        examples.append(tree(seed + i, n))
    larger = []
    for i, n in enumerate(sizes):
        larger.append(tree(seed + i, n + 40))
    with loops_as(form):
        batched = amp.vmap(child_sums, SPEC, params=PARAMS)
        batch = batched.pack(examples)
        # of a larger batch's shape: more steps than these trees need
        in_room = batched.pack(
            examples,
            like=batched.pack(larger),
        )

        def total(p):
            return sum(child_sums(p, s) for s in examples)

        want = jax.value_and_grad(total)(PARAMS)
        for each in (batch, in_room):
            gradients = jax.jit(jax.value_and_grad(_total), static_argnums=(1, 3))
            close(
                gradients(PARAMS, batched, each, len(examples)),
                want,
            )


def _total(p, batched, batch, n):
    return batched(p, batch)[:n].sum()


def branches_with_metrics(arity):
    """A sum over a tree; each branch reports its word, as a metric and as an output."""

    def model(p, s):
        def branch(word, *children):
            amp.metric("words", word)
            amp.output("words", word)
            below = sum(children) if arity else amp.sum(children[0])
            return jnp.tanh(p["embed"][word] + below)

        leaf = lambda word: p["embed"][word]
        _, h = amp.fold_tree(
            leaf,
            branch,
            s["tree"],
            arity=arity,
        )
        return h.sum()

    return model


@pytest.mark.parametrize("form", ["steps", "scan"])
@pytest.mark.parametrize("arity", [None, 2])
def test_what_branches_tell_is_told_of_branches_alone(form, arity):
    examples = [
        BINARY,
        {
            "tree": amp.Tree(
                [-1],
                [0],
                [4],
            )
        },
        BINARY,
    ]
    with loops_as(form):
        batched = amp.vmap(
            branches_with_metrics(arity),
            SPEC,
            params=PARAMS,
        )
        reports = batched.reports(PARAMS, examples)
    values, counts = reports.metrics["words"]
    np.testing.assert_array_equal(
        values,
        [9, 0, 9],
    )
    np.testing.assert_array_equal(
        counts,
        [2, 0, 2],
    )
    told = reports.outputs["words"].tolist()
    assert [sorted(words) for words in told] == [[3, 6], [], [3, 6]]


@settings(max_examples=200)
@given(
    counts=st.lists(
        st.integers(1, 700),
        min_size=1,
        max_size=30,
    ),
    room=st.integers(0, 50),
    start=st.sampled_from([0.0, 3.0, 40.0, np.inf]),
)
def test_all_levels_have_room_in_the_steps(counts, room, start):
    n_steps, width = _steps(
        len(counts),
        max(counts) + room,
        sum(counts) + room,
        start,
    )
    assert sum(-(-n // width) for n in counts) <= n_steps


def bushy(seed):
    """A tree with many leaves: a root, ten branches, and thirty leaves below some branches."""
    rng = np.random.default_rng(seed)
    parent = [-1, *[0] * 10, *rng.integers(1, 11, 30)]
    side = []
    for i, above in enumerate(parent):
        side.append(parent[:i].count(above))
    words = rng.integers(0, 7, len(parent))
    return {"tree": amp.Tree(parent, side, words)}


def test_no_step_copies_all_rows():
    with loops_as("steps"):
        batched = amp.vmap(child_sums, SPEC, params=PARAMS)
        batch = batched.pack([bushy(seed) for seed in range(20)])
        compute = jax.jit(
            jax.value_and_grad(_total, 0),
            static_argnums=(1, 3),
        )
        text = compute.lower(PARAMS, batched, batch, 20).compile().as_text()
    n_rows = max(len(array) for array in batch.arrays)
    bodies = bodies_of_loops(text)
    assert len(bodies) > 2
    for lines in bodies.values():
        for line in lines:
            match = re.search(r"= \w+\[([\d,]*)\]\S* copy\(", line)
            if match is not None:
                shape = []
                for n in match[1].split(","):
                    if n:
                        shape.append(int(n))
                assert np.prod(shape) < n_rows, line
