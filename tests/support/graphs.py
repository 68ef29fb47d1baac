"""Small graphs that several tests share, built once: a name says what control flow there is."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

import ampjax as amp


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
    with amp.Graph() as g:
        wire = amp.pump("x")
        label = amp.pump("label")
        for i in range(n):
            wire = amp.ppt(f"f{i}", times, params=one(), **options)(wire)
        amp.loss("loss", square)(wire, label)
    return g


def replicated_chain():
    """A node with three replicas, and one behind it."""
    with amp.Graph() as graph:
        copies = amp.replicate(amp.ppt("copied", times, params=one()), 3)(amp.pump("x"))
        amp.loss("loss", square)(
            amp.ppt("after", times, params=one())(copies),
            amp.pump("label"),
        )
    return graph


def chain_data(n):
    result = []
    for i in range(n):
        result.append({"x": np.float32(i), "label": np.float32(0.5)})
    return result


@functools.cache
def rnn(features=4):
    """The paper's figure 2, token by token: a loop over `t` up to `length`."""
    with amp.Graph() as g:
        tokens = amp.pump("tokens", dtype="int32", fields=("t", "length"))
        h0 = amp.pump(
            "h0",
            (features,),
            fields=("t", "length"),
        )
        label = amp.pump("label", dtype="int32")
        h = amp.phi("h")
        x = amp.ppt("embed", amp.nn.Embed(5, features))(tokens)
        z = amp.npt("tanh", jnp.tanh)(
            amp.ppt("linear1", amp.nn.Linear(2 * features, features))(amp.concat(x, h))
        )
        z = amp.isu(
            z,
            lambda s: s.replace(t=s.t + 1),
            lambda s: s.replace(t=s.t - 1),
        )
        more, done = amp.cond(
            z,
            lambda s: s.t < s.length,
        )
        h.connect(h0, more)
        logits = amp.ppt("linear2", amp.nn.Linear(features, 3))(done)
        amp.loss("xent", xent, join=("instance",))(logits, label)
    return g


@functools.cache
def tied(words=7, features=4, **options):
    """The embedding is the output layer, too: tokens are read in a loop, and the last state is compared with all words. `options` are the table's."""
    with amp.Graph() as g:
        tokens = amp.pump("tokens", dtype="int32", fields=("t", "n"))
        h0 = amp.pump(
            "h0",
            (features,),
            fields=("t", "n"),
        )
        h = amp.phi("h")
        embed = amp.ppt(
            "embed",
            lambda p, i: p[i],
            params=lambda k: jax.random.normal(k, (words, features)),
            **options,
        )
        z = amp.npt("cell", lambda x, h: jnp.tanh(x + 0.5 * h))(
            embed(tokens),
            h,
        )
        more, done = amp.cond(
            amp.relabel(
                z,
                lambda s: s.replace(t=s.t + 1),
            ),
            lambda s: s.t < s.n,
        )
        h.connect(h0, more)
        last = amp.relabel(done, lambda s: s.drop("t", "n"))
        logits = amp.ppt("words", lambda p, h: p @ h, params_of=embed)(last)
        amp.sink("logits", logits)
        amp.loss("xent", xent)(
            logits,
            amp.pump("label", dtype="int32"),
        )
    return g


def tied_data(lengths, words=7, features=4):
    rng = np.random.default_rng(0)
    result = []
    for n in lengths:
        result.append(
            {
                "tokens": amp.messages(
                    rng.integers(0, words, n),
                    t=np.arange(n),
                    n=n,
                ),
                "h0": amp.messages(
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
    with amp.Graph() as g:
        x = amp.pump("x", (2,))
        label = amp.pump("label")
        hidden = amp.npt("tanh", jnp.tanh)(amp.ppt("inner", amp.nn.Linear(2, 3))(x))
        y = amp.ppt("outer", amp.nn.Linear(3, 1))(hidden)
        amp.loss("loss", lambda y, label: (y[0] - label) ** 2)(
            y,
            label,
        )
        for name, wire in (("input", x), ("hidden", hidden), ("y", y)):
            amp.sink(f"see {name}", wire)
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
        "tokens": amp.messages(
            rng.integers(0, 5, length),
            t=np.arange(length),
            length=length,
        ),
        "h0": amp.messages(
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
    with amp.Graph() as g:
        x = amp.pump("x")
        label = amp.pump("label")
        a, b = amp.cond(
            amp.ppt("first", times, params=one())(x),
            lambda s: s.instance % 2 == 0,
        )
        y = amp.phi(
            "join",
            amp.ppt("even", times, params=one())(a),
            amp.npt("odd", jnp.sin)(b),
        )
        amp.loss("loss", square)(y, label)
    return g


@functools.cache
def fan_out(n=3):
    """One node whose output `n` others use; their results are added."""
    with amp.Graph() as g:
        x = amp.pump("x")
        label = amp.pump("label")
        y = amp.ppt("first", times, params=one())(x)
        parts = []
        for i in range(n):
            parts.append(amp.ppt(f"b{i}", times, params=one())(y))
        total = amp.npt("add", lambda *xs: sum(xs))(*parts)
        amp.loss("loss", square)(total, label)
    return g


@functools.cache
def flat():
    """`count` copies of a message, each with its own number, and a loss on each."""
    with amp.Graph() as g:
        x = amp.pump("x", fields=("count",))
        label = amp.pump("label", fields=("count", "i"))
        y = amp.ppt("first", times, params=one())(x)
        copies = amp.flatmap(
            y,
            lambda s: s.count,
            lambda s, i: s.replace(i=i),
        )
        amp.loss("loss", square)(
            amp.ppt("each", times, params=one())(copies),
            label,
        )
    return g


def flat_instance(count):
    labels = np.zeros(count, np.float32)
    return {
        "x": amp.messages(np.ones(1, np.float32), count=count),
        "label": amp.messages(labels, count=count, i=np.arange(count)),
    }


@functools.cache
def grouping():
    """The rows of a ragged pump go one by one through `row`, are grouped again (opened by size) and summed."""
    with amp.Graph() as g:
        rows = amp.pump("rows", (2,), ragged=True)
        size = amp.pump("size", fields=("n",))
        label = amp.pump("label")
        singles = amp.ungroup(rows, "i")
        done = amp.ppt("row", times, params=one())(singles)
        back = amp.group(
            done,
            size=lambda s: s.n,
            opener=size,
            name="back",
        )
        total = amp.reduce("total", jax.ops.segment_sum, back)
        out = amp.ppt("out", lambda p, v: p * v.sum(), params=one())(total)
        amp.loss("loss", square, join=("instance",))(out, label)
    return g


def grouping_instance(n, seed=0):
    rows = np.random.default_rng((seed, n)).normal(size=(n, 2)).astype(np.float32)
    return {
        "rows": rows,
        "size": amp.messages(np.zeros(1, np.float32), n=n),
        "label": np.float32(1.0),
    }


@functools.cache
def molecule(kinds=2, features=2):
    """One round of messages along the edges of a graph, summed at the atoms, then over the atoms."""
    with amp.Graph() as g:
        atoms = amp.pump("atoms", (features,), ragged=True)
        maps = amp.topology("maps")
        label = amp.pump("label")
        h = amp.ppt("encode", times, params=one())(atoms)
        wires = amp.distribute(h, maps, kinds, name="out")
        sent = []
        for k, w in enumerate(wires):
            sent.append(amp.ppt(f"edge{k}", times, params=one())(w))
        m = amp.collect(sent, maps, name="in")
        both = amp.npt("add", lambda a, b: a + jnp.tanh(b))(
            h,
            m,
        )
        total = amp.reduce("sum", jax.ops.segment_sum, both)
        amp.loss("loss", lambda v, y: (v.sum() - y) ** 2)(
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
        "maps": amp.Topology.from_edges(*columns, n_node=n_atoms, n_kinds=kinds),
        "label": np.float32(0.25),
    }


@functools.cache
def repeating():
    """A row for the whole instance is repeated to every row of a ragged message and multiplied with it."""
    with amp.Graph() as g:
        x = amp.pump("x", fields=("n",))
        rows = amp.pump("rows", fields=("n",), ragged=True)
        label = amp.pump("label")
        scale = amp.repeat(
            amp.ppt("scale", times, params=one())(x),
            lambda s: s.n,
            name="copies",
        )
        y = amp.npt("multiply", lambda a, b: a * b)(
            scale,
            rows,
        )
        total = amp.reduce("sum", jax.ops.segment_sum, y)
        amp.loss("loss", square, join=("instance",))(total, label)
    return g


def repeating_instance(n):
    return {
        "x": amp.messages(np.ones(1, np.float32), n=n),
        "rows": amp.messages(
            np.arange(n, dtype=np.float32),
            sizes=[n],
            n=n,
        ),
        "label": np.float32(1.0),
    }


@functools.cache
def two_outputs():
    """A split whose parts take different ways; the second part of odd instances ends in a sink only."""
    with amp.Graph() as g:
        x = amp.pump("x", (4,))
        label = amp.pump("label")
        y = amp.ppt("first", times, params=one())(x)
        a, b = amp.split(y, (1, 3), name="parts")
        used, left = amp.cond(
            b,
            lambda s: s.instance % 2 == 0,
        )
        amp.sink("left", left)
        amp.loss("loss_a", lambda v, t: (v.sum() - t) ** 2)(
            amp.ppt("a", times, params=one())(a), label
        )
        amp.loss("loss_b", lambda v, t: (v.sum() - t) ** 2)(
            used,
            label,
        )
    return g


def two_outputs_data(n):
    # `label` of odd instances would wait for ever at `loss_b`, so only even instances are used where the loss matters.
    result = []
    for i in range(0, 2 * n, 2):
        result.append({"x": np.full(4, i, np.float32), "label": np.float32(0.5)})
    return result
