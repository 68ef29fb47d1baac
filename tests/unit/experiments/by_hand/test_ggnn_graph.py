"""The gated graph networks by hand against dense ones written directly in JAX."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.effort import left_to_nightly

import ampjax as amp
from ampjax.errors import SettingsError
from experiments.by_hand.ggnn_graph import Network, ggnn_regression, ggnn_selection
from experiments.data.graphs import ENCODINGS, GraphInstances, Graphs

pytestmark = pytest.mark.slow

NEVER = 1 << 40
F = 3
H = 5
T = 3
KINDS = 4
ONE_OF_THEM = (
    ENCODINGS[0],
    *left_to_nightly(ENCODINGS[1:]),
)
"""Both encodings have equal gradients, as a test of its own shows."""


def odd_graphs() -> Graphs:
    """One node alone; an isolated node in a larger graph; edges side by side and one to itself; no edge at all; a larger one."""
    rng = np.random.default_rng(0)
    sizes = np.array([1, 4, 3, 3, 8])
    edges = [
        (1, 0, 1, 0),
        (1, 1, 0, 0),
        (1, 1, 3, 2),
        (2, 0, 1, 1),
        (2, 0, 1, 1),
        (2, 0, 1, 3),
        (2, 2, 2, 3),
    ]
    edges += [(4, *rng.integers(0, 8, 2), rng.integers(0, 3)) for _ in range(20)]
    return Graphs.from_edges(
        np.concatenate([[0], np.cumsum(sizes)]),
        edges,
        KINDS,
    )


def instances(
    graphs: Graphs, encoding: str, ids: Any = None
) -> tuple[GraphInstances, GraphInstances]:
    """Data sets for regression and for node selection."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(graphs.node_ptr[-1], F)).astype(np.float32)
    target = rng.normal(size=len(graphs)).astype(np.float32)
    answer = np.zeros((len(x), 1), np.float32)
    answer[graphs.node_ptr[:-1] + rng.integers(0, 99, len(graphs)) % np.diff(graphs.node_ptr)] = 1
    if ids is None:
        ids = np.arange(len(graphs))
    else:
        ids = np.array(ids, np.int64)
    return (
        GraphInstances(
            graphs,
            ids,
            {"x": x},
            {"target": target},
            encoding,
        ),
        GraphInstances(
            graphs,
            ids,
            {"x": x, "answer": answer},
            {},
            encoding,
        ),
    )


def network(graphs: Graphs, encoding: str, **options: Any) -> Network:
    return Network(
        F,
        H,
        T,
        KINDS,
        graphs if encoding == "flatmap" else None,
        **options,
    )


def sigmoid(x):
    return 1 / (1 + jnp.exp(-x))


def dense_states(params, x, adjacency):
    """`adjacency [KINDS, n, n]` counts the edges of each kind from column to row."""
    h = jnp.concatenate(
        [x, jnp.zeros((len(x), H - F))],
        axis=1,
    )
    for _ in range(T):
        a = sum(
            adjacency[k] @ (h @ params[f"edge{k}"]["w"] + params[f"edge{k}"]["b"])
            for k in range(KINDS)
        )
        gates = params["update"]["gates"]
        candidate = params["update"]["candidate"]
        zr = sigmoid(a @ gates["w"][:H] + h @ gates["w"][H:] + gates["b"])
        z = zr[:, :H]
        r = zr[:, H:]
        new = jnp.tanh(a @ candidate["w"][:H] + (r * h) @ candidate["w"][H:] + candidate["b"])
        h = h - z * h + z * new
    return h


def dense_loss(params, data: GraphInstances, kind: str):
    """The summed loss of all graphs, with a dense adjacency matrix for each."""
    total = 0.0
    graphs = data.graphs
    for g in range(len(graphs)):
        first, end = graphs.node_ptr[g : g + 2]
        adjacency = np.zeros(
            (KINDS, end - first, end - first),
            np.float32,
        )
        for v in range(first, end):
            for e in range(
                graphs.out_ptr[v],
                graphs.out_ptr[v + 1],
            ):
                adjacency[graphs.kinds[e], graphs.receivers[e], v - first] += 1
        x = data.nodes["x"][first:end]
        hx = jnp.concatenate(
            [dense_states(params, x, adjacency), x],
            axis=1,
        )
        if kind == "regression":
            p = params["readout"]
            hidden = jnp.maximum(
                hx @ p["hidden"]["w"] + p["hidden"]["b"],
                0,
            )
            gate = sigmoid(hidden[:, :H] @ p["gate"]["w"] + p["gate"]["b"])
            prediction = jnp.sum(gate * (hidden[:, H:] @ p["value"]["w"] + p["value"]["b"]))
            total += (prediction - data.targets["target"][g]) ** 2 / 2
        else:
            p = params["score"]
            hidden = jnp.tanh(hx @ p["hidden"]["w"] + p["hidden"]["b"])
            scores = (hidden @ p["out"]["w"] + p["out"]["b"]) * sigmoid(
                hx @ p["gate"]["w"] + p["gate"]["b"]
            )
            total -= jax.nn.log_softmax(scores[:, 0])[int(data.nodes["answer"][first:end].argmax())]
    return total


@functools.cache
def gradients(kind: str, encoding: str, **options: Any):
    graphs = odd_graphs()
    data = instances(graphs, encoding)[kind == "selection"]
    build = ggnn_regression if kind == "regression" else ggnn_selection
    settings = {
        "min_update_interval": NEVER,
        "max_active_keys": 3,
        "max_dispatch_size": 7,
        "check": True,
        **options,
    }
    trainer = amp.Trainer(build(network(graphs, encoding)), **settings)
    rng = np.random.default_rng(2)
    params = jax.tree.map(
        lambda x: 0.5 * rng.normal(size=x.shape).astype(np.float32),
        trainer.params,
    )
    trainer.set_params(params)
    loss = trainer.accumulate(data)["loss_sum"]
    return params, data, loss, trainer.gradients


@pytest.mark.nightly
@pytest.mark.parametrize("encoding", ONE_OF_THEM)
@pytest.mark.parametrize(
    "kind", ["regression", pytest.param("selection", marks=pytest.mark.nightly)]
)
def test_gradients_are_those_of_a_dense_implementation(kind: str, encoding: str) -> None:
    params, data, got, grads = gradients(kind, encoding)
    loss, want = jax.jit(jax.value_and_grad(lambda p: dense_loss(p, data, kind)))(params)
    assert got == pytest.approx(float(loss), rel=1e-5)
    assert set(grads) == set(want)
    for node, (grad, _) in grads.items():
        for a, b in zip(
            jax.tree.leaves(grad),
            jax.tree.leaves(want[node]),
            strict=True,
        ):
            assert np.abs(b).max() > 0 and np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), node


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["regression", "selection"])
def test_both_encodings_have_equal_gradients(kind: str) -> None:
    (_, _, loss, one), (_, _, same, other) = (gradients(kind, encoding) for encoding in ENCODINGS)
    assert loss == pytest.approx(same, rel=1e-5)
    for node, (grad, rows) in one.items():
        assert rows == other[node][1], node
        for a, b in zip(
            jax.tree.leaves(grad),
            jax.tree.leaves(other[node][0]),
            strict=True,
        ):
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), node


@pytest.mark.nightly
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_separate_gates_are_the_same_unit(encoding: str) -> None:
    """Seven heavy nodes before the read-out, on eight workers (arXiv version, figure 7)."""
    graphs = odd_graphs()
    data, _ = instances(graphs, encoding)
    graph = ggnn_regression(network(graphs, encoding, separate_gates=True))
    trainer = amp.Trainer(
        graph, min_update_interval=NEVER, max_active_keys=3, max_dispatch_size=7, workers=8
    )
    loss = trainer.accumulate(data)["loss_sum"]

    def dense(params):
        gates = jax.tree.map(
            lambda *gate: jnp.concatenate(gate, -1),
            params["update_gate"],
            params["reset_gate"],
        )
        return dense_loss(
            {**params, "update": {"gates": gates, "candidate": params["candidate"]}},
            data,
            "regression",
        )

    want_loss, want = jax.jit(jax.value_and_grad(dense))(trainer.params)
    assert loss == pytest.approx(float(want_loss), rel=1e-5)
    assert list(trainer.gradients)[4:] == ["update_gate", "reset_gate", "candidate", "readout"]
    for node, (grad, _) in trainer.gradients.items():
        for a, b in zip(
            jax.tree.leaves(grad),
            jax.tree.leaves(want[node]),
            strict=True,
        ):
            assert np.abs(b).max() > 0 and np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), node


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options", [{"max_dispatch_size": 1}, {"max_active_keys": 5, "workers": 2}]
)
def test_no_schedule_changes_the_gradients(options: dict[str, int]) -> None:
    for encoding in ENCODINGS:
        got = gradients("regression", encoding, **options)[3]
        want = gradients("regression", encoding)[3]
        for node, (grad, _) in got.items():
            for a, b in zip(
                jax.tree.leaves(grad),
                jax.tree.leaves(want[node][0]),
                strict=True,
            ):
                assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), node


@pytest.mark.nightly
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_sparse_graphs_train(encoding: str) -> None:
    graphs = odd_graphs()
    trainer = amp.Trainer(
        ggnn_regression(network(graphs, encoding)), optax.adam(0.01), max_dispatch_size=4
    )
    for ids in [0], [0, 3, 0], [1]:  # one node, no edges, an isolated node
        data, _ = instances(graphs, encoding, ids)
        data.targets["target"][:] = 9.0  # far away: a few small steps can't overshoot
        history = trainer.fit(data, data, epochs=3, progress=False)
        assert history[-1].valid["error"] < history[0].valid["error"]


@pytest.mark.nightly
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_replicas_learn_and_an_empty_data_set_is_refused(encoding: str) -> None:
    graphs = odd_graphs()
    _, data = instances(graphs, encoding)
    options = {"workers": 2, "max_active_keys": 2, "max_dispatch_size": 8}
    trainer = amp.Trainer(
        ggnn_selection(network(graphs, encoding, replicas=2)),
        optax.adam(0.02),
        **options,
    )
    assert {"edge0/0", "edge0/1", "update/0", "update/1", "score"} <= set(trainer.params)
    history = trainer.fit(data, data, epochs=30, progress=False)
    assert history[-1].valid["loss"] < 0.5 * history[0].train["loss"]
    with pytest.raises(SettingsError, match="at least one instance"):
        trainer.evaluate(instances(graphs, encoding, [])[1])


@pytest.mark.nightly
@pytest.mark.parametrize("encoding", ONE_OF_THEM)
def test_metrics_are_counted_by_hand(encoding: str) -> None:
    graphs = odd_graphs()
    regression, selection = instances(graphs, encoding)
    trainer = amp.Trainer(ggnn_regression(network(graphs, encoding), scale=10.0))
    predicted = trainer.predict(regression)["prediction"].payload[:, 0]
    wanted = 10 * np.abs(predicted - regression.targets["target"]).mean()
    assert trainer.evaluate(regression)["error"] == pytest.approx(wanted, rel=1e-5)
    trainer = amp.Trainer(ggnn_selection(network(graphs, encoding)))
    scores = np.concatenate(list(trainer.predict(selection)["scores"].payload)).reshape(-1)
    hits = []
    for first, end in zip(
        graphs.node_ptr[:-1],
        graphs.node_ptr[1:],
        strict=True,
    ):
        ranked = np.sort(scores[first:end])
        unique = len(ranked) == 1 or ranked[-1] > ranked[-2]
        hits.append(
            unique and scores[first:end].argmax() == selection.nodes["answer"][first:end].argmax()
        )
    assert trainer.evaluate(selection)["accuracy"] == pytest.approx(np.mean(hits))


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: Network(0), "`n_features`: expected at least 1"),
        (lambda: Network(3, steps=0), "`steps`"),
        (lambda: Network(3, replicas=0), "`replicas`"),
        (lambda: Network(7, hidden=6), "expected at least the 7 features, got 6"),
        (
            lambda: Network(3, n_kinds=2, graphs=odd_graphs()),
            "expected 2 kinds of edges, got Graphs",
        ),
    ],
)
def test_sizes_that_do_not_fit(make: Any, match: str) -> None:
    with pytest.raises(SettingsError, match=match):
        make()
