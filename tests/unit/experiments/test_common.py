"""Options, the sample of a data set, learning rates over a run, and start-up."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

import ampjax as amp
from ampjax.errors import SettingsError
from experiments import common, intervals
from experiments.by_hand.rnn_graph import list_reduction_rnn
from experiments.common import Options, Task
from experiments.data.list_reduction import Buckets, generate

pytestmark = pytest.mark.slow


def test_settings_follow_the_options() -> None:
    options = Options(
        max_active_keys=4, mode="pipeline", replica_sync="every_k:7", policy="largest", workers=2
    )
    settings = options.settings(seed=5, min_update_interval=30)
    assert (settings.max_active_keys, settings.min_update_interval, settings.mode) == (
        4,
        30,
        "pipeline",
    )
    assert (settings.replica_sync, settings.policy, settings.workers, settings.seed) == (
        ("every_k", 7),
        "largest",
        2,
        5,
    )
    assert Options(min_update_interval=8).settings(0, 30).min_update_interval == 8


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"replica_sync": "every_k:soon"},
            "--replica-sync: expected `epoch`, `none`, `every_k:K` or `message:K`",
        ),
        ({"replica_sync": "daily:3"}, "setting `replica_sync`"),
        ({"policy": "fifo"}, "setting `policy`: expected one of"),
        (
            {"max_active_keys": 0},
            "setting `max_active_keys`: expected an integer of at least 1, got 0",
        ),
    ],
)
def test_an_option_outside_what_it_can_be_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        Options(**options).settings(0, 1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"seed": ()}, "--seed: expected at least one seed"),
        ({"seed": (1, 1)}, "--seed: expected different seeds"),
        ({"epochs": 0}, "--epochs: expected at least 1, got 0"),
        ({"replicas": 0}, "--replicas: expected at least 1, got 0"),
        ({"flops": np.inf}, "--flops: expected more than 0, and finite, got inf"),
        ({"rest": "measured"}, "--rest: expected --flops beside it, got `measured` alone"),
        ({"target": np.nan}, "--target: expected a number, got nan"),
        (
            {"hosts": 2, "resources": Path("r")},
            "--hosts, --resources: expected one of the two, got both, 2 and `r`",
        ),
    ],
)
def test_run_checks_the_options_before_anything_else(options: dict[str, Any], text: str) -> None:
    def never(seed: int) -> Task:
        raise AssertionError

    with pytest.raises(SettingsError, match=text):
        common.run("x", Options(**options), never)


def test_what_can_t_be_written_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    for out in (taken, taken / "deeper"):
        with pytest.raises(SettingsError, match="--out: expected a path that can be written to"):
            common.run(
                "x",
                Options(out=out),
                lambda seed: pytest.fail("too late"),
            )
    for json in (tmp_path, taken / "a.jsonl"):
        with pytest.raises(SettingsError, match="--json: expected a path that can be written to"):
            common.run(
                "x",
                Options(out=tmp_path / "out", json=json),
                lambda seed: pytest.fail("too late"),
            )


def test_a_mistake_that_is_found_late_leaves_the_last_history_alone(tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text("{}\n")

    def wrong(seed: int) -> Task:
        raise SettingsError("x", "y", "z")

    with pytest.raises(SettingsError):
        common.run("x", Options(out=tmp_path), wrong)
    assert (tmp_path / "history.jsonl").read_text() == "{}\n"


def test_a_sample_hands_out_the_instances_it_chose() -> None:
    data = Buckets(generate(300), 10, 8)
    some = common.sample(data, 7, seed=1)
    assert len(some) == 7
    assert len(common.sample(data, 10_000, seed=1)) == len(data)
    ids = np.random.default_rng(1).permutation(len(data))[:7]
    wanted = data.gather(ids[[2, 5]])["label"].payload
    np.testing.assert_array_equal(
        some.gather(np.array([2, 5]))["label"].payload,
        wanted,
    )


@pytest.mark.nightly
def test_expected_updates_are_those_of_a_run() -> None:
    graph = list_reduction_rnn(8, batch=10)
    data = Buckets(generate(1000), 10, 8)
    settings = amp.Settings(max_active_keys=8, min_update_interval=4)
    expected = intervals.updates_per_instance(graph, data, settings)
    trainer = amp.Trainer(graph, optax.sgd(0.1), settings=settings)
    trainer.accumulate(common.sample(data, len(data), 1))
    for node, stats in trainer.statistics.nodes.items():
        assert expected[node] * len(data) == pytest.approx(stats.updates, rel=0.1)


def test_options_of_nodes_can_be_set_after_the_graph_is_built() -> None:
    graph = list_reduction_rnn(8, replicas=2)
    intervals.set_options(graph, lambda node: {"min_update_interval": len(node)})
    assert graph.nodes["linear1/1"].options.min_update_interval == 9
    assert graph.nodes["linear1/1"].options.replica_of == "linear1"


@pytest.mark.nightly
def test_start_up_leaves_the_user_s_environment_alone(tmp_path: Path) -> None:
    code = (
        "import os, jax; from experiments.common import start_up; start_up(workers=3);"
        "print(os.environ['NPROC'], len(jax.devices()), jax.config.jax_compilation_cache_dir)"
    )

    def run(**environment: str) -> list[str]:
        import os

        clean = {}
        for k, v in os.environ.items():
            if not k.startswith(("JAX_", "NPROC", "XDG")):
                clean[k] = v
        command = [sys.executable, "-c", code]
        return subprocess.check_output(
            command,
            text=True,
            env={**clean, **environment},
        ).split()

    *rest, folder = run(XDG_CACHE_HOME=str(tmp_path))
    assert rest == ["1", "3"]
    assert Path(folder).parent == tmp_path / "ampjax" / "xla"
    chosen = run(
        NPROC="2", JAX_NUM_CPU_DEVICES="2", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "mine")
    )
    assert chosen == ["2", "2", str(tmp_path / "mine")]
