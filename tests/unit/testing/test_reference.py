"""The oracle against functions written by hand and differentiated by JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
import ampjax.graphs as ag
from ampjax.errors import DeadlockError, InvariantError, MessageError, ParameterError
from ampjax.ir.builders.control_builders import bcast
from ampjax.numerics.differences import compare, difference_table
from ampjax.testing import init_params, reference

pytestmark = [pytest.mark.slow, pytest.mark.users]

D = 4
cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def square(x):
    return 0.5 * jnp.sum(x * x)


def linear(p, x):
    return x @ p["w"] + p["b"]


def assert_equal(graph, data, by_hand, seed=0):
    """Loss and gradients of the reference are those of `by_hand(params, instance)`, summed over the instances."""
    params = init_params(graph, seed)
    got = reference(graph, params, data)
    loss, grads = jax.value_and_grad(lambda p: sum(by_hand(p, instance) for instance in data))(
        params
    )
    np.testing.assert_allclose(got.loss, loss, rtol=1e-6)
    differences = compare(got.grads, grads)
    assert max(value for _, _, value in differences) < 2e-6, difference_table(differences)
    return got


def test_perceptron_with_metrics():
    def score(logits, label):
        hit = (jnp.argmax(logits) == label).astype(jnp.float32)
        return cross_entropy(logits, label), {
            "accuracy": hit,
            "pair": (2 * hit, 2.0 * jnp.ones(())),
        }

    with ag.Graph() as g:
        x = ag.pump("x", (6,))
        label = ag.pump("label", (), "int32")
        h = ag.npt("relu", jax.nn.relu)(
            ag.ppt(
                "l1",
                amp.nn.Linear(6, D),
            )(x)
        )
        logits = ag.ppt(
            "l2",
            amp.nn.Linear(D, 3),
        )(h)
        ag.sink("logits", logits)
        ag.loss("xent", score)(logits, label)
    rng = np.random.default_rng(0)
    data = []
    for i in range(5):
        data.append(
            {
                "x": rng.standard_normal(6).astype(np.float32),
                "label": i % 3,
            }
        )

    def by_hand(p, d):
        return cross_entropy(
            linear(
                p["l2"],
                jax.nn.relu(linear(p["l1"], d["x"])),
            ),
            d["label"],
        )

    got = assert_equal(g, data, by_hand)
    assert got.rows == {"l1": 5, "l2": 5}
    assert [state for state, _ in got.outputs["logits"]] == [{"instance": i} for i in range(5)]
    hits = [
        int(np.argmax(logits) == d["label"])
        for (_, logits), d in zip(got.outputs["logits"], data, strict=True)
    ]
    assert got.metrics == pytest.approx(
        {
            "accuracy": np.mean(hits),
            "pair": np.mean(hits),
        }
    )
    compiled = reference(g, init_params(g), data, jit=True)
    plain = reference(g, init_params(g), data, gradients=False)
    assert plain.grads == {} and plain.loss == got.loss
    assert compiled.loss == pytest.approx(got.loss)


def test_recurrent_network_on_variable_lengths():
    with ag.Graph() as g:
        tokens = ag.pump("tokens", (), "int32", ("t", "length"))
        h0 = ag.pump(
            "h0",
            (D,),
            fields=("t", "length"),
        )
        label = ag.pump("label", (), "int32")
        h = ag.phi("h")
        x = ag.ppt(
            "embed",
            amp.nn.Embed(14, D),
        )(tokens)
        z = ag.npt("relu", jax.nn.relu)(
            ag.ppt(
                "linear1",
                amp.nn.Linear(2 * D, D),
            )(ag.concat(x, h))
        )
        z = ag.isu(
            z,
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        more, done = ag.cond(
            z,
            lambda s: s.t < s.length,
        )
        h.connect(h0, more)
        ag.loss("xent", cross_entropy, join=("instance",))(
            ag.ppt(
                "linear2",
                amp.nn.Linear(D, 10),
            )(done),
            label,
        )
    rng = np.random.default_rng(1)
    lengths = [1, 5, 3, 8]
    data = []
    for n in lengths:
        data.append(
            {
                "tokens": ag.messages(
                    rng.integers(0, 14, n),
                    t=np.arange(n),
                    length=n,
                ),
                "h0": ag.messages(
                    np.zeros((1, D), np.float32),
                    t=0,
                    length=n,
                ),
                "label": n,
            }
        )

    def by_hand(p, d):
        h = jnp.zeros(D)
        for token in d["tokens"].payload:
            h = jax.nn.relu(
                linear(
                    p["linear1"],
                    jnp.concatenate([p["embed"][token], h]),
                )
            )
        return cross_entropy(linear(p["linear2"], h), d["label"])

    got = assert_equal(g, data, by_hand)
    assert got.rows == {
        "embed": sum(lengths),
        "linear1": sum(lengths),
        "linear2": len(lengths),
    }


def cell(p, left, right):
    return jnp.tanh(left @ p["left"] + right @ p["right"])


def cell_params(key):
    left, right = jax.random.normal(key, (2, D, D)) * 0.5
    return {"left": left, "right": right}


def test_binary_tree_with_parent_pointers():
    """Heap order: node v's children are 2v and 2v+1. On its way up a message notes its sides, so that f_inv finds the way down."""
    with ag.Graph() as g:
        leaves = ag.pump("leaves", (), "int32", ("v", "side"))
        label = ag.pump("label", (), "int32", ("v",))
        nodes = ag.phi("nodes")
        ag.loss("xent", cross_entropy, join=("v",))(
            ag.ppt(
                "out",
                amp.nn.Linear(D, 3),
            )(nodes),
            label,
        )
        root, child = ag.cond(nodes, lambda s: s.v == 1)
        ag.sink("root", root)
        up = ag.isu(
            child,
            lambda s: s.replace(
                v=s.v // 2,
                side=s.side * 2 + s.v % 2,
            ),
            lambda s: s.replace(
                v=s.v * 2 + s.side % 2,
                side=s.side // 2,
            ),
        )
        left, right = ag.cond(
            up,
            lambda s: s.side % 2 == 0,
        )
        join = ag.ppt("branch", cell, params=cell_params, join=("v",))(
            left,
            right,
        )
        nodes.connect(
            ag.ppt(
                "embed",
                amp.nn.Embed(7, D),
            )(leaves),
            join,
        )
    rng = np.random.default_rng(2)

    def tree(leaf_numbers):
        inner = sorted({v // 2**k for v in leaf_numbers for k in range(1, 5)} - {0})
        numbers = [*inner, *leaf_numbers]
        return {
            "leaves": ag.messages(
                rng.integers(0, 7, len(leaf_numbers)),
                v=leaf_numbers,
                side=0,
            ),
            "label": ag.messages(
                rng.integers(0, 3, len(numbers)),
                v=numbers,
            ),
        }

    data = [
        tree([2, 3]),
        tree([4, 5, 3]),
        tree([4, 10, 11, 6, 7]),
        tree([1]),
    ]

    def by_hand(p, d):
        leaf = dict(
            zip(
                d["leaves"].fields["v"],
                d["leaves"].payload,
                strict=True,
            )
        )
        label = dict(
            zip(
                d["label"].fields["v"],
                d["label"].payload,
                strict=True,
            )
        )

        def visit(v):
            if v in leaf:
                h = p["embed"][leaf[v]]
                below = 0.0
            else:
                h = None
                below = 0.0
            if h is None:
                left, loss_l = visit(2 * v)
                right, loss_r = visit(2 * v + 1)
                h = cell(p["branch"], left, right)
                below = loss_l + loss_r
            return h, below + cross_entropy(linear(p["out"], h), label[v])

        return visit(1)[1]

    got = assert_equal(g, data, by_hand)
    assert got.rows == {
        "out": 3 + 5 + 9 + 1,
        "branch": 1 + 2 + 4,
        "embed": 2 + 3 + 5 + 1,
    }
    assert len(got.outputs["root"]) == len(data)


def gate(p, h, m):
    z = jax.nn.sigmoid(jnp.concatenate([h, m]) @ p)
    return (1 - z) * h + z * jnp.tanh(m)


def test_gated_graph_network_step_by_step():
    steps = 2
    kinds = 3
    with ag.Graph() as g:
        h0 = ag.pump(
            "h0",
            (D,),
            fields=("step",),
            ragged=True,
        )
        topology = ag.topology("topology")
        h = ag.phi("h")
        edges = ag.distribute(h, topology, kinds)
        collected = ag.collect(
            [ag.ppt(f"edge{k}", amp.nn.Linear(D, D))(w) for k, w in enumerate(edges)],
            topology,
        )
        new = ag.ppt(
            "gate",
            gate,
            params=lambda key: jax.random.normal(key, (2 * D, D)),
        )(h, collected)
        new = ag.isu(
            new,
            lambda s: s.replace(step=s.step + 1),
            lambda s: s.replace(step=s.step - 1),
        )
        more, done = ag.cond(new, lambda s: s.step < steps)
        h.connect(h0, more)
        pooled = ag.reduce("pool", jax.ops.segment_sum, done)
        ag.loss("square", square)(
            ag.ppt(
                "out",
                amp.nn.Linear(D, 1),
            )(pooled)
        )
    rng = np.random.default_rng(3)

    def graph(n_node, n_edge):
        senders, receivers = rng.integers(
            0, n_node, (2, n_edge)
        )  # some nodes stay isolated, kind 2 stays empty
        topology = ag.Topology.from_edges(
            senders, receivers, rng.integers(0, 2, n_edge), n_node, kinds
        )
        x = rng.standard_normal((n_node, D)).astype(np.float32)
        return {"h0": ag.messages(x, step=0), "topology": topology}

    data = [
        graph(5, 7),
        graph(1, 0),
        graph(3, 2),
    ]

    def by_hand(p, d):
        h = jnp.asarray(d["h0"].payload)
        topology = d["topology"]
        for _ in range(steps):
            m = jnp.zeros_like(h)
            for k in range(kinds):
                m = m.at[topology.scatter[k]].add(
                    linear(
                        p[f"edge{k}"],
                        h[topology.gather[k]],
                    )
                )
            h = jax.vmap(gate, (None, 0, 0))(
                p["gate"],
                h,
                m,
            )
        return square(linear(p["out"], h.sum(axis=0)))

    got = assert_equal(g, data, by_hand)
    assert got.rows["edge0"] + got.rows["edge1"] == steps * 9
    assert got.rows["edge2"] == 0
    assert not np.any(got.grads["edge2"]["w"])


@pytest.mark.nightly
def test_group_with_opener_of_size_zero_and_order():
    def weigh(rows, segment_ids, n):  # depends on the order of the rows
        return jax.ops.segment_sum(
            rows * (1.0 + jnp.arange(len(rows)))[:, None],
            segment_ids,
            n,
        )

    with ag.Graph() as g:
        words = ag.pump(
            "words",
            (D,),
            fields=("i", "rank"),
        )
        opener = ag.pump("opener", (), fields=("n",))
        y = ag.ppt(
            "layer",
            amp.nn.Linear(D, D),
        )(words)
        group = ag.group(
            y,
            by=(),
            size=lambda s: s.n,
            order=lambda s: -s.rank,
            opener=opener,
        )
        ag.loss("rows", square)(group)
        ag.sink("group", group)
        ag.loss("square", square)(ag.reduce("weigh", weigh, group))
    rng = np.random.default_rng(4)
    data = []
    for n in (3, 0, 1):
        data.append(
            {
                "words": ag.messages(
                    rng.standard_normal((n, D)).astype(np.float32),
                    i=np.arange(n),
                    rank=rng.permutation(n),
                ),
                "opener": ag.messages([0.0], n=n),
            }
        )

    def by_hand(p, d):
        rows = linear(
            p["layer"],
            d["words"].payload[np.argsort(-d["words"].fields["rank"])],
        )
        return 0.5 * jnp.sum(rows**2) + square(
            ((1.0 + jnp.arange(len(rows)))[:, None] * rows).sum(axis=0)
        )

    got = assert_equal(g, data, by_hand)
    assert got.rows == {"layer": 4}
    assert [(state, rows.shape) for state, rows in got.outputs["group"]] == [
        ({"instance": 0, "n": 3}, (3, D)),
        ({"instance": 1, "n": 0}, (0, D)),
        ({"instance": 2, "n": 1}, (1, D)),
    ]


def test_nested_loops():
    """Outer loop `a`, inner loop `b`; at the inner exit `b` is reset by what can be undone: subtracting its bound."""
    with ag.Graph() as g:
        x = ag.pump(
            "x",
            (D,),
            fields=("a", "b", "n", "m"),
        )
        outer = ag.phi("outer")
        inner = ag.phi("inner")
        y = ag.ppt(
            "inside",
            lambda p, x: jnp.tanh(x @ p),
            params=lambda k: jax.random.normal(k, (D, D)),
        )(inner)
        y = ag.isu(
            y,
            lambda s: s.replace(b=s.b + 1),
            lambda s: s.replace(b=s.b - 1),
        )
        again, out = ag.cond(
            y,
            lambda s: s.b < s.m + s.a,
        )
        inner.connect(outer, again)
        z = ag.ppt(
            "outside",
            lambda p, x: x * p,
            params=jnp.linspace(0.5, 1.5, D),
        )(out)
        z = ag.isu(
            z,
            lambda s: s.replace(
                b=s.b - s.m - s.a,
                a=s.a + 1,
            ),
            lambda s: s.replace(
                b=s.b + s.m + s.a - 1,
                a=s.a - 1,
            ),
        )
        more, done = ag.cond(
            z,
            lambda s: s.a < s.n,
        )
        outer.connect(x, more)
        ag.loss("square", square)(done)
    rng = np.random.default_rng(5)
    data = []
    for n, m in ((1, 1), (3, 2), (2, 1)):
        data.append(
            {
                "x": ag.messages(
                    rng.standard_normal((1, D)).astype(np.float32),
                    a=0,
                    b=0,
                    n=n,
                    m=m,
                )
            }
        )

    def by_hand(p, d):
        x = d["x"].payload[0]
        fields = d["x"].fields
        for a in range(fields["n"]):
            for _ in range(fields["m"] + a):
                x = jnp.tanh(x @ p["inside"])
            x = x * p["outside"]
        return square(x)

    got = assert_equal(g, data, by_hand)
    assert got.rows == {"inside": 1 + 9 + 3, "outside": 1 + 3 + 2}


def test_flatmap_ungroup_repeat_and_keying_function():
    with ag.Graph() as g:
        x = ag.pump("x", (D,), fields=("n",))
        rows = ag.pump(
            "rows",
            (D,),
            fields=("n",),
            ragged=True,
        )
        copies = ag.flatmap(
            x,
            lambda s: s.n,
            lambda s, i: s.replace(i=i),
        )
        each = ag.ungroup(rows, field="i")
        scaled = ag.ppt(
            "scale",
            lambda p, a, b: p * a * b,
            params=jnp.ones(D),
            join=lambda s: (s.instance, s.i),
        )(copies, each)
        ag.loss("each", square)(scaled)
        both = ag.npt("add", lambda a, b: a + b)(
            ag.repeat(
                ag.ppt(
                    "l",
                    amp.nn.Linear(D, D),
                )(x),
                lambda s: s.n,
            ),
            rows,
        )
        ag.loss("rowwise", square)(both)
    rng = np.random.default_rng(6)
    data = []
    for n in (0, 2, 3):
        data.append(
            {
                "x": ag.messages(
                    rng.standard_normal((1, D)).astype(np.float32),
                    n=n,
                ),
                "rows": ag.messages(
                    rng.standard_normal((n, D)).astype(np.float32),
                    n=n,
                ),
            }
        )

    def by_hand(p, d):
        x = d["x"].payload[0]
        rows = d["rows"].payload
        return 0.5 * jnp.sum((p["scale"] * x * rows) ** 2) + 0.5 * jnp.sum(
            (linear(p["l"], x) + rows) ** 2
        )

    got = assert_equal(g, data, by_hand)
    assert got.rows == {"scale": 5, "l": 3}


def test_keys_reach_bodies_that_take_one():
    def noisy(x, key=None):
        if key is None:
            return x
        return x + jax.random.normal(key, x.shape)

    with ag.Graph() as g:
        ag.sink(
            "y",
            ag.npt(
                "noise",
                noisy,
                rng=True,
            )(ag.pump("x", (D,), ragged=True)),
        )
    data = [{"x": np.zeros((2, D), np.float32)}]

    def keys(node, state, row):
        return jax.random.fold_in(
            jax.random.key(state["instance"]),
            row,
        )

    (_, quiet), *_ = reference(g, {}, data).outputs["y"]
    (_, noise), *_ = reference(g, {}, data, keys=keys).outputs["y"]
    assert not quiet.any()
    np.testing.assert_allclose(
        noise[1],
        jax.random.normal(
            keys("noise", {"instance": 0}, 1),
            (D,),
        ),
    )


# What can go wrong.


def one_pump(build, fields=("t",)):
    with ag.Graph() as g:
        build(ag.pump("x", (D,), fields=fields))
    return g


def x(**fields):
    n = max(np.size(value) for value in fields.values())
    return {
        "x": ag.messages(
            np.zeros((n, D), np.float32),
            **fields,
        )
    }


def test_wrong_inverse_that_slips_past_the_samples():
    # the samples stay below 100
    def wrong(s):
        return s.replace(
            t=np.where(
                s.t > 100,
                s.t,
                s.t - 1,
            )
        )

    g = one_pump(
        lambda w: ag.sink(
            "y",
            ag.isu(
                w,
                lambda s: s.replace(t=s.t + 1),
                wrong,
                name="step",
            ),
        )
    )
    reference(g, {}, [x(t=7)])
    text = r"node `y`, port 0: expected the way back of .*'t': 201.* to end at `x` with .*'t': 200.*, got `x` with .*'t': 201.*f_inv does not undo"
    with pytest.raises(InvariantError, match=text):
        reference(g, {}, [x(t=200)])


def test_wrong_inverse_before_a_phi():
    def build(w):
        a, b = ag.cond(w, lambda s: s.t > 100)
        both = ag.phi("both", a, b)

        def wrong(s):
            return s.replace(
                t=np.where(
                    s.t == 201,
                    5,
                    s.t - 1,
                )
            )

        ag.sink(
            "y",
            ag.isu(
                both,
                lambda s: s.replace(t=s.t + 1),
                wrong,
            ),
        )

    with pytest.raises(
        InvariantError, match=r"node `both`: expected a message seen before, got .*'t': 5"
    ):
        reference(one_pump(build), {}, [x(t=200)])


def test_a_state_that_comes_to_a_phi_twice():
    g = one_pump(
        lambda w: ag.sink(
            "y",
            ag.phi("both", *bcast(w)),
        )
    )
    with pytest.raises(MessageError, match="node `both`: expected states that are unique at a phi"):
        reference(g, {}, [x(t=0)])


def test_a_key_that_comes_to_a_port_twice():
    add = ag.npt(
        "add",
        lambda a, b: a + b,
        join=("instance",),
    )
    g = one_pump(
        lambda w: ag.sink(
            "y",
            add(w, ag.pump("z", (D,))),
        )
    )
    with pytest.raises(
        MessageError, match="node `add`, port a: expected one message per key, got a second one"
    ):
        reference(g, {}, [x(t=[0, 1])])


def test_a_join_that_is_never_complete():
    g = one_pump(
        lambda w: ag.sink(
            "y",
            ag.npt("add", lambda a, b: a + b)(
                w,
                ag.pump("z", (D,), fields=("t",)),
            ),
        )
    )
    with pytest.raises(
        DeadlockError, match=r"every join and group to be complete, got `add` with \[0\] for key"
    ):
        reference(g, {}, [x(t=0)])


def test_a_group_that_is_never_complete():
    g = one_pump(
        lambda w: ag.sink(
            "y",
            ag.group(w, size=lambda s: 3, name="three"),
        )
    )
    with pytest.raises(DeadlockError, match="`three` with 2 members, 0 openers"):
        reference(g, {}, [x(t=[0, 1])])


def test_an_instance_that_never_ends(monkeypatch):
    monkeypatch.setattr("ampjax.testing.interpreter.MOST_STEPS", 100)
    with ag.Graph() as g:
        t = ag.phi("t")
        up = ag.isu(
            t,
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        done, more = ag.cond(
            up,
            lambda s: s.t < 0,
            name="leave",
        )
        t.connect(
            ag.pump("x", (D,), fields=("t",)),
            more,
        )
        ag.sink("end", done)
    text = r"reference, node `\w+`: expected an instance that ends, got one that goes on after 100 messages, at state .*\. Mend the condition"
    with pytest.raises(MessageError, match=text):
        reference(g, {}, [x(t=0)])


def test_a_missing_topology_and_one_that_does_not_fit():
    with ag.Graph() as g:
        wire = ag.pump("x", (D,), ragged=True)
        topology = ag.topology("map")
        ag.sink(
            "y",
            ag.distribute(wire, topology, 1, name="pick")[0],
        )
    rows = {"x": np.zeros((2, D), np.float32)}
    with pytest.raises(
        DeadlockError, match="node `pick`: expected a topology from `map`, got none"
    ):
        reference(g, {}, [rows])
    with pytest.raises(MessageError, match="node `pick`: expected row numbers below 2, got 2"):
        reference(
            g,
            {},
            [
                rows
                | {
                    "map": ag.Topology(
                        ([2],),
                        ([0],),
                        1,
                    )
                }
            ],
        )


def test_unknown_pump_and_missing_parameters():
    g = one_pump(
        lambda w: ag.sink(
            "y",
            ag.ppt(
                "layer",
                amp.nn.Linear(D, D),
            )(w),
        )
    )
    with pytest.raises(
        MessageError, match=r"expected messages for the pumps \['x'\], got pump `z`"
    ):
        reference(g, init_params(g), [{"z": 1.0}])
    with pytest.raises(
        MessageError, match=r"pump `x`: expected the state fields \['t'\], got \[\]"
    ):
        reference(
            g,
            init_params(g),
            [{"x": np.zeros(D, np.float32)}],
        )
    with pytest.raises(
        ParameterError, match=r"expected parameters of \['layer'\], got those of \[\]"
    ):
        reference(g, {}, [x(t=0)])


# The measure.


def test_compare_takes_the_largest_gradient_of_each_leaf_as_its_measure():
    want = {
        "a": {
            "w": np.array([1.0, -10.0]),
            "b": np.zeros(2),
        }
    }
    got = {
        "a": {
            "w": np.array([1.1, -10.0]),
            "b": np.array([0.0, 1e-3]),
        }
    }
    assert compare(got, want) == [
        ("a", "['b']", pytest.approx(1e-3)),
        ("a", "['w']", pytest.approx(0.01)),
    ]
    assert compare({"a": np.array([np.nan])}, {"a": np.array([1.0])}) == [("a", "", np.inf)]
    assert compare({"a": np.zeros((0, 2))}, {"a": np.zeros((0, 2))}) == [("a", "", 0.0)]


@pytest.mark.parametrize(
    ("got", "text"),
    [
        ({"b": 1.0}, r"compare: expected the nodes \['a'\], got \['b'\]"),
        ({"a": (1.0,)}, "node `a`: expected the structure"),
        ({"a": np.zeros(3)}, r"node `a`: expected shape \(\), got \(3,\)"),
    ],
)
def test_compare_refuses_what_is_not_alike(got, text):
    with pytest.raises(ParameterError, match=text):
        compare(got, {"a": 1.0})


def test_the_table_puts_the_worst_first_and_says_what_it_left_out():
    text = difference_table(
        [
            ("a", "", 1e-9),
            ("b", "['w']", 0.5),
            ("c", "", 1e-8),
        ],
        limit=2,
    )
    assert [line.split()[0] for line in text.splitlines()] == ["node", "b", "c", "..."]
    assert "> 1e-05" in text.splitlines()[1]
