"""Machines that nobody owns, at tiny sizes: figures, scaling, calibration, table 3, the simulator's own speed."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ampjax.errors import SettingsError
from ampjax.simulation.simulate import simulate
from experiments import calibrate, figure1, figure5a, machines, scaling, table3
from experiments.bench import simulate as bench
from experiments.calibrate import CalibrateOptions
from experiments.figure1 import Figure1Options
from experiments.figure5a import Figure5aOptions
from experiments.link_times import measure_link_times
from experiments.scaling import ScalingOptions
from experiments.table3 import Table3Options

pytestmark = pytest.mark.nightly


def test_every_model_runs_without_numerics() -> None:
    for name in machines.NAMES:
        one = machines.model(name)
        run = simulate(
            one.graph(2),
            one.instances(3),
            workers=2,
        )
        assert run.instances == 3 and run.seconds > 0, name
    assert len(machines.single_sequences(5)) == 5


def test_figure_1_shows_three_ways_to_train(tmp_path: Path) -> None:
    """As in the paper: one at a time, four at a time with bubbles, and without."""
    runs = figure1.main(Figure1Options(models=("perceptron",), out=tmp_path))["perceptron"]
    busy = {}
    for mode, one in runs.items():
        if one.trace:
            busy[mode] = np.mean([*one.trace.busy_fraction().values()])
    assert busy["sync"] < 0.4 < busy["pipeline"] < 0.7 < busy["async"]
    for suffix in ("png", "svg"):
        assert (tmp_path / f"perceptron.{suffix}").stat().st_size > 5000


def test_the_pipeline_meets_its_bound_and_asynchrony_goes_beyond(tmp_path: Path) -> None:
    """Three equal layers: 3m / (m + 2) times the synchronous rate, but for updates, of which a pipeline has fewer."""
    options = Figure5aOptions(
        max_active_keys=(1, 4),
        n=120,
        out=tmp_path,
        json=tmp_path / "figure5a.jsonl",
    )
    one, four = figure5a.main(options)
    assert one.pipeline == pytest.approx(one.sync, rel=1e-6)
    assert four.bound == pytest.approx(2 * four.sync)
    assert four.pipeline == pytest.approx(four.bound, rel=1e-3)
    assert four.asynchronous > 1.4 * four.pipeline
    assert [json.loads(line)["max_active_keys"] for line in options.json.open()] == [1, 4]  # type: ignore[union-attr]
    assert (tmp_path / "figure5a.png").exists() and (tmp_path / "figure5a.svg").exists()


def test_scaling_over_hosts_counts_what_crosses(tmp_path: Path) -> None:
    links = {"workers_per_host": 2, "host_latency_ns": 10_000, "host_bytes_per_s": 12.5e9}
    options = ScalingOptions(
        models=("perceptron",),
        workers=(1, 2, 4),
        n=4,
        least=16,
        max_active_keys=(),
        out=tmp_path,
        **links,
    )
    rows = scaling.main(options)
    near = scaling.main(replace(options, workers_per_host=None))
    assert [row.hosts for row in rows] == [1, 1, 2]
    assert [row.hosts for row in near] == [1, 1, 1]
    assert rows[1].host_bytes == 0 < rows[2].host_bytes
    assert rows[1].train_per_s < rows[2].copies_per_s < 2 * rows[1].train_per_s
    assert rows[1].train_per_s == near[1].train_per_s
    assert rows[2].train_per_s < near[2].train_per_s


def test_scaling_tells_throughput_and_the_hosts_time(tmp_path: Path) -> None:
    options = ScalingOptions(
        models=("perceptron",),
        workers=(1, 4),
        n=4,
        least=48,
        max_active_keys=(8,),
        out=tmp_path,
        json=tmp_path / "s",
    )
    one, four, flight = scaling.main(options)
    assert one.replicas == 1
    assert four.replicas == 1
    assert four.max_active_keys == 16
    assert four.speed_up > 1.5 and flight.model == "sequences" and flight.host_us > 0
    assert len((tmp_path / "s").read_text().splitlines()) == 3
    assert {path.name for path in tmp_path.glob("*.png")} == {
        "scaling.png",
        "host-workers.png",
        "host-in-flight.png",
    }


def test_the_simulators_bench_counts_messages(tmp_path: Path) -> None:
    small = {
        "sizes": (4,),
        "models": ("perceptron",),
        "n": 2,
        "passes": 1,
    }
    options = bench.SimulateOptions(
        **small, replicas=3, max_active_keys=6, buckets=8, json=tmp_path / "s"
    )  # type: ignore[arg-type]
    rows = bench.main(options)
    assert [row["model"] for row in rows] == ["sequences", "perceptron", "list-reduction, replicas"]
    assert all(row["messages"] > 0 and row["messages_per_s"] > 0 for row in rows)
    assert [json.loads(line) for line in (tmp_path / "s").open()] == rows


@pytest.mark.nightly
def test_calibration_compares_prediction_and_measurement(tmp_path: Path) -> None:
    options = CalibrateOptions(
        models=("buckets",),
        workers=(1,),
        passes=1,
        n=12,
        json=tmp_path / "c",
    )
    (row,) = calibrate.main(options)
    assert options.devices == 1
    assert row.ratio == pytest.approx(row.predicted_per_s / row.measured_per_s)
    assert json.loads((tmp_path / "c").read_text())["workers"] == 1


@pytest.mark.nightly
def test_calibration_on_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "measure_link_times", partial(measure_link_times, 20, 1))
    options = CalibrateOptions(
        models=("buckets",),
        workers=(),
        hosts=(2,),
        passes=1,
        n=12,
        json=tmp_path / "c",
    )
    (row,) = calibrate.main(options)
    assert options.devices == 2 and row.on_hosts
    assert row.predicted_per_s > 0 and row.measured_per_s > 0


@pytest.mark.long
def test_table_3_holds_what_was_asked_for(tmp_path: Path) -> None:
    options = Table3Options(
        workloads=("list-reduction",),
        rest=("none",),
        epochs=1,
        n_train=400,
        out=tmp_path,
        json=tmp_path / "t",
    )
    (row,) = table3.main(options)
    record = json.loads((tmp_path / "t").read_text())
    assert record["workload"] == "list-reduction" and record["paper_train_per_s"] == 268_000
    assert record["train_per_s"] == row.train_per_s > 0 and record["seconds_to_target"] is None


def test_options_outside_their_range_are_refused(tmp_path: Path) -> None:
    for run in (
        lambda: figure1.main(Figure1Options(n=0, out=tmp_path)),
        lambda: figure5a.main(Figure5aOptions(max_active_keys=(), out=tmp_path)),
        lambda: scaling.main(ScalingOptions(workers=(0,), out=tmp_path)),
        lambda: bench.main(bench.SimulateOptions(sizes=())),
        lambda: calibrate.main(CalibrateOptions(passes=0)),
    ):
        with pytest.raises(SettingsError, match="expected more than 0"):
            run()
