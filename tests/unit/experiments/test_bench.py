"""The bench: peers compute what ours computes, processes answer in turn, tables and JSON hold what they should."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest

from ampjax.errors import SettingsError
from experiments.bench import common, engine
from experiments.bench.common import Entry
from experiments.bench.list_reduction import Ours
from experiments.bench.peers.list_reduction_jax import forward, padded, per_length


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


def test_the_peers_start_like_ours_and_learn() -> None:
    arguments = {"n_train": 400, "n_valid": 200, "epochs": 1}
    ours, mask, lengths = Ours(max_active_keys=4, **arguments), padded(**arguments), per_length(**arguments)
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


def test_the_engine_bench_fills_its_dispatches(tmp_path: Path) -> None:
    options = engine.EngineOptions(sizes=(4,), messages=200, passes=1, hidden=8, json=tmp_path / "engine.jsonl")
    (row,) = engine.main(options)
    assert row["mean_dispatch"] == 4
    assert json.loads((tmp_path / "engine.jsonl").read_text()) == row
    assert min(row["control_us"], row["engine_us"], row["kernels_us"]) > 0
