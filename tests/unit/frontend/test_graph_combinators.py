"""Edges of an instance and what is sent over them: plain JAX, graphs as jraph writes them, and mistakes."""

from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ampjax as amp
from ampjax.errors import DataError, GraphError
from ampjax.plan.stage_kinds import EDGES

W = jnp.asarray(
    np.random.default_rng(0).normal(size=(2, 3, 4)),
    jnp.float32,
)
SPEC = {"x": "float32[v,3]", "edges": amp.Edges("v", kinds=2)}
PARAMS = {"a": W[0], "b": W[1]}


class GraphsTuple(NamedTuple):
    """jraph's, field by field."""

    nodes: object
    edges: object
    receivers: object
    senders: object
    globals: object
    n_node: object
    n_edge: object


def sends(w):
    return [lambda h, k=k: jnp.tanh(h @ w[k]) for k in range(2)]


def model(p, s):
    got = amp.propagate(
        [
            lambda h: h @ p["a"],
            lambda h: h @ p["b"],
        ],
        s["edges"],
        s["x"],
    )
    return amp.sum(
        amp.map(
            lambda row: jnp.sum(row**2),
            got,
        )
    )


def example(
    n=3,
    senders=(0, 1, 1),
    receivers=(1, 2, 2),
    kinds=(0, 1, 1),
):
    return {
        "x": np.ones((n, 3), np.float32),
        "edges": amp.Edges(
            np.array(senders),
            np.array(receivers),
            np.array(kinds),
        ),
    }


@pytest.mark.parametrize("n_edges", [0, 9])
def test_sums_over_edges_are_products_with_adjacency_matrices(n_edges):
    rng = np.random.default_rng(n_edges)
    x = jnp.asarray(
        rng.normal(size=(4, 3)),
        jnp.float32,
    )
    edges = amp.Edges(
        *rng.integers(0, 4, (2, n_edges)),
        rng.integers(0, 2, n_edges),
    )
    adjacency = np.zeros((2, 4, 4), np.float32)
    np.add.at(
        adjacency,
        (edges.kinds, edges.receivers, edges.senders),
        1,
    )

    def dense(w, x):
        return sum(adjacency[k] @ jnp.tanh(x @ w[k]) for k in range(2))

    got, want = (
        jax.jit(
            jax.value_and_grad(
                lambda w, x, f=f: jnp.sum(jnp.sin(f(w, x)) * x[:, :1]),
                argnums=(0, 1),
            )
        )(W, x)
        for f in (lambda w, x: amp.propagate(sends(w), edges, x), dense)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5),
        got,
        want,
    )


def test_graphs_as_jraph_writes_them():
    graph = GraphsTuple(
        np.ones((3, 3)),
        np.array([[1], [0]]),
        np.array([2, 0]),
        np.array([0, 1]),
        None,
        [3],
        [2],
    )
    edges = amp.Edges.of(graph)
    assert [column.tolist() for column in (edges.senders, edges.receivers, edges.kinds)] == [
        [0, 1],
        [2, 0],
        [1, 0],
    ]
    assert amp.Edges.of(graph._replace(edges=None)).kinds is None
    x = jnp.eye(3)
    assert amp.propagate(lambda h: 2 * h, amp.Edges.of(graph._replace(edges=None)), x).tolist() == [
        [0, 2, 0],
        [0, 0, 0],
        [2, 0, 0],
    ]


@pytest.mark.parametrize(
    ("graph", "told"),
    [
        (SimpleNamespace(senders=[0]), "has no attribute 'receivers'"),
        (
            SimpleNamespace(
                senders=[3],
                receivers=[0],
                edges=None,
                n_node=[3],
            ),
            r"senders, edge 0: expected a node in \[0, 3\), got 3",
        ),
        (
            SimpleNamespace(
                senders=[0],
                receivers=[0, 1],
                edges=None,
                n_node=[3],
            ),
            r"as many senders as receivers and kinds, got \[1, 2\]",
        ),
        (
            SimpleNamespace(
                senders=[0],
                receivers=[1],
                edges=[0.5],
                n_node=[3],
            ),
            r"edges \(the kinds\): expected integers \[e\], got float64",
        ),
    ],
)
def test_graphs_that_are_none(graph, told):
    with pytest.raises(DataError, match=told):
        amp.Edges.of(graph)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (example(senders=(0, 1, 3)), r"instance 1, edge 2: expected a sender in \[0, 3\), got 3"),
        (
            example(receivers=(1, -1, 2)),
            r"instance 1, edge 1: expected a receiver in \[0, 3\), got -1",
        ),
        (
            example(kinds=(0, 2, 1)),
            r"instance 1, edge 1: expected a kind in \[0, 2\), got 2. .* `kinds` of",
        ),
        (example(kinds=(0, 1)), "one length in"),
    ],
)
def test_edges_that_lead_nowhere(wrong, told):
    compiled = amp.compile(model, PARAMS, SPEC)
    with pytest.raises(DataError, match=told):
        compiled.data([example(), wrong])
    with pytest.raises(DataError, match=r"edge|senders"):
        model(PARAMS, wrong)


def test_one_kind_needs_no_kinds():
    def one(p, s):
        return amp.sum(
            amp.map(
                jnp.sum,
                amp.propagate(
                    lambda h: h @ p["a"],
                    s["edges"],
                    s["x"],
                ),
            )
        )

    compiled = amp.compile(
        one,
        {"a": W[0]},
        {"x": "float32[v,3]", "edges": amp.Edges("v")},
    )
    pumped = compiled.data(
        [
            {
                "x": np.ones((2, 3)),
                "edges": amp.Edges(
                    np.array([0]),
                    np.array([1]),
                ),
            }
        ]
    ).gather(np.array([0]))
    (topology,) = pumped["v_edges"].payload
    assert [ends.tolist() for ends in (*topology.gather, *topology.scatter)] == [[0], [1]]


def test_rounds_are_one_stage():
    """Distribute, a node for each kind, Collect and the update go through one dispatch, in all rounds."""

    def rounds(p, s):
        def step(_, h):
            a = amp.propagate(
                [
                    lambda h: h @ p["a"],
                    lambda h: h @ p["b"],
                ],
                s["edges"],
                h,
            )
            return amp.map(
                lambda a, h: jnp.tanh(a @ p["c"] + h),
                a,
                h,
            )

        return amp.sum(
            amp.map(
                jnp.sum,
                amp.fori_loop(3, step, s["x"]),
            )
        )

    compiled = amp.compile(
        rounds,
        {**PARAMS, "c": jnp.ones((4, 3))},
        SPEC,
    )
    plan = amp.Trainer(compiled.graph).plan
    (stage,) = (stage for stage in plan.stages if stage.kind is EDGES)
    names = [node.name for node in stage.nodes]
    assert names[:5] == ["v_edges/senders", "a", "b", "v_edges/receivers", "c"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            lambda p, s: amp.propagate(
                [lambda h: h @ p["a"]],
                s["edges"],
                s["x"],
            ),
            "a function for each of the 2 kinds of edges, got 1. .* is said in the spec",
        ),
        (
            lambda p, s: amp.propagate(
                sends(W),
                s["x"],
                s["x"],
            ),
            r"`amp.Edges`, got float32\[v,3\]\. .* in a spec",
        ),
        (
            lambda p, s: amp.propagate(
                sends(W),
                s["edges"],
                s["z"],
            ),
            r"arrays over the nodes `v`, as the values to send, got float32\[t,3\]",
        ),
        (
            lambda p, s: amp.propagate(
                [lambda h: h, lambda h: h @ p["b"]],
                s["edges"],
                s["x"],
            ),
            "function 1 to send the same types",
        ),
        (
            lambda p, s: amp.propagate(
                [lambda h: h, lambda h: (h,)],
                s["edges"],
                s["x"],
            ),
            "as function 0 returns",
        ),
        (
            lambda p, s: amp.propagate(
                [lambda h: h > 0, lambda h: h < 0],
                s["edges"],
                s["x"],
            ),
            "floats to be sent",
        ),
        (
            lambda p, s: amp.scan(lambda h, x: (h + x @ p["a"], ()), jnp.zeros(4), s["x"])[0],
            "one after the other, got the nodes of a graph",
        ),
        (
            lambda p, s: amp.map(
                lambda x: x @ p["a"] + amp.sum(s["z"])[0],
                s["x"],
            ),
            "a whole sequence from outside",
        ),
        (
            lambda p, s: amp.map(
                lambda x: amp.fori_loop(
                    2,
                    lambda i, h: h @ p["a"] @ p["b"].T,
                    x,
                ),
                s["x"],
            ),
            "arrays alone in what is computed for each node",
        ),
        (
            lambda p, s: amp.map(
                lambda x: amp.cond(
                    x[0] > 0,
                    lambda: x @ p["a"],
                    lambda: x @ p["b"],
                ),
                s["x"],
            ),
            "`cond`",
        ),
    ],
)
def test_mistakes_name_the_line(body, told):
    def wrong(p, s):
        return jnp.sum(
            amp.take(
                result,
                0,
            )
            if (result := body(p, s)).ndim > 1
            else result
        )

    with pytest.raises(GraphError, match=f"test_graph_combinators.py:.*{told}"):
        amp.compile(wrong, PARAMS, {**SPEC, "z": "float32[t,3]"})


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"edges": amp.Edges("v", kinds=2)}, "a leaf over `v`"),
        ({**SPEC, "c": "int32[v,c]"}, "`v`, which edges join, as the only name"),
        ({**SPEC, "edges": amp.Edges("v", kinds=0)}, "a number of kinds of at least 1, got 0"),
        ({**SPEC, "edges": amp.Edges(4)}, "the nodes' dimension, got 4"),
    ],
)
def test_mistakes_in_specs(spec, told):
    with pytest.raises(GraphError, match=told):
        amp.compile(model, PARAMS, spec)
