"""The Tree-LSTM against a recursive implementation written directly in JAX."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.frontend.compile_model import Compiled
from experiments.data import sst
from experiments.models.layers.dropout import dropout
from experiments.models.tree_lstm import SPEC, Cells, init, tree_lstm

pytestmark = [pytest.mark.slow, pytest.mark.users]

NEVER = 1 << 40
E = 6
H = 5


def deep(depth: int) -> str:
    """A tree that is a chain of `depth` branches, leaning left and right in turn."""
    text = "(2 a)"
    for i in range(depth):
        text = f"({i % 5} {text} (1 b))" if i % 2 else f"({i % 5} (3 c) {text})"
    return text


def shapes(folder: Path) -> sst.Trees:
    path = folder / "trees.txt"
    lines = [
        "(4 alone)",
        "(3 (2 a) (4 (1 b) (0 c)))",
        deep(7),
        "(0 (1 (2 a) (3 b)) (4 (2 c) (1 d)))",
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return sst.read_trees(path)


def compiled(
    trees: sst.Trees,
    cells: Cells,
    replicas: int = 1,
) -> Compiled:
    """The model for the vocabulary of some trees."""
    params = init(
        jax.random.key(0),
        len(trees.vocabulary),
        cells,
    )
    return amp.compile(tree_lstm(cells, replicas), params, SPEC)


def direct_loss(params, trees: sst.Trees, kind: str):
    """The summed loss of all nodes of all trees, node by node."""

    def sigmoid(x):
        return 1 / (1 + jnp.exp(-x))

    total = 0.0
    for i in range(len(trees)):
        states: list = []
        for k in range(
            trees.ptr[i],
            trees.ptr[i + 1],
        ):
            if trees.words[k] >= 0:
                x = params["embed"][trees.words[k]]
                gates = x @ params["leaf"]["w"] + params["leaf"]["b"]
                if kind == "fold":
                    c = sigmoid(gates[:H]) * jnp.tanh(gates[H : 2 * H])
                    o = gates[2 * H :]
                else:
                    c = gates[:H]
                    o = gates[H:]
            else:
                own = k - trees.ptr[i]
                # in the order of the file: left, right
                kids = []
                for j in range(len(states)):
                    if trees.parents[trees.ptr[i] + j] == own:
                        kids.append(j)
                (h1, c1), (h2, c2) = (states[j] for j in kids)
                gates = jnp.concatenate([h1, h2]) @ params["branch"]["w"] + params["branch"]["b"]
                g = []
                for n in range(5):
                    g.append(gates[n * H : (n + 1) * H])
                bias = 1.0 if kind == "fold" else 0.0
                c = (
                    sigmoid(g[0]) * jnp.tanh(g[1])
                    + sigmoid(g[2] + bias) * c1
                    + sigmoid(g[3] + bias) * c2
                )
                o = g[4]
            h = sigmoid(o) * jnp.tanh(c)
            states.append((h, c))
            logits = h @ params["classify"]["w"] + params["classify"]["b"]
            total += jax.nn.logsumexp(logits) - logits[trees.labels[k]]
    return total


@pytest.mark.parametrize(
    ("kind", "replicas"),
    [
        ("fold", 1),
        ("tai", 1),
        ("fold", 2),
    ],
)
def test_gradients_are_those_of_a_direct_implementation(
    tmp_path: Path, kind: str, replicas: int
) -> None:
    """Replicas start equal, and their gradients add up to those of one."""
    trees = shapes(tmp_path)
    model = compiled(
        trees,
        Cells(kind, E, H, keep=1.0),
        replicas,
    )
    trainer = amp.Trainer(
        model.graph, min_update_interval=NEVER, max_active_keys=3, max_dispatch_size=4
    )
    rng = np.random.default_rng(0)
    first = {}
    for node, tree in trainer.params.items():
        if not node.endswith("/1"):
            first[node] = tree
    params = {
        n.removesuffix("/0"): jax.tree.map(
            lambda x: rng.normal(size=x.shape),
            tree,
        )
        for n, tree in first.items()
    }
    params = jax.tree.map(np.float32, params)
    trainer.set_params({node: params[node.split("/")[0]] for node in trainer.params})
    got = trainer.accumulate(model.data(sst.plain(trees)))
    loss, grads = jax.value_and_grad(direct_loss)(params, trees, kind)
    assert got["loss_sum"] == pytest.approx(float(loss), rel=1e-5)
    found: dict = {}
    for node, (grad, rows) in trainer.gradients.items():
        assert rows > 0
        before = found.get(node.split("/")[0])
        found[node.split("/")[0]] = (
            (grad, rows)
            if before is None
            else jax.tree.map(
                np.add,
                before,
                (grad, rows),
            )
        )
    for node, (grad, rows) in found.items():
        want = grads[node]
        for a, b in zip(
            jax.tree.leaves(grad),
            jax.tree.leaves(want),
            strict=True,
        ):
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), node
        assert rows == {"embed": 16, "leaf": 16, "branch": 12, "classify": 28}[node]


@pytest.mark.nightly
def test_a_tree_of_depth_100_trains(tmp_path: Path) -> None:
    path = tmp_path / "trees.txt"
    path.write_text(deep(100) + "\n(2 a)\n", encoding="utf-8")
    trees = sst.read_trees(path)
    model = compiled(trees, Cells("tai", E, H, 0.5))
    data = model.data(sst.plain(trees))
    history = amp.Trainer(model.graph, optax.adagrad(0.05)).fit(
        data, data, epochs=2, progress=False
    )
    assert history[1].train["loss"] < history[0].train["loss"]
    assert set(history[1].valid) == {"loss", "accuracy", "root_accuracy"}


def test_an_empty_data_set_is_refused(tmp_path: Path) -> None:
    trees = shapes(tmp_path)
    none = sst.Trees(
        trees.ptr[:1],
        *(getattr(trees, n)[:0] for n in ("words", "labels", "parents", "sides")),
        (),
    )
    model = compiled(trees, Cells("tai", E, H))
    with pytest.raises(SettingsError, match="at least one instance"):
        amp.Trainer(model.graph).evaluate(model.data(sst.plain(none)))


def test_root_accuracy_counts_roots(tmp_path: Path) -> None:
    trees = shapes(tmp_path)
    model = compiled(trees, Cells("fold", E, H))
    trainer = amp.Trainer(model.graph)
    data = model.data(sst.plain(trees))
    logits = trainer.predict(data)["logits"]
    metrics = trainer.evaluate(data)
    hits = {}
    for instance, at, payload in zip(
        logits.instance, logits.fields["v_i"], logits.payload, strict=True
    ):
        hits[instance, at] = payload.argmax() == trees.labels[trees.ptr[instance] + at]
    roots = []
    for i, n in enumerate(np.diff(trees.ptr)):
        roots.append(hits[i, n - 1])
    assert metrics["accuracy"] == pytest.approx(np.mean(list(hits.values())))
    assert metrics["root_accuracy"] == pytest.approx(np.mean(roots))


def test_dropout_keeps_the_mean_and_is_off_without_a_key() -> None:
    x = jnp.ones(20_000)
    dropped = dropout(jax.random.key(0), x, 0.75)
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    assert float(dropped.mean()) == pytest.approx(1, abs=0.02)
    assert dropout(None, x, 0.75) is x


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Cells("lstm"), "`fold` or `tai`"),
        (lambda: Cells(hidden=0), "sizes of at least 1"),
        (lambda: Cells(keep=0.0), "0 < keep <= 1"),
        (
            lambda: init(
                jax.random.key(0),
                0,
                Cells(),
            ),
            "n_words",
        ),
    ],
)
def test_sizes_that_do_not_fit(make, match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        make()
