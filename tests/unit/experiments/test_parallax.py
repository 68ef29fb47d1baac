"""Parallax's experiments at tiny sizes: the measuring core, the transfer model against the papers' tables, every table and figure."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from ampjax.cluster.hosts.resources import find_resources
from ampjax.errors import SettingsError
from ampjax.parallel.steps.step_outcome import Metrics
from experiments.__main__ import parse
from experiments.bench import parallax as bench
from experiments.bench import towers
from experiments.parallax import (
    compare,
    fig7,
    fig8,
    fig9,
    measure,
    paper,
    predict,
    table1,
    table2,
    table4,
    table5,
    table6,
)
from experiments.parallax.learning import Task, learn_lm, learn_nmt, learn_resnet
from experiments.parallax.measure import Timing, Turns
from experiments.parallax.options import LocalOptions, first_machines
from experiments.parallax.pictures import bars, lines
from experiments.parallax.programs import Ours, machines, make_all
from experiments.parallax.splits import Split
from experiments.parallax.sweep import sweep
from experiments.parallax.workloads import Sizes, Workload, workload

pytestmark = pytest.mark.nightly

TINY = Sizes(
    vocabulary=40,
    languages=20,
    units=8,
    samples=8,
    batch=2,
    words=4,
)
FAST: dict[str, Any] = {
    "rounds": 1,
    "steps": 1,
    "batches": 2,
    "sizes": TINY,
}


def records(path: Path) -> list[dict[str, Any]]:
    result = []
    for line in path.read_text().splitlines():
        result.append(json.loads(line))
    return result


class Clock:
    """Time that passes only when a program says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Sleeper:
    """A program that takes so many seconds a step."""

    def __init__(self, clock: Clock, seconds: float):
        self.clock = clock
        self.seconds = seconds
        self.seen = []

    def step(self, batch: Any) -> None:
        self.clock.now += self.seconds
        self.seen.append(batch)

    def wait(self) -> None:
        pass


def test_programs_take_turns_after_a_warm_up() -> None:
    clock = Clock()
    programs = {
        "slow": Sleeper(clock, 2.0),
        "fast": Sleeper(clock, 0.5),
    }
    timings = Turns(programs, ["a", "b"], clock).run(
        rounds=3,
        steps=2,
        units=10,
    )
    assert timings["slow"].seconds == [2.0] * 3
    assert (
        timings["fast"].per_s,
        timings["slow"].per_s,
    ) == (20.0, 5.0)
    assert programs["fast"].seen == ["a", "b"] * 4  # warm-up and three turns
    with pytest.raises(SettingsError, match="rounds"):
        Turns(programs, ["a"], clock).run(
            rounds=0,
            steps=1,
        )


def test_timing_tells_its_noise() -> None:
    assert Timing([1.0, 1.0, 1.0]).spread == 0
    assert Timing([1.0]).spread == 0
    assert Timing([1.0, 2.0, 3.0]).spread == pytest.approx(0.5)


def test_predictions_come_in_the_papers_order_and_ratios_within_half_again() -> None:
    rates = predict.fitted()
    for published, ways in ((table1.PUBLISHED, ("naive PS", "AR")), (paper.TABLE4, table4.WAYS)):
        for model, theirs in published.items():
            ours = {way: predict.throughput(model, way, rates) for way in ways}
            assert predict.same_order(ours, theirs), (model, ours)
            off = []
            for a in ways:
                for b in ways:
                    off.append(ours[a] / ours[b] / (theirs[a] / theirs[b]))
            assert max(off) <= 1.5, (model, max(off))
    for model in ("lm", "nmt"):
        steps = [predict.throughput(model, way, rates) for way in paper.LADDER]
        assert steps == sorted(steps)
        assert steps[-1] > 1.5 * steps[0]


def test_counted_bytes_are_those_of_table_3() -> None:
    """AllGatherv against its formula, servers against theirs, on the language model with few workers."""
    step = predict.paper_step("lm", 4)
    alone = predict.Counted(step, machines=4, each=1)
    rows = {}
    for name, each in step.tables.items():
        rows[name] = np.mean([len(own.ids) for own in each.workers]) * each.width * 4
    served = alone.load(predict.WAYS["hybrid"])
    assert served.network - served.reduced == pytest.approx(
        4 * sum(rows.values()) * 3 / 4, rel=0.05
    )
    longest = {}
    for name, each in step.tables.items():
        longest[name] = max(len(own.inverse) for own in each.workers) * each.width * 4
    gathered = alone.load(predict.WAYS["AR"]).gathered
    assert gathered == pytest.approx(
        2 * sum(longest.values()) * 3,
        rel=0.05,
    )
    together = predict.Counted(step, machines=2, each=2)
    assert (
        together.load(predict.WAYS["hybrid"]).merged
        < together.load(predict.WAYS["naive PS"]).merged
    )


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Nothing is trained: every way takes as many seconds as its name has letters, divided by the workers."""
    asked = []

    def time(
        options: LocalOptions, model: str, ways: Any, workers: int | None = None
    ) -> dict[str, Timing]:
        asked.append((model, tuple(ways), workers))
        result = {}
        for way in ways:
            result[way] = Timing(
                [len(way) / (workers or options.workers)],
                60.0,
            )
        return result

    monkeypatch.setattr(LocalOptions, "time", time)
    return asked


def test_a_model_is_timed() -> None:
    (timing,) = LocalOptions(**FAST).time("lm", ("pmap",)).values()
    assert timing.units == 2 * 2 * 4
    assert timing.per_s > 0


def test_tables_1_and_4(tmp_path: Path, timed: list[Any]) -> None:
    file = tmp_path / "figures.jsonl"
    table1.main(table1.Table1Options(models=("lm", "resnet"), json=file))
    rows = table4.main(table4.Table4Options(models=("lm",), json=file))
    assert [model for model, _, _ in timed] == ["lm", "resnet", "lm"]
    here = {row.way: row for row in rows if row.where == "here"}
    assert set(here) == {*table4.WAYS, "pmap", *paper.LADDER}
    assert here["hybrid"].ratio == pytest.approx(2 / 6)  # AR has two letters
    assert here["+OPSW"].per_s == here["hybrid"].per_s
    assert {row["experiment"] for row in records(file)} == {"parallax-table1", "parallax-table4"}


class Slow:
    """A runner whose steps take 10 seconds and one more for each partition that it is away from six."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.count = 1

    def resplit(self, count: int) -> None:
        self.count = count

    def run(self, batch: Any) -> None:
        self.clock.now += abs(self.count - 6) + 10

    def wait(self) -> None:
        pass


def a_split(*_: Any) -> Split:
    runner = Slow()
    return Split(runner, iter(lambda: 0, 1), 1.0, runner.clock)  # type: ignore[arg-type]


def test_brute_force_stops_at_a_drop_by_a_tenth() -> None:
    assert list(a_split().brute_force(2, 30, rounds=1, steps=1)) == [2, 4, 6, 8]


def test_table_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table2.Split, "of", a_split)
    rows = table2.main(
        table2.Table2Options(
            models=("lm",),
            partitions=(1, 8),
            json=tmp_path / "j",
            **FAST,
        )
    )
    assert [(row["partitions"], row["per_s"], row["paper"]) for row in rows] == [
        (1, 1 / 15, None),
        (8, 1 / 12, 50.5e3),
    ]


def test_table_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = table5.Table5Options(
        models=("lm",),
        iterations=2,
        last=4,
        out=tmp_path,
        **FAST,
    )
    (row,) = table5.main(options)
    assert row["samples"] <= row["allowed"]
    assert (tmp_path / "lm.png").exists()
    assert "…" not in capsys.readouterr().out  # a number that is cut off can't be read


@pytest.mark.nightly
def test_table_6(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table6, "WAYS", ("hybrid", "AR", "naive PS", "optimised PS"))
    options = table6.Table6Options(
        words=(2,),
        batch=1,
        units=4,
        rounds=1,
        steps=1,
        out=tmp_path,
        json=tmp_path / "j",
    )
    (row,) = table6.main(options)
    assert row["alpha"] == pytest.approx(2 / 120)
    assert row["tables"] == 3
    assert (tmp_path / "sweep.png").exists()
    assert "…" not in capsys.readouterr().out
    with pytest.raises(SettingsError, match="120"):
        table6.main(table6.Table6Options(words=(121,)))


def test_the_sweeps_alpha_follows_from_the_words() -> None:
    for words in (120, 30):
        (batch,) = sweep(words, 1, 2, 4, 1).batches
        assert len(np.unique(batch["inputs"])) == len(np.unique(batch["samples"])) == 2 * words
        assert set(batch["targets"].ravel()) <= set(batch["samples"].ravel())


def test_all_ways_train_alike() -> None:
    work = sweep(120, 2, 1, 4, 2)  # every row is touched, so the tables are dense in the hybrid
    programs = make_all(
        work,
        ("hybrid", "AR", "pmap"),
        machines(1, 2),
    )
    for program in programs.values():
        for batch in work.batches:
            program.step(batch)
        program.wait()
    hybrid = programs["hybrid"]
    assert (
        isinstance(hybrid, Ours)
        and hybrid.runner.plan is not None
        and not hybrid.runner.plan.tables
    )
    first, *others = (program.params for program in programs.values())
    for params in others:
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
            first,
            params,
        )


def a_line() -> Task:
    """A line through points, which SGD finds."""
    batch = {
        "x": np.arange(4, dtype=np.float32),
        "y": 2 * np.arange(4, dtype=np.float32),
    }
    work = Workload(
        "lm",
        lambda p, b: jax.numpy.mean((p["w"] * b["x"] - b["y"]) ** 2),
        {"w": np.zeros(1, np.float32)},
        optax.sgd(0.1),
        [batch],
    )
    return Task(
        work,
        "error",
        False,
        0.1,
        lambda params: float(abs(params["w"][0] - 2)),
        lambda number: iter([batch]),
    )


def test_figure_7(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fig7, "learn_lm", lambda replicas, seed: a_line())
    options = fig7.Fig7Options(
        models=("lm",),
        ways=("hybrid", "pmap"),
        every=2,
        steps=40,
        out=tmp_path,
        json=tmp_path / "j",
    )
    rows = fig7.main(options)
    assert [row["way"] for row in rows] == ["hybrid", "pmap"]
    assert rows[0]["steps"] == rows[1]["steps"] < 40  # both reach the target, after as many steps
    assert max(row["speedup"] for row in rows) >= 1
    assert (tmp_path / "lm.png").exists()
    assert "step 2: hybrid" in capsys.readouterr().out
    (never,) = fig7.main(
        fig7.Fig7Options(
            models=("lm",),
            ways=("pmap",),
            every=1,
            steps=1,
            target=0.0,
            out=tmp_path,
        )
    )
    assert never["seconds"] is None


def test_what_figure_7_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AMPJAX_DATA", raising=False)
    for task, batch in (
        (learn_lm(2, 0, 50, 2000), 16),
        (learn_nmt(2, 0, None, False, 128), 64),
        (learn_resnet(2, 0), 32),
    ):
        first = next(task.batches())
        assert {len(value) for value in first.values()} == {batch}


@pytest.mark.nightly
def test_figures_8_and_9(tmp_path: Path, timed: list[Any]) -> None:
    rows = fig8.main(
        fig8.Fig8Options(
            models=("lm",),
            counts=(1, 2),
            out=tmp_path,
        )
    )
    assert {(row["where"], row["replicas"]) for row in rows if row["model"] == "lm"} == {
        *(("cluster", 6 * n) for n in (2, 4, 8)), ("here", 1), ("here", 2),
    }  # fmt: skip
    rows = fig9.main(
        fig9.Fig9Options(
            models=("lm",),
            counts=(1, 2),
            out=tmp_path,
        )
    )
    for row in rows:
        if row["paper"] is not None:
            assert 1 / 1.5 <= row["normalised"] / row["paper"] <= 1.5
    assert {path.name for path in tmp_path.glob("*.png")} >= {
        "cluster.png",
        "here.png",
        "cluster-lm.png",
        "here-lm.png",
    }


@pytest.mark.nightly
def test_bench(tmp_path: Path) -> None:
    options = bench.ParallaxBench(
        what=("lm", "table", "processes"), servers=1, vocabulary=60, classes=40, units=8, samples=8, batch=2, words=3, rows=100, width=4, ids=5,
        steps=2, json=tmp_path / "j",
    )  # fmt: skip
    results = bench.main(options)
    assert [result.what for result in results] == [
        "lm, 2 replicas",
        "5 of 100 rows",
        "processes: 1, 5 of 100 rows",
    ]
    assert all(row["ratio"] > 0 for row in records(tmp_path / "j"))


@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("optimizer", towers.OPTIMIZERS)
def test_towers_by_hand_train_what_ours_trains(optimizer: towers.Optimizer, devices: int) -> None:
    model = towers.Model(optimizer, 50, 4, devices)
    ours = towers.make("lazy", model)
    by_hand = towers.make("by hand", model)
    for batch in towers.batches(3, 6, 5, 50):
        metrics = ours.step(batch)
        losses = by_hand.step(batch)
        assert isinstance(metrics, Metrics) and isinstance(losses, jax.Array)
        np.testing.assert_allclose(
            np.mean(losses),
            metrics.loss,
            rtol=1e-6,
        )
    for path, value in ours.params.items():
        np.testing.assert_allclose(
            by_hand.params[path],
            value,
            rtol=1e-4,
            atol=1e-6,
        )


@pytest.mark.nightly
def test_towers(tmp_path: Path) -> None:
    options = bench.ParallaxBench(
        what=("towers",),
        tower_rows=50,
        tower_ids=3,
        tower_batch=4,
        width=4,
        steps=1,
        json=tmp_path / "j",
    )
    results = bench.main(options)
    assert len(results) == 8 and all(result.peaks and min(result.peaks) > 1e8 for result in results)
    assert all(row["ratio"] > 0 for row in records(tmp_path / "j"))


@pytest.mark.nightly
def test_bench_of_processes() -> None:
    sizes = {
        "vocabulary": 60,
        "classes": 40,
        "units": 8,
        "samples": 8,
        "batch": 2,
        "words": 3,
        "rows": 100,
        "width": 4,
        "ids": 6,
    }
    results = bench.main(
        bench.ParallaxBench(
            what=("workers", "workers-lm", "ahead"),
            steps=2,
            **sizes,
        )
    )
    names = ["workers: 2, 6 of 100 rows", "workers: 2, lm", "ahead: 2, 6 of 100 rows"]
    assert [result.what for result in results] == names


@pytest.mark.nightly
def test_ways_are_timed_over_processes(tmp_path: Path) -> None:
    file = tmp_path / "resources.yaml"
    file.write_text(
        "machines: [{host: a, address: localhost, devices: [0]}, {host: b, address: localhost, devices: [0]}]"
    )
    options = LocalOptions(**FAST, resources=file)
    assert options.workers == 2
    timings = options.time("lm", ("AR", "naive PS", "hybrid", "pmap"))
    assert set(timings) == {"AR", "naive PS", "hybrid"} and all(
        timing.per_s > 0 for timing in timings.values()
    )


def test_resources_of_experiments(tmp_path: Path) -> None:
    listed = []
    for name, n in (("a", 2), ("b", 1)):
        listed.append(
            {
                "host": name,
                "address": "localhost",
                "devices": list(range(n)),
            }
        )
    resources = find_resources({"machines": listed})
    assert [len(first_machines(resources, n).machines) for n in (None, 2, 3)] == [2, 1, 2]
    with pytest.raises(
        SettingsError,
        match=r"--counts: expected numbers of replicas of the first machines, \[2, 3\], got 1",
    ):
        first_machines(resources, 1)
    file = tmp_path / "resources.yaml"
    file.write_text("machines: [{devices: [0]}]")
    with pytest.raises(
        SettingsError, match="--resources: expected machines with addresses, got none with one"
    ):
        LocalOptions(resources=file).time("lm", ("hybrid",))


@pytest.mark.nightly
def test_image_models_have_the_same_collectives_as_pmap(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.models import resnet

    real = resnet.Config
    small = lambda **settings: real((1,), 4, **settings)
    monkeypatch.setattr("experiments.parallax.workloads.resnet.Config", small)
    result = bench.images(
        "resnet",
        bench.ParallaxBench(images=2, pixels=16, steps=1),
    )
    assert result.same_collectives


def test_workloads_fill_their_batches() -> None:
    for model in ("lm", "nmt"):
        work = workload(model, 2, TINY, 2)
        assert len(work.batches) == 2
        assert work.units > 0
    with pytest.raises(SettingsError, match="JAX_NUM_CPU_DEVICES"):
        machines(3, 2)


def test_pictures_want_something_to_draw(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="point"):
        lines({}, "x", "y")
    with pytest.raises(SettingsError, match="bar"):
        bars({}, "y")
    bars(
        {"a": {"x": 1.0, "y": 2.0}},
        "y",
        tmp_path / "bars.svg",
    )
    assert (tmp_path / "bars.svg").exists()


def test_ratios_are_compared_with_the_papers() -> None:
    first, second = compare.figures(
        "here",
        "lm",
        {"AR": 10.0, "hybrid": 30.0},
        paper.TABLE4["lm"],
    )
    assert (first.ratio, second.ratio) == (1.0, 3.0)
    assert second.off == pytest.approx(3.0 / (274 / 45.5))
    assert measure.short(1_200_000.0) == "1.2M"


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["parallax-table1", "--models", "lm", "--vocabulary", "100"], table1.Table1Options),
        (["parallax-table2"], table2.Table2Options),
        (["parallax-table4", "--rounds", "3"], table4.Table4Options),
        (["parallax-table5"], table5.Table5Options),
        (["parallax-table6", "--words", "4", "1"], table6.Table6Options),
        (["parallax-fig7", "--models", "lm"], fig7.Fig7Options),
        (["parallax-fig8", "--counts", "2"], fig8.Fig8Options),
        (["parallax-fig9"], fig9.Fig9Options),
        (["bench", "parallax", "--what", "table"], bench.ParallaxBench),
    ],
)
def test_command_lines(arguments: list[str], kind: type) -> None:
    options = parse(arguments)
    assert isinstance(options, kind)
    assert options.workers == 2
