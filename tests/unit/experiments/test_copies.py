"""Every experiment's network, copied whole onto two workers, against itself alone: loss, metrics, gradients, and what sinks receive."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from support.parity import joined

import ampjax as amp
import ampjax.graphs as ag
from experiments.bench.ours import EXPERIMENTS

pytestmark = pytest.mark.slow

SMALL: dict[str, dict[str, Any]] = {
    "mnist": {"hidden": 6, "batch_size": 3},
    "permutation": {"operations": 3, "hidden": 6, "n_train": 10, "n_valid": 2},
    "list-reduction": {"hidden": 6, "batch_size": 3, "n_train": 100, "n_valid": 30},
    "sentiment": {"hidden": 6, "embedding": 6},
    "wikiner": {},
    "qm9": {"hidden": 12, "n_train": 20, "n_valid": 5},
    "babi15": {"n_train": 10, "n_valid": 5, "nodes": 54},
}
"""Options of each; dropout and noise stay: copies draw what one network would."""


def test_all_experiments_are_here() -> None:
    assert {*SMALL} == {*EXPERIMENTS}


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("mnist", "list-reduction")
        else pytest.param(name, marks=pytest.mark.nightly)
        for name in SMALL
    ],
)
def test_copies_of_a_network_compute_what_one_does(name: str) -> None:
    module, kind = EXPERIMENTS[name]
    found = []
    for copies in (1, 2):
        task = module.tasks(
            kind(
                synthetic=True,
                copies=copies,
                workers=copies,
                **SMALL[name],
            )
        )(0)
        data = amp.Subset(task.train, np.arange(4))
        options = {"min_update_interval": 1 << 40, "max_dispatch_size": 4, "compile_ahead": False}
        trainer = amp.Trainer(
            _without_updates(task.graph),
            gradient="sum",
            workers=copies,
            replica_sync="none",
            **options,
        )
        sums = trainer.accumulate(data)
        sinks = any(node.kind == "Sink" for node in task.graph.nodes.values())
        outputs = trainer.predict(data) if sinks else {}
        found.append((trainer, sums, joined(trainer.gradients), outputs))
    (one, sums, gradients, outputs), (two, sums_of_two, gradients_of_two, outputs_of_two) = found
    assert {node.split("/")[0] for node in two.params} == {*one.params}
    assert len(two.params) == 2 * len(one.params)
    assert {stage.worker for stage in two.plan.stages} == {0, 1}
    assert not any(stage.kind.is_transfer and "feed" not in stage.name for stage in two.plan.stages)
    assert sums_of_two == pytest.approx(sums, rel=1e-5)
    assert {n: rows for n, (_, rows) in gradients.items()} == {
        n: rows for n, (_, rows) in gradients_of_two.items()
    }
    for node, (tree, _) in gradients.items():
        for a, b in zip(
            jax.tree.leaves(gradients_of_two[node][0]),
            jax.tree.leaves(tree),
            strict=True,
        ):
            assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max(), node
    for sink, wanted in outputs.items():
        got = outputs_of_two[sink]
        assert np.array_equal(got.instance, wanted.instance)
        rows, others = (np.concatenate([*map(np.ravel, each.payload)]) for each in (got, wanted))
        np.testing.assert_allclose(rows, others, atol=1e-5)


def _without_updates(graph: ag.Graph) -> ag.Graph:
    """The experiments set intervals of their own."""
    for node in graph.parameterised.values():
        node.options = replace(node.options, min_update_interval=None, gradient=None)
    return graph
