"""Small graphs that several tests share, built once: a name says what control flow there is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp
import ampjax.graphs as ag


def times(p, x):
    """The simplest body with a parameter."""
    return p * x


def square(x, y):
    """A loss of one number and its label."""
    return (x - y) ** 2


def one():
    return np.float32(1.5)


@functools.cache
def chain(n=2, **options):
    """`x -> f0 -> f1 -> ... -> loss`, joined with `label`."""
    with ag.Graph() as g:
        wire = ag.pump("x")
        label = ag.pump("label")
        for i in range(n):
            wire = ag.ppt(f"f{i}", times, params=one(), **options)(wire)
        ag.loss("loss", square)(wire, label)
    return g


def replicated_chain():
    """A node with three replicas, and one behind it."""
    with ag.Graph() as graph:
        copies = ag.replicate(
            ag.ppt("copied", times, params=one()),
            3,
        )(ag.pump("x"))
        ag.loss("loss", square)(
            ag.ppt("after", times, params=one())(copies),
            ag.pump("label"),
        )
    return graph


def chain_data(n):
    result = []
    for i in range(n):
        result.append(
            {
                "x": np.float32(i),
                "label": np.float32(0.5),
            }
        )
    return result


@functools.cache
def rnn(features=4):
    """The paper's figure 2, token by token: a loop over `t` up to `length`."""
    with ag.Graph() as g:
        tokens = ag.pump("tokens", dtype="int32", fields=("t", "length"))
        h0 = ag.pump(
            "h0",
            (features,),
            fields=("t", "length"),
        )
        label = ag.pump("label", dtype="int32")
        h = ag.phi("h")
        x = ag.ppt(
            "embed",
            amp.nn.Embed(5, features),
        )(tokens)
        z = ag.npt("tanh", jnp.tanh)(
            ag.ppt(
                "linear1",
                amp.nn.Linear(2 * features, features),
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
        logits = ag.ppt(
            "linear2",
            amp.nn.Linear(features, 3),
        )(done)
        ag.loss("xent", xent, join=("instance",))(logits, label)
    return g


@functools.cache
def tied(words=7, features=4, **options):
    """The embedding is the output layer, too: tokens are read in a loop, and the last state is compared with all words. `options` are the table's."""
    with ag.Graph() as g:
        tokens = ag.pump("tokens", dtype="int32", fields=("t", "n"))
        h0 = ag.pump(
            "h0",
            (features,),
            fields=("t", "n"),
        )
        h = ag.phi("h")
        embed = ag.ppt(
            "embed",
            lambda p, i: p[i],
            params=lambda k: jax.random.normal(k, (words, features)),
            **options,
        )
        z = ag.npt(
            "cell",
            lambda x, h: jnp.tanh(x + 0.5 * h),
        )(
            embed(tokens),
            h,
        )
        more, done = ag.cond(
            ag.relabel(
                z,
                lambda s: s.replace(t=s.t + 1),
            ),
            lambda s: s.t < s.n,
        )
        h.connect(h0, more)
        last = ag.relabel(done, lambda s: s.drop("t", "n"))
        logits = ag.ppt(
            "words",
            lambda p, h: p @ h,
            params_of=embed,
        )(last)
        ag.sink("logits", logits)
        ag.loss("xent", xent)(
            logits,
            ag.pump("label", dtype="int32"),
        )
    return g


def tied_data(lengths, words=7, features=4):
    rng = np.random.default_rng(0)
    result = []
    for n in lengths:
        result.append(
            {
                "tokens": ag.messages(
                    rng.integers(0, words, n),
                    t=np.arange(n),
                    n=n,
                ),
                "h0": ag.messages(
                    np.zeros((1, features), np.float32),
                    t=0,
                    n=n,
                ),
                "label": np.int32(rng.integers(words)),
            }
        )
    return result


@functools.cache
def with_sinks():
    """Two layers and a loss; sinks see what each layer makes, and what comes in."""
    with ag.Graph() as g:
        x = ag.pump("x", (2,))
        label = ag.pump("label")
        hidden = ag.npt("tanh", jnp.tanh)(
            ag.ppt(
                "inner",
                amp.nn.Linear(2, 3),
            )(x)
        )
        y = ag.ppt(
            "outer",
            amp.nn.Linear(3, 1),
        )(hidden)
        ag.loss(
            "loss",
            lambda y, label: (y[0] - label) ** 2,
        )(
            y,
            label,
        )
        for name, wire in (("input", x), ("hidden", hidden), ("y", y)):
            ag.sink(f"see {name}", wire)
    return g


def xent(logits, label):
    """Cross entropy and accuracy."""
    return -jax.nn.log_softmax(logits)[label], {
        "accuracy": (jnp.argmax(logits) == label).astype(jnp.float32)
    }


def labelled_data(n, seed=0):
    """Rows of four features, each with one of three labels."""
    rng = np.random.default_rng(seed)
    result = []
    for _ in range(n):
        result.append(
            {
                "x": rng.normal(size=4).astype(np.float32),
                "label": np.int32(rng.integers(0, 3)),
            }
        )
    return result


def rnn_instance(length, features=4, seed=0):
    rng = np.random.default_rng((seed, length))
    return {
        "tokens": ag.messages(
            rng.integers(0, 5, length),
            t=np.arange(length),
            length=length,
        ),
        "h0": ag.messages(
            np.zeros((1, features), np.float32),
            t=0,
            length=length,
        ),
        "label": np.int32(rng.integers(0, 3)),
    }


def rnn_data(lengths, features=4):
    return [rnn_instance(length, features, seed) for seed, length in enumerate(lengths)]


@functools.cache
def diamond():
    """A cond to `even` or `odd` and a phi behind them."""
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        a, b = ag.cond(
            ag.ppt("first", times, params=one())(x),
            lambda s: s.instance % 2 == 0,
        )
        y = ag.phi(
            "join",
            ag.ppt("even", times, params=one())(a),
            ag.npt("odd", jnp.sin)(b),
        )
        ag.loss("loss", square)(y, label)
    return g


@functools.cache
def fan_out(n=3):
    """One node whose output `n` others use; their results are added."""
    with ag.Graph() as g:
        x = ag.pump("x")
        label = ag.pump("label")
        y = ag.ppt("first", times, params=one())(x)
        parts = []
        for i in range(n):
            parts.append(ag.ppt(f"b{i}", times, params=one())(y))
        total = ag.npt("add", lambda *xs: sum(xs))(*parts)
        ag.loss("loss", square)(total, label)
    return g


@functools.cache
def flat():
    """`count` copies of a message, each with its own number, and a loss on each."""
    with ag.Graph() as g:
        x = ag.pump("x", fields=("count",))
        label = ag.pump("label", fields=("count", "i"))
        y = ag.ppt("first", times, params=one())(x)
        copies = ag.flatmap(
            y,
            lambda s: s.count,
            lambda s, i: s.replace(i=i),
        )
        ag.loss("loss", square)(
            ag.ppt("each", times, params=one())(copies),
            label,
        )
    return g


def flat_instance(count):
    labels = np.zeros(count, np.float32)
    return {
        "x": ag.messages(
            np.ones(1, np.float32),
            count=count,
        ),
        "label": ag.messages(labels, count=count, i=np.arange(count)),
    }


@functools.cache
def grouping():
    """The rows of a ragged pump go one by one through `row`, are grouped again (opened by size) and summed."""
    with ag.Graph() as g:
        rows = ag.pump("rows", (2,), ragged=True)
        size = ag.pump("size", fields=("n",))
        label = ag.pump("label")
        singles = ag.ungroup(rows, "i")
        done = ag.ppt("row", times, params=one())(singles)
        back = ag.group(
            done,
            size=lambda s: s.n,
            opener=size,
            name="back",
        )
        total = ag.reduce("total", jax.ops.segment_sum, back)
        out = ag.ppt(
            "out",
            lambda p, v: p * v.sum(),
            params=one(),
        )(total)
        ag.loss("loss", square, join=("instance",))(out, label)
    return g


def grouping_instance(n, seed=0):
    rows = np.random.default_rng((seed, n)).normal(size=(n, 2)).astype(np.float32)
    return {
        "rows": rows,
        "size": ag.messages(
            np.zeros(1, np.float32),
            n=n,
        ),
        "label": np.float32(1.0),
    }


@functools.cache
def molecule(kinds=2, features=2):
    """One round of messages along the edges of a graph, summed at the atoms, then over the atoms."""
    with ag.Graph() as g:
        atoms = ag.pump("atoms", (features,), ragged=True)
        maps = ag.topology("maps")
        label = ag.pump("label")
        h = ag.ppt("encode", times, params=one())(atoms)
        wires = ag.distribute(h, maps, kinds, name="out")
        sent = []
        for k, w in enumerate(wires):
            sent.append(ag.ppt(f"edge{k}", times, params=one())(w))
        m = ag.collect(sent, maps, name="in")
        both = ag.npt(
            "add",
            lambda a, b: a + jnp.tanh(b),
        )(
            h,
            m,
        )
        total = ag.reduce("sum", jax.ops.segment_sum, both)
        ag.loss(
            "loss",
            lambda v, y: (v.sum() - y) ** 2,
        )(
            total,
            label,
        )
    return g


def molecule_instance(n_atoms, edges, kinds=2, features=2, seed=0):
    """`edges` are (sender, receiver, kind)."""
    columns = np.array(edges, np.int64).reshape(-1, 3).T
    return {
        "atoms": np.random.default_rng((seed, n_atoms))
        .normal(size=(n_atoms, features))
        .astype(np.float32),
        "maps": ag.Topology.from_edges(*columns, n_node=n_atoms, n_kinds=kinds),
        "label": np.float32(0.25),
    }


@functools.cache
def repeating():
    """A row for the whole instance is repeated to every row of a ragged message and multiplied with it."""
    with ag.Graph() as g:
        x = ag.pump("x", fields=("n",))
        rows = ag.pump("rows", fields=("n",), ragged=True)
        label = ag.pump("label")
        scale = ag.repeat(
            ag.ppt("scale", times, params=one())(x),
            lambda s: s.n,
            name="copies",
        )
        y = ag.npt("multiply", lambda a, b: a * b)(
            scale,
            rows,
        )
        total = ag.reduce("sum", jax.ops.segment_sum, y)
        ag.loss("loss", square, join=("instance",))(total, label)
    return g


def repeating_instance(n):
    return {
        "x": ag.messages(
            np.ones(1, np.float32),
            n=n,
        ),
        "rows": ag.messages(
            np.arange(n, dtype=np.float32),
            sizes=[n],
            n=n,
        ),
        "label": np.float32(1.0),
    }


@functools.cache
def two_outputs():
    """A split whose parts take different ways; the second part of odd instances ends in a sink only."""
    with ag.Graph() as g:
        x = ag.pump("x", (4,))
        label = ag.pump("label")
        y = ag.ppt("first", times, params=one())(x)
        a, b = ag.split(y, (1, 3), name="parts")
        used, left = ag.cond(
            b,
            lambda s: s.instance % 2 == 0,
        )
        ag.sink("left", left)
        ag.loss(
            "loss_a",
            lambda v, t: (v.sum() - t) ** 2,
        )(
            ag.ppt("a", times, params=one())(a),
            label,
        )
        ag.loss(
            "loss_b",
            lambda v, t: (v.sum() - t) ** 2,
        )(
            used,
            label,
        )
    return g


def two_outputs_data(n):
    # `label` of odd instances would wait for ever at `loss_b`, so only even instances are used where the loss matters.
    result = []
    for i in range(0, 2 * n, 2):
        result.append(
            {
                "x": np.full(4, i, np.float32),
                "label": np.float32(0.5),
            }
        )
    return result
