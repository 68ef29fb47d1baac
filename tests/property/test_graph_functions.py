"""Models over graphs, written as functions: their graphs have the gradients that JAX gives of the functions themselves."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.effort import examples

import ampjax as amp

H = 3
KINDS = 2
SETTINGS = {
    "min_update_interval": 1 << 40,
    "max_active_keys": 1,
    "max_dispatch_size": 16,
    "arena_rows": 512,
    "compile_ahead": False,
}
SPEC = {
    "x": f"float32[v,{H}]",
    "edges": amp.Edges("v", kinds=KINDS),
    "rounds": "int32[]",
    "y": "float32[]",
    "at": "int32[]",
}


def instance(n, edges, rounds, seed=0):
    """A graph of `n` nodes; `edges` are senders, receivers and kinds, taken modulo what there is."""
    rng = np.random.default_rng(seed)
    senders, receivers, kinds = np.array(edges, np.int32).reshape(-1, 3).T
    return {
        "x": rng.normal(size=(n, H)).astype(np.float32),
        "edges": amp.Edges(senders % n, receivers % n, kinds % KINDS),
        "rounds": np.int32(rounds),
        "y": np.float32(rng.normal()),
        "at": np.int32(-1 if seed % 2 else seed % n),
    }


def linear(p, x):
    return x @ p["w"] + p["b"]


def propagated(p, s):
    """A recurrent unit that gets what the kinds' linear maps send, for as many rounds as the instance says."""
    sends = [lambda h, k=k: linear(p[f"edge{k}"], h) for k in range(KINDS)]

    def step(_, h):
        return amp.map(
            lambda a, h: jnp.tanh(linear(p["update"], a) + h),
            amp.propagate(sends, s["edges"], h),
            h,
        )

    return amp.fori_loop(s["rounds"], step, s["x"])


def whole(p, s):
    """A loss of each graph, and one of each node."""
    h = propagated(p, s)
    rows = amp.map(
        lambda h, x: linear(p["out"], h) * x[0],
        h,
        s["x"],
    )
    amp.output("rows", rows)
    return (amp.sum(rows)[0] - s["y"]) ** 2 + amp.sum(
        amp.map(lambda r: jnp.sin(r[1]), rows)
    ) / amp.length(rows)


def attending(p, s):
    """Softmax over the nodes, a node that is taken, and values of the graph at every node."""
    h = propagated(p, s)
    score = amp.map(
        lambda h: linear(p["out"], h)[0],
        h,
    )
    share = amp.softmax(score)
    mean = amp.sum(amp.map(jnp.multiply, share, h))
    apart = amp.map(
        lambda h: jnp.sum((h - mean) ** 2) * s["y"],
        h,
    )
    return amp.logsumexp(score) - amp.take(score, s["at"]) + jnp.tanh(amp.max(apart)), {
        "mean": mean[0]
    }


def carrying(p, s):
    """Three values in a loop, two of them of the nodes; pairs are sent, by functions that read the graph's value; nodes' values from outside."""
    first = amp.map(
        lambda x: jnp.tanh(linear(p["out"], x)),
        s["x"],
    )

    def step(i, carry):
        h, m, total = carry
        sends = [
            lambda c: (
                linear(p["edge0"], c[0]),
                c[0] * total,
            ),
            lambda c: (
                c[0] + c[1],
                jnp.full(H, s["y"]),
            ),
        ]
        a, b = amp.propagate(
            sends,
            s["edges"],
            (h, m),
        )
        h = amp.map(
            lambda a, b, h, x, f: jnp.tanh(linear(p["update"], a) + b + h * x + f[0] * i),
            a,
            b,
            h,
            s["x"],
            first,
        )
        return (
            h,
            amp.map(
                lambda h, m: jnp.sin(h + m),
                h,
                m,
            ),
            total / 2
            + jnp.tanh(
                amp.sum(
                    amp.map(
                        lambda h: h[0],
                        h,
                    )
                )
            ),
        )

    h, m, total = amp.fori_loop(
        s["rounds"],
        step,
        (s["x"], s["x"], jnp.ones(())),
    )
    return (
        amp.sum(
            amp.map(
                lambda h, m: jnp.sum(h * m) + linear(p["edge1"], h)[0],
                h,
                m,
            )
        )
        ** 2
        + total
    )


MODELS = {model.__name__: model for model in (whole, attending, carrying)}


def params():
    rng = np.random.default_rng(7)
    shapes = {
        "edge0": (H, H),
        "edge1": (H, H),
        "update": (H, H),
        "out": (H, H),
    }
    result = {}
    for k, s in shapes.items():
        result[k] = {
            "w": jnp.asarray(
                rng.normal(size=s) / 2,
                jnp.float32,
            ),
            "b": jnp.asarray(
                rng.normal(size=s[1]) / 2,
                jnp.float32,
            ),
        }
    return result


@functools.cache
def compiled(name):
    return amp.compile(MODELS[name], params(), SPEC)


def assert_same(name, data):
    """The engine's loss and gradients are those of the function itself."""
    model = compiled(name)
    trainer = amp.Trainer(model.graph, params=params(), **SETTINGS)
    loss = trainer.accumulate(model.data(data), update=False)["loss_sum"]
    want_loss, want = jax.value_and_grad(lambda p: model.loss(p, data))(params())
    assert loss == pytest.approx(float(want_loss), rel=1e-5, abs=1e-5)
    for node, (grads, _) in trainer.gradients.items():
        for a, b in zip(
            jax.tree.leaves(grads),
            jax.tree.leaves(want[node]),
            strict=True,
        ):
            assert np.abs(np.asarray(a) - b).max() <= 1e-5 * max(1.0, float(np.abs(b).max())), node
    return trainer


ODD = [
    instance(1, [], 2),
    instance(3, [], 1, 1),
    instance(
        3,
        [
            (0, 0, 0),
            (0, 1, 1),
            (0, 1, 1),
            (1, 0, 0),
        ],
        2,
        2,
    ),
    instance(
        3,
        [(0, 1, 0), (2, 1, 0)],
        0,
        3,
    ),
]
"""One node; no edges; an edge to the sender itself and two alike between two nodes; no rounds."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name == "attending" else pytest.mark.users)
        for name in MODELS
    ],
)
def test_gradients_of_odd_graphs(name):
    assert_same(name, ODD)


ENDS = st.tuples(
    st.integers(0, 2),
    st.integers(0, 2),
)
EDGES = st.one_of(
    st.just([]),
    st.lists(ENDS, min_size=2, max_size=2),
)
"""Few sizes, so that JAX compiles few operations."""


@pytest.mark.users
@settings(max_examples=examples(24))
@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from([1, 3]),
    EDGES,
    EDGES,
    st.integers(0, 2),
    st.integers(0, 9),
)
def test_gradients_of_random_graphs(name, n, zeros, ones, rounds, seed):
    edges = [(*ends, 0) for ends in zeros] + [(*ends, 1) for ends in ones]
    assert_same(name, [instance(n, edges, rounds, seed)])


def test_outputs_are_rows_of_each_node():
    rows = assert_same("whole", ODD).predict(compiled("whole").data(ODD))["rows"]
    sizes = [1, 3, 3, 3]
    assert rows.instance.tolist() == np.repeat(range(4), sizes).tolist()
    assert rows.payload.shape == (10, H)
    assert rows.fields["v_i"].tolist() == [row for size in sizes for row in range(size)]
