"""The bench: peers compute what ours computes, processes answer in turn, tables and JSON hold what they should."""

import functools
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import ampjax as amp
from ampjax.data import babi15, qm9, sst, wikiner
from ampjax.errors import SettingsError
from ampjax.models.ggnn import Network, ggnn_regression, ggnn_selection
from ampjax.models.tagger import Sizes, tagger
from ampjax.models.tree_lstm import Cells, tree_lstm
from experiments.bench import common, engine, networks, tracing
from experiments.bench.common import Entry
from experiments.bench.networks import Babi15Bench, NetworkBench, Qm9Bench, SentimentBench, WikinerBench
from experiments.bench.ours import Ours
from experiments.bench.peers import ggnn_jax, wikiner_jax
from experiments.bench.peers.list_reduction_jax import forward, padded, per_length
from experiments.bench.peers.sentiment_jax import Model, batch_arrays
from experiments.common import Sample


class Fake:
    """A program that takes no time."""

    def train(self) -> int:
        return 10

    def infer(self) -> int:
        return 20

    def evaluate(self) -> float:
        return 0.5

    def updates(self) -> float:
        return 3


def test_programs_are_measured_in_their_own_processes(tmp_path: Path) -> None:
    entries = [Entry(name, "none", f"{__name__}:Fake") for name in ("ours", "theirs")]
    if __name__.partition(".")[0] != "tests":
        pytest.skip("this file can't be imported by name here")
    results = common.compare("fake", entries, passes=2, target=0.4, json_file=tmp_path / "bench.jsonl")
    assert [r.name for r in results] == ["ours", "theirs"] and results[0].seconds_to_target is not None
    for line in (tmp_path / "bench.jsonl").read_text().splitlines():
        assert set(json.loads(line)) >= set(
            ["bench", "program", "setting", "train_per_s", "infer_per_s", "seconds_to_target", "ratio_to_ours"]
        )


def test_a_program_that_can_t_start_is_told() -> None:
    with pytest.raises(RuntimeError, match="program `broken`: its process ended with status 1"):
        common.compare("x", [Entry("broken", "", "experiments.bench.common:no_such_function")])


def test_passes_below_one_are_refused() -> None:
    with pytest.raises(SettingsError, match="bench, passes and epochs"):
        common.compare("x", [], passes=0)
    with pytest.raises(SettingsError, match="bench engine, options"):
        engine.main(engine.EngineOptions(sizes=(0,)))
    with pytest.raises(SettingsError, match="bench tracing, options"):
        tracing.main(tracing.TracingOptions(every=0))


def test_the_peers_start_like_ours_and_learn() -> None:
    arguments = {"n_train": 400, "n_valid": 200, "epochs": 1}
    ours, mask, lengths = (
        Ours("list-reduction", max_active_keys=4, **arguments),
        padded(**arguments),
        per_length(**arguments),
    )
    assert ours.evaluate() == mask.evaluate() == lengths.evaluate()
    for program in (ours, mask, lengths):
        assert program.train() == 400 and program.infer() == 200 and program.updates() >= 1


def test_padding_changes_no_logits() -> None:
    peer = padded(n_train=100, n_valid=100, epochs=1)
    tokens = np.zeros((10, 1), np.int32)
    tokens[:3, 0] = 11, 4, 7
    full = forward(peer._params, jax.numpy.asarray(tokens), jax.numpy.array([3]))
    short = forward(peer._params, jax.numpy.asarray(tokens[:3]), None)
    np.testing.assert_allclose(full, short, rtol=1e-6)


@pytest.mark.parametrize("cell", ["fold", "tai"])
def test_trees_by_levels_have_our_gradients(cell: str) -> None:
    """Chunks that are filled up, and minibatches that are not full, change nothing."""
    peer = Model(cell, embedding=6, hidden=4, batch=5, width=4, synthetic=True)
    trees, _ = sst.synthetic()
    ids = np.arange(13)
    trainer = amp.Trainer(tree_lstm(len(trees.vocabulary), Cells(cell, 6, 4, 1.0)), min_update_interval=1 << 30)
    trainer.accumulate(Sample(sst.TreeInstances(trees), ids))
    params = trainer.params
    table, want = params.pop("embed"), {}
    for start in range(0, len(ids), 5):
        words, *arrays = batch_arrays(trees, ids[start : start + 5], 4)
        gradient = jax.grad(
            lambda table, params, w=words, a=arrays: peer.summed_loss(table[w], params, None, a)[0], (0, 1)
        )
        rows, grads = gradient(jax.numpy.asarray(table), params)
        want = jax.tree.map(np.add, want, {"embed": rows, **grads}) if want else {"embed": rows, **grads}
    for node, (got, _) in trainer.gradients.items():
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want[node]), strict=True):
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), node


def test_the_sentiment_programs_start_alike_and_learn() -> None:
    arguments = {"n_train": 60, "cell": "tai", "embedding": 8, "hidden": 6, "synthetic": True, "data_dir": None}
    ours, levels = Ours("sentiment", max_active_keys=4, **arguments), Model(batch=10, **arguments)
    assert ours.evaluate() == pytest.approx(levels.evaluate(), abs=1e-3)
    for program in (ours, levels):
        before = program.evaluate()
        assert program.train() == 60 and program.infer() == 200 and program.updates() >= 1
        assert program.evaluate() > before


def test_the_tracing_bench_compares_passes(tmp_path: Path) -> None:
    options = tracing.TracingOptions(sizes=(4,), messages=200, passes=1, hidden=8, json=tmp_path / "tracing.jsonl")
    (row,) = tracing.main(options)
    assert json.loads((tmp_path / "tracing.jsonl").read_text()) == row
    assert min(row["untraced_us"], row["traced_ratio"], row["waited_ratio"]) > 0
    assert 0 <= row["traced_busy"] <= 1 and 0 < row["waited_busy"] <= 1


def test_the_engine_bench_fills_its_dispatches(tmp_path: Path) -> None:
    options = engine.EngineOptions(sizes=(4,), messages=200, passes=1, hidden=8, json=tmp_path / "engine.jsonl")
    (row,) = engine.main(options)
    assert row["mean_dispatch"] == 4
    assert json.loads((tmp_path / "engine.jsonl").read_text()) == row
    assert min(row["control_us"], row["engine_us"], row["kernels_us"]) > 0


def test_the_padded_tagger_computes_what_ours_does() -> None:
    data, _ = wikiner.synthetic(6, 1)
    graph = tagger(len(data.vocabulary.words) or 1, len(data.vocabulary.characters), Sizes(noise=0))
    never = amp.Settings(min_update_interval=1 << 40, max_dispatch_size=1)
    trainer = amp.Trainer(graph, settings=never)
    got = trainer.accumulate(wikiner.SentenceInstances(data))
    batch = wikiner_jax.padded(data, np.arange(6), 8)
    loss, grads = jax.value_and_grad(wikiner_jax.loss)(trainer.params, batch)
    assert got["loss_sum"] == pytest.approx(float(loss), rel=1e-5)
    for node, (grad, _) in trainer.gradients.items():
        for a, b in zip(jax.tree.leaves(grad), jax.tree.leaves(grads[node]), strict=True):
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), node


@pytest.mark.parametrize("kind", ["regression", "selection"])
def test_graphs_side_by_side_have_our_gradients(kind: str) -> None:
    """Padding and a minibatch that is not full change nothing."""
    if kind == "regression":
        data = qm9.split(qm9.synthetic(40), n_valid=20, n_train=7).train
        graph = ggnn_regression(Network(qm9.N_FEATURES, 12, 2, qm9.N_KINDS))
        loss = functools.partial(ggnn_jax.regression, steps=2, square=graph.nodes["square"].op.body)
    else:
        data = babi15.generate(7, 8).instances()
        graph = ggnn_selection(Network(1, 5, 2, babi15.N_KINDS))
        loss = functools.partial(ggnn_jax.selection, steps=2, nodes=8)
    trainer = amp.Trainer(graph, min_update_interval=1 << 40)
    trainer.accumulate(data)
    sizes, want = ggnn_jax.sizes(data, 4), {}
    for ids in (np.arange(4), np.arange(4, 7)):
        batch = ggnn_jax.joined(data, ids, 4, sizes)
        grads = jax.grad(lambda params, b=batch: loss(params, b)[0])(trainer.params)
        want = jax.tree.map(np.add, want, grads) if want else grads
    for node, (got, _) in trainer.gradients.items():
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want[node]), strict=True):
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), node


@pytest.mark.parametrize(
    ("experiment", "peer", "sizes"),
    [
        ("qm9", ggnn_jax.qm9, {"n_train": 60, "n_valid": 30, "hidden": 12, "steps": 1}),
        ("babi15", ggnn_jax.babi15, {"n_train": 30, "n_valid": 15, "nodes": 8}),
        ("wikiner", wikiner_jax.Model, {"n_train": 20, "n_valid": 5}),
    ],
)
def test_ours_and_the_peer_start_alike_and_train(experiment: str, peer: Any, sizes: dict[str, Any]) -> None:
    """They have the same data and the same first parameters, so they start with the same score."""
    sizes = {**sizes, "synthetic": True}
    ours, theirs = Ours(experiment, max_active_keys=4, max_dispatch_size=16, **sizes), peer(batch=8, **sizes)
    assert ours.evaluate() == pytest.approx(theirs.evaluate(), rel=1e-4)
    for program in (ours, theirs):
        before = program.evaluate()
        assert (program.train(), program.infer()) == (sizes["n_train"], sizes["n_valid"]) and program.updates() >= 1
        assert program.evaluate() != before


@pytest.mark.parametrize("kind", [SentimentBench, WikinerBench, Qm9Bench, Babi15Bench])
def test_a_bench_runs_ours_and_its_peer(kind: type[NetworkBench], monkeypatch: pytest.MonkeyPatch) -> None:
    """What each process is told can be made: a module's function, and arguments that survive JSON."""
    asked: list[Any] = []
    monkeypatch.setattr(networks, "compare", lambda *arguments: asked.append(arguments))
    networks.main(kind(max_active_keys=(1, 4), batch=(2,), synthetic=True, data_dir=Path("data")))
    ((name, entries, passes, *_, metric),) = asked
    assert (name, passes, metric) == (kind.experiment, 5, "error" if kind is Qm9Bench else "accuracy")
    assert [e.arguments.get("max_active_keys") or e.arguments["batch"] for e in entries] == [1, 4, 2]
    for entry in entries:
        module, _, function = entry.make.partition(":")
        arguments = json.loads(json.dumps(dict(entry.arguments)))
        inspect.signature(getattr(importlib.import_module(module), function)).bind(**arguments)


def test_targets_are_reached_from_the_right_side() -> None:
    class Answers:
        def ask(self, what: str) -> dict[str, float]:
            return {"seconds": 1.0, "value": 0.5}

    answers: Any = Answers()
    assert common._to_target(answers, 0.6, 3, "error") == 1 and common._to_target(answers, 0.4, 3, "error") is None
    assert (
        common._to_target(answers, 0.4, 3, "accuracy") == 1 and common._to_target(answers, 0.6, 3, "accuracy") is None
    )
