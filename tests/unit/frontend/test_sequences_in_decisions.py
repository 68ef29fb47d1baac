"""Sequences from outside, and all that goes through them, where a value that was read decides what runs: as where the instance decides."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.model_laws import Compiled64

import ampjax as amp
from ampjax.errors import DataError, GraphError
from ampjax.testing.reference import reference

P = {
    "w": np.eye(2) * 0.7 + 0.1,
    "b": np.ones(2) * 0.3,
    "u": np.eye(2) * 0.5,
    "v": np.ones(2) * 0.4,
}
SPEC = {
    "x": "float64[t,2]",
    "words": "int32[t]",
    "c": "float64[t,k,2]",
    "ps": "int32[t,q]",
    "y": "float64[u,2]",
    "n": "int32[]",
    "z": "float64[2]",
    "large": "float64[20]",
    "tree": amp.Tree("int32[r]", "int32[r]", "float64[r,2]"),
    "g": amp.Edges("m", kinds=2),
    "h": "float64[m,2]",
}
NESTED = 1, ((1, 2), 3), ((1, 2, 3), (4,), 5)


def instance(t, u, nodes, seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 3, t)
    edges = np.arange(max(nodes - 1, 0))
    asked = []
    for i in range(t):
        asked.append(
            list(
                rng.integers(
                    0,
                    i,
                    rng.integers(0, 3),
                )
            )
            if i
            else []
        )
    return {
        "x": rng.normal(size=(t, 2)),
        "words": rng.integers(0, 4, t),
        "c": amp.Ragged(
            rng.normal(size=(int(sizes.sum()), 2)),
            sizes,
        ),
        "ps": asked,
        "y": rng.normal(size=(u, 2)),
        "n": int(rng.integers(0, 4)),
        "z": rng.normal(size=2),
        "large": rng.normal(size=20),
        "tree": amp.Tree.of(
            NESTED[seed % 3],
            lambda x: np.array([x / 4, 0.5]),
            np.ones(2),
        ),
        "g": amp.Edges(edges, edges + 1, edges % 2),
        "h": rng.normal(size=(nodes, 2)),
    }


INSTANCES = [
    instance(3, 2, 3, 0),
    instance(0, 2, 0, 1),
    instance(1, 0, 1, 2),
    instance(2, 3, 2, 3),
]


def attend(p, xs, h):
    weights = amp.softmax(
        amp.map(
            lambda x: jnp.dot(x, h),
            xs,
        )
    )
    return jnp.tanh(
        h @ p["w"]
        + amp.sum(
            amp.map(
                lambda a, x: a * x,
                weights,
                xs,
            )
        )
    )


def cell(p, h, x):
    return jnp.tanh(h @ p["w"] + x)


def is_small(h):
    return amp.read(jnp.sum(h**2) < 1.7, assume=1)


def sequences(p, e, h):
    """Scans both ways, from zeros and from what is there; nested ones; reductions of all kinds, and lengths."""
    h = (
        amp.scan(
            lambda c, x: (cell(p, c, x), None),
            jnp.zeros(2),
            e["x"],
            reverse=True,
        )[0]
        + 0.5 * h
    )
    h = amp.scan(
        lambda a, c: (
            amp.scan(lambda b, q: (cell(p, b, q), None), a, c)[0],
            None,
        ),
        h,
        e["c"],
    )[0]
    v = amp.map(
        lambda x: jnp.tanh(x * p["v"] + h),
        e["x"],
    )
    return 0.3 * (amp.mean(v) + jnp.tanh(amp.max(v)) + amp.length(e["y"]) * p["v"]) + 0.5 * h


def pairs(p, e, h):
    """Sequences from outside once more for each element, of others and of their own."""
    one = amp.sum(
        amp.map(
            lambda x: attend(p, e["y"], x * h),
            e["x"],
        )
    )
    two = amp.sum(
        amp.map(
            lambda x: amp.sum(
                amp.map(
                    lambda y: jnp.tanh(x * y + h),
                    e["x"],
                )
            ),
            e["x"],
        )
    )
    return 0.4 * h + 0.1 * one + 0.05 * two * p["v"]


def chosen(p, e, h):
    """Choices by the instance: at the place of the decision, for each element, in a loop; also by an element's number."""
    h = amp.switch(
        e["n"],
        [
            lambda: h @ p["w"],
            lambda: h * p["v"],
            lambda: e["z"] * 0.5,
            lambda: amp.sum(e["x"]) * 0.2,
        ],
    )

    def each(w, x):
        return amp.cond(
            w > 1,
            lambda: jnp.sum(e["large"]) * 0.1 * x * h,
            lambda: jnp.tanh(x @ p["w"]),
        )

    def step(c, s):
        return (
            amp.cond(
                s[0] > 1,
                lambda: cell(p, c, s[1]),
                lambda: c * 0.7,
            ),
            None,
        )

    h += (
        0.2
        * amp.sum(
            amp.map(
                each,
                e["words"],
                e["x"],
            )
        )
        + amp.scan(step, h, (e["words"], e["x"]))[0]
    )

    def last():
        return amp.take(
            amp.map(
                lambda x: jnp.tanh(x @ p["w"] + h),
                e["x"],
            ),
            -1,
        ) + amp.take(e["x"], 0)

    return 0.3 * amp.cond(
        amp.length(e["x"]) > 0,
        last,
        lambda: h,
    )


def counted(p, e, h):
    """Loops of as many rounds as the instance says, a sequence has, or a constant says."""
    h = amp.fori_loop(
        e["n"],
        lambda i, h: cell(p, h, 0.1 * i),
        h,
    )
    h = amp.fori_loop(
        amp.length(e["x"]),
        lambda i, h: 0.9 * h + 0.1 * i * p["v"],
        h,
    )
    return amp.fori_loop(
        2,
        lambda i, h: jnp.tanh(h * p["v"]),
        h,
    )


def structures(p, e, h):
    """Trees up and down, and recursions."""

    def branch(n, kids):
        return jnp.tanh(amp.sum(kids) @ p["u"] + n)

    states, root = amp.fold_tree(
        lambda n: cell(p, h, n),
        branch,
        e["tree"],
    )
    down = amp.sum(
        amp.scan_tree(
            lambda s, n: cell(p, s, n),
            root,
            e["tree"],
        )
    )
    asked = amp.recurse(
        lambda r, x, ps: jnp.tanh(x * p["v"] + amp.sum(amp.map(r, ps)) + h),
        h,
        e["x"],
        e["ps"],
    )
    return 0.4 * h + 0.1 * (amp.sum(states) + down + amp.sum(asked))


def graphs(p, e, h):
    """Rounds of a graph's nodes, which travel in one message; and one of them."""

    def rounds(_, hs):
        sent = amp.propagate(
            [
                lambda x: x @ p["w"] * jnp.sum(h),
                lambda x: x * p["v"],
            ],
            e["g"],
            hs,
        )
        return amp.map(
            lambda a, x: jnp.tanh(a + x + h),
            sent,
            hs,
        )

    nodes = amp.fori_loop(
        2,
        rounds,
        amp.map(lambda x: x * p["v"], e["h"]),
    )
    first = amp.cond(
        amp.length(nodes) > 0,
        lambda: amp.take(nodes, 0),
        lambda: h,
    )
    return 0.4 * h + 0.1 * (amp.sum(nodes) + first)


def decided_again(p, e, h):
    """Other choices and loops by values that are read, with sequences of their own; several choices between the same functions."""
    h = amp.cond(
        is_small(h),
        lambda: attend(p, e["x"], h),
        lambda: h + 0.1 * amp.sum(e["y"]),
    )

    def each(x):
        return amp.while_loop(
            is_small,
            lambda q: attend(p, e["y"], q + h),
            x,
            most=2,
        )

    h = 0.4 * h + 0.2 * amp.sum(amp.map(each, e["x"]))
    experts = [
        lambda: attend(p, e["x"], h),
        lambda: h * p["v"] + 0.1 * amp.sum(e["y"]),
    ]
    return 0.4 * sum(amp.switch(amp.read(jnp.int32(jnp.sum(h * s) > 0)), experts) for s in (1, -1))


def told(p, e, h):
    """Metrics and outputs, at the place and for each element; numbers that follow from the instance, and those of no instance."""
    amp.metric(
        "size",
        jnp.sum(h) * e["n"],
        count=e["n"],
    )
    amp.map(
        lambda x: amp.metric("each", jnp.sum(h * x)),
        e["x"],
    )
    amp.output("seen", h)
    return (
        h * p["v"]
        + jnp.tanh(e["z"] * 2 + e["n"])
        + 0.1
        * amp.sum(
            amp.map(
                lambda x: jnp.ones(2),
                e["x"],
            )
        )
    )


def in_choice(body, p, e):
    return amp.cond(
        is_small(e["z"] * p["b"]),
        lambda: body(p, e, e["z"] * p["b"]),
        lambda: e["z"] * p["v"],
    )


def in_loop(body, p, e):
    def rounds(s):
        return (
            body(p, e, s[0]),
            s[1] + 1,
        )

    def goes_on(s):
        return amp.read(
            (jnp.sum(s[0] ** 2) < 1.7) | (s[1] < 1),
            assume=1,
        )

    return amp.while_loop(
        goes_on,
        rounds,
        (e["z"] * p["b"], jnp.int32(0)),
        most=3,
    )[0]


def in_loops_of_elements(body, p, e):
    def each(y):
        return amp.while_loop(
            is_small,
            lambda h: body(p, e, h),
            y * p["b"],
            most=2,
        )

    return amp.sum(amp.map(each, e["y"])) + e["z"] * p["b"]


BODIES = [sequences, pairs, chosen, counted, structures, graphs, decided_again, told]


@pytest.mark.first_case
@pytest.mark.parametrize(
    "place",
    [
        in_choice,
        in_loop,
        pytest.param(in_loops_of_elements, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("body", BODIES)
def test_all_that_the_instance_may_decide_works_where_a_value_does(body, place):
    with jax.enable_x64(True):
        compiled = Compiled64(
            lambda p, e: jnp.sum(place(body, p, e) ** 2),
            P,
            SPEC,
            INSTANCES,
        )
        (compiled.check_gradients if body is graphs else compiled.check_direction)()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "rows",
    [
        lambda p, e: e["x"],
        lambda p, e: amp.map(
            lambda x: jnp.tanh(x * p["v"]),
            e["x"],
        ),
    ],
)
def test_the_engine_computes_it_too(rows):
    params = jax.tree.map(np.float32, P)
    spec = {"x": "float32[t,2]", "z": "float32[2]"}

    def model(p, e):
        xs = rows(p, e)

        def turn(s):
            return (
                attend(p, xs, s[0]),
                s[1] + 1,
            )

        h, n = amp.while_loop(
            lambda s: amp.read((jnp.sum(s[0] ** 2) < 2) & (s[1] < 3)),
            turn,
            (e["z"], jnp.int32(0)),
            most=3,
        )
        amp.metric("rounds", n)
        return jnp.sum(amp.cond(amp.read(h[0] > 0.2), lambda: attend(p, xs, h), lambda: h) ** 2)

    compiled = amp.compile(model, params, spec)
    examples = []
    for n in range(5):
        examples.append(
            {
                "x": np.full((n, 2), 0.3, np.float32),
                "z": np.full(2, 0.2 * n - 0.3, np.float32),
            }
        )
    assert compiled.verify(examples, progress=False)
    for settings in (
        amp.Settings(max_active_keys=1, max_dispatch_size=1, fuse=False),
        amp.Settings(workers=2),
    ):
        trainer = amp.Trainer(
            compiled.graph,
            optax.sgd(0.0),
            settings=settings,
        )
        found = trainer.accumulate(compiled.data(examples), update=False)
        assert found["loss_sum"] == pytest.approx(
            float(compiled.loss(params, examples)),
            rel=1e-5,
        )


@pytest.mark.nightly
def test_a_round_costs_as_many_messages_as_where_the_instance_says_how_many_there_are():
    """The elements of a sequence go around, and each is told whether the loop goes on: half as many messages again."""

    def messages(loop, n):
        compiled = amp.compile(
            lambda p, e: jnp.sum(loop(p, e)),
            {"w": jnp.eye(2)},
            {"x": "float32[t,2]", "n": "int32[]"},
        )
        data = compiled.data(
            [
                {
                    "x": np.zeros((n, 2)),
                    "n": 5,
                }
            ]
        )
        return sum(
            reference(
                compiled.graph,
                {"w": jnp.eye(2)},
                data,
                gradients=False,
            ).messages.values()
        )

    def counted(p, e):
        return amp.fori_loop(
            e["n"],
            lambda i, h: attend(p, e["x"], h),
            jnp.zeros(2),
        )

    def asked(p, e):
        return amp.while_loop(
            lambda h: amp.read(h[0] < 9),
            lambda h: attend(p, e["x"], h),
            jnp.zeros(2),
            most=5,
        )

    for n in (5, 20):
        assert messages(asked, n) < 1.6 * messages(counted, n)


def test_values_of_the_instance_come_along_with_what_is_carried():
    """No message of their own, whatever is computed of them."""

    def model(p, e):
        def each(x):
            return amp.cond(
                amp.read(jnp.sum(x * p["v"]) > 0),
                lambda: x * 2 + jnp.tanh(e["z"]),
                lambda: x,
            )

        return jnp.sum(amp.sum(amp.map(each, e["x"])))

    compiled = amp.compile(
        model,
        {"v": jnp.ones(2)},
        {"x": "float32[t,2]", "z": "float32[2]"},
    )
    assert {name for name in compiled.graph.pumps if name.startswith("cond")} == {"cond"}
    assert compiled.verify(
        [
            {
                "x": np.ones((3, 2)),
                "z": np.ones(2),
            },
            {
                "x": -np.ones((2, 2)),
                "z": np.ones(2),
            },
        ],
        progress=False,
    )


@pytest.mark.nightly
def test_a_large_value_is_read_where_the_instance_decides_for_each_element():
    def model(p, e):
        def each(w):
            return amp.cond(
                w > 1,
                lambda: jnp.sum(e["large"] * p["s"]),
                lambda: jnp.float32(w),
            )

        return amp.sum(amp.map(each, e["words"]))

    params = {"s": jnp.float32(2)}
    examples = [
        {
            "large": np.ones(20),
            "words": [1, 2, 3],
        },
        {"large": np.ones(20), "words": []},
    ]
    compiled = amp.compile(model, params, {"large": "float32[20]", "words": "int32[t]"})
    trainer = amp.Trainer(compiled.graph, optax.sgd(0.0))
    assert (
        trainer.accumulate(compiled.data(examples), update=False)["loss_sum"]
        == 81
        == compiled.loss(params, examples)
    )


def test_an_element_that_is_taken_must_be_there_whatever_is_decided():
    def model(p, e):
        return amp.cond(
            amp.read(p["s"] > 9),
            lambda: amp.take(e["x"], 2) * p["s"],
            lambda: p["s"] * 1,
        )

    compiled = amp.compile(
        model,
        {"s": jnp.float32(1)},
        {"x": "float32[t]"},
    )
    with pytest.raises(
        DataError,
        match=r"`<lambda>`, instance 1: expected an element that the sequence has, got number 2 of 1",
    ):
        compiled.data([{"x": [1, 2, 3]}, {"x": [1]}])


def test_a_test_is_read_as_a_whole():
    def model(p, e):
        def body(s):
            return (s[0] * p["s"], s[1] + 1)

        return amp.while_loop(
            lambda s: amp.read(s[0] > 0) & (s[1] < 3),
            body,
            (e["x"] * p["s"], jnp.int32(0)),
            most=4,
        )[0]

    with pytest.raises(
        GraphError,
        match=r"got one that also depends on what is not read\. Put `amp.read` around the whole",
    ):
        amp.compile(
            model,
            {"s": jnp.float32(1)},
            {"x": "float32[]"},
        )


def test_an_element_of_a_recursion_is_asked_for_before_a_decision():
    def model(p, e):
        def each(recur, x):
            return amp.cond(
                amp.read(x * p["s"] > 0),
                lambda: recur(-1) + x,
                lambda: x * p["s"],
            )

        return amp.sum(
            amp.recurse(
                each,
                jnp.float32(0),
                e["x"],
            )
        )

    with pytest.raises(
        GraphError,
        match="expected `recur` where the instance decides what runs, got a call where a read",
    ):
        amp.compile(
            model,
            {"s": jnp.float32(1)},
            {"x": "float32[t]"},
        )
