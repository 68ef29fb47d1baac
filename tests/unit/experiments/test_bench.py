"""The bench: processes answer in turn, programs can be made, tables and JSON hold what they should."""

import importlib
import inspect
import io
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ampjax.errors import DataError, SettingsError
from ampjax.numerics.guard import FLAG
from experiments.__main__ import COMMANDS
from experiments.bench import (
    budgets,
    common,
    engine,
    growth,
    lifetimes,
    memory,
    pages,
    start_up,
    table_places,
    tracing,
    wire,
    workers,
    workload,
)
from experiments.bench.program import Entry
from experiments.bench.workload import Workload
from experiments.bench.workloads import ListReductionBench, MnistBench, Qm9Bench, SentimentBench

pytestmark = pytest.mark.slow


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


@pytest.mark.nightly
def test_programs_are_measured_in_their_own_processes(tmp_path: Path) -> None:
    entries = [Entry(name, "none", f"{__name__}:Fake") for name in ("ours", "theirs")]
    if __name__.partition(".")[0] != "tests":
        pytest.skip("this file can't be imported by name here")
    results = common.compare(
        "fake", entries, passes=2, target=0.4, json_file=tmp_path / "bench.jsonl"
    )
    assert [r.name for r in results] == ["ours", "theirs"] and results[
        0
    ].seconds_to_target is not None
    for line in (tmp_path / "bench.jsonl").read_text().splitlines():
        assert list(json.loads(line)) == [
            "bench",
            "program",
            "setting",
            "train_per_s",
            "infer_per_s",
            "seconds_to_target",
            "ratio_to_ours",
        ]


@pytest.mark.nightly
def test_a_program_that_can_t_start_is_told() -> None:
    with pytest.raises(RuntimeError, match="program `broken`: its process ended with status 1"):
        common.compare("x", [Entry("broken", "", "experiments.bench.program:no_such_function")])


def test_a_comparison_goes_on_without_a_package_that_can_t_be_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Started:
        def __init__(self, entry: Entry):
            if entry.name == "broken":
                raise RuntimeError("program `broken`: its process ended with status 1")
            self.entry = entry

        def ask(self, what: str) -> dict[str, float]:
            return {"seconds": 1.0, "value": getattr(Fake(), what)()}

        def close(self) -> None: ...

    monkeypatch.setattr(common, "Process", Started)
    entries = [
        Entry("ours", "", "made:here"),
        Entry("broken", "", "made:here", needs="numpy"),
    ]
    console = Console(file=io.StringIO(), width=200)
    (only,) = common.compare("x", entries, passes=1, console=console)
    assert only.name == "ours" and only.train_per_s == 10
    assert "going on without broken: program `broken`" in console.file.getvalue()  # type: ignore[attr-defined]


def test_passes_below_one_are_refused() -> None:
    with pytest.raises(SettingsError, match="bench, passes and epochs"):
        common.compare("x", [], passes=0)
    with pytest.raises(SettingsError, match="bench engine, options"):
        engine.main(engine.EngineOptions(sizes=(0,)))
    with pytest.raises(SettingsError, match="bench tracing, options"):
        tracing.main(tracing.TracingOptions(every=0))
    with pytest.raises(SettingsError, match="bench wire, options"):
        wire.main(wire.WireBench(passes=0))


@pytest.mark.nightly
def test_the_wire_bench_measures_all_kinds(tmp_path: Path) -> None:
    rows = wire.main(
        wire.WireBench(
            round_trips=20,
            arrays=2,
            passes=1,
            json=tmp_path / "wire.jsonl",
        )
    )
    assert [json.loads(line) for line in (tmp_path / "wire.jsonl").read_text().splitlines()] == rows
    assert [row["kind"] for row in rows] == ["one machine", "CURVE", "plain"]
    assert min(row["mb_per_s"] for row in rows) > 0


@pytest.mark.nightly
def test_the_tracing_bench_compares_passes(tmp_path: Path) -> None:
    options = tracing.TracingOptions(
        sizes=(4,),
        messages=200,
        passes=1,
        hidden=8,
        json=tmp_path / "tracing.jsonl",
    )
    (row,) = tracing.main(options)
    assert json.loads((tmp_path / "tracing.jsonl").read_text()) == row
    assert min(row["untraced_us"], row["traced_ratio"], row["waited_ratio"]) > 0
    assert 0 <= row["traced_busy"] <= 1 and 0 < row["waited_busy"] <= 1


@pytest.mark.nightly
def test_the_engine_bench_fills_its_dispatches(tmp_path: Path) -> None:
    options = engine.EngineOptions(
        sizes=(4,),
        messages=200,
        passes=1,
        hidden=8,
        json=tmp_path / "engine.jsonl",
    )
    (row,) = engine.main(options)
    assert row["mean_dispatch"] == 4
    assert json.loads((tmp_path / "engine.jsonl").read_text()) == row
    assert min(row["control_us"], row["engine_us"], row["kernels_us"]) > 0


@pytest.mark.nightly
def test_budgets_are_kept_where_their_cost_is_measured(tmp_path: Path) -> None:
    options = {
        "budgets": (0, 2),
        "limits": (0,),
        "instances": 12,
        "hidden": 4,
        "max_dispatch_size": 4,
        "min_update_interval": 4,
    }
    rows = budgets.main(budgets.BudgetsBench(**options, epochs=1, json=tmp_path / "budgets.jsonl"))
    assert [
        json.loads(line) for line in (tmp_path / "budgets.jsonl").read_text().splitlines()
    ] == rows
    bounds = [
        (None, None),
        (0, None),
        (2, None),
        (None, 0),
    ]
    assert [(row["model"], row["max_staleness"], row["drop_staler_than"]) for row in rows] == [
        (model, *bound) for model in ("list reduction", "trees") for bound in bounds
    ]
    assert all((row["drop_staler_than"] == 0) == (row["dropped"] > 0) for row in rows)
    assert all(
        row["staleness_max"] <= row["max_staleness"]
        for row in rows
        if row["max_staleness"] is not None
    )
    assert min(row["per_s"] for row in rows) > 0
    with pytest.raises(SettingsError, match="--epochs"):
        budgets.main(budgets.BudgetsBench(epochs=0))


@pytest.mark.parametrize(
    "kind",
    [c.type for c in COMMANDS.values() if c.module == "bench.workloads"],
)
def test_a_bench_runs_ours_and_its_peers(
    kind: type[Workload], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each process is told can be made: a module's function, and arguments that survive JSON."""
    asked: list[Any] = []
    monkeypatch.setattr(
        workload,
        "compare",
        lambda *arguments, **options: asked.append((arguments, options)),
    )
    monkeypatch.setattr(kind, "after", lambda self, console: None)
    workload.main(
        kind(
            max_active_keys=(1, 4),
            batch=(2,),
            synthetic=True,
            data_dir=Path("data"),
        )
    )
    (((name, entries, passes), options),) = asked
    assert (name, passes, options["metric"]) == (
        kind.experiment,
        5,
        "error" if kind is Qm9Bench else "accuracy",
    )
    assert [e.arguments["max_active_keys"] for e in entries if e.name == "ampjax"] == [1, 4]
    assert {e.name for e in entries} >= set(workload.MODES)
    for entry in entries:
        arguments = json.loads(json.dumps(dict(entry.arguments)))
        if not entry.missing:
            module, _, function = entry.make.partition(":")
            inspect.signature(getattr(importlib.import_module(module), function)).bind(**arguments)


def test_programs_can_be_chosen_and_ours_set() -> None:
    bench = SentimentBench(
        programs=("torch",), ours=("policy=largest", "workers=2"), synthetic=True
    )
    first, *others = bench.entries()
    assert first.name == "ampjax"
    assert others
    assert all(e.name.startswith("torch") for e in others)
    assert (
        first.arguments["policy"] == "largest" and first.environment["JAX_NUM_CPU_DEVICES"] == "2"
    )
    with pytest.raises(SettingsError, match="name=value"):
        workload.read_settings(["policy"])


def test_programs_in_jax_run_once_for_each_kind_of_fused_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=/tmp/x --{FLAG}=-reduce")
    entries = SentimentBench(
        programs=("jax", "torch"),
        fusions=("none", "unguarded"),
        max_active_keys=(4,),
        batch=(8,),
        synthetic=True,
    ).entries()
    assert all(e.needs is None for e in entries)
    for one, other in zip(
        entries[::2],
        entries[1::2],
        strict=True,
    ):
        assert (
            one.name == other.name
            and one.setting.endswith(", fusions none")
            and other.setting.endswith(", fusions unguarded")
        )
        assert one.variables()["XLA_FLAGS"] == f"--xla_dump_to=/tmp/x --{FLAG}="
        assert other.variables()["XLA_FLAGS"] == f"--xla_dump_to=/tmp/x --{FLAG}=+individual_dot"


def test_two_workers_have_a_core_and_a_copy_each() -> None:
    """Where one worker's kernels are spread over the cores, those of two are not."""
    entries = {}
    for e in MnistBench(max_active_keys=(4,)).entries():
        entries[e.name] = e
    one, two = (entries[name] for name in ("ampjax", "ampjax two workers"))
    assert (
        one.environment["NPROC"],
        two.environment["NPROC"],
    ) == (None, "1")
    assert (one.environment["JAX_NUM_CPU_DEVICES"], two.environment["JAX_NUM_CPU_DEVICES"]) == (
        "1",
        "2",
    )
    assert [two.arguments[name] for name in ("workers", "copies", "max_active_keys")] == [2, 2, 8]
    to_target = ListReductionBench(to_target=0.97).entries()
    assert "ampjax two workers" not in {e.name for e in to_target}


def test_what_is_not_installed_is_told_and_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    here = Entry("ours", "", "")
    absent = Entry("dynet", "", "", needs="dynet")
    assert not here.missing and absent.missing
    assert common.present([here, absent], common.Console()) == [here]
    assert "DyNet can't be imported" in " ".join(capsys.readouterr().out.split())


@pytest.mark.long
def test_the_start_is_measured_cold_and_with_a_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the process would do is done here, once for both."""
    monkeypatch.setattr(start_up, "cache_compilations", lambda: None)
    sizes = {
        "max_active_keys": 1,
        "n_train": 4,
        "epochs": 2,
        "embedding": 6,
        "hidden": 4,
        "synthetic": True,
    }
    own = start_up.measured(data_dir=None, ahead=False, **sizes)
    assert (
        own["seconds"] > 0
        and own["kernels"] >= own["compilations"][0] > 0
        and own["compilations"][1] == 0
    )
    caches: list[str] = []

    def instead(
        function: Any,
        arguments: dict[str, Any],
        environment: dict[str, str],
    ) -> dict[str, Any]:
        caches.append(environment["JAX_COMPILATION_CACHE_DIR"])
        inspect.signature(function).bind(**arguments)
        return own

    monkeypatch.setattr(start_up, "in_a_process", instead)
    rows = start_up.main(start_up.StartUpBench(**sizes, json=tmp_path / "start.jsonl"))
    assert [(row["ahead"], row["cache"]) for row in rows] == [
        *itertools.product((True, False), ("empty", "filled"))
    ]
    assert caches[0] == caches[1] != caches[2] == caches[3]
    assert len((tmp_path / "start.jsonl").read_text().splitlines()) == 4
    with pytest.raises(SettingsError, match="bench start-up, options"):
        start_up.main(start_up.StartUpBench(epochs=0))


@pytest.mark.nightly
def test_a_mistake_in_a_process_of_its_own_is_told_like_any_other(tmp_path):
    """A missing file was two tracebacks."""
    with pytest.raises(
        DataError, match=r"data set `sst`: expected the file train.txt, got no such file"
    ):
        start_up.main(start_up.StartUpBench(data_dir=tmp_path))


@pytest.mark.nightly
def test_memory_is_watched_while_trees_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "cache_compilations", lambda: None)
    sizes = {
        "max_active_keys": 1,
        "n_train": 4,
        "epochs": 2,
        "embedding": 6,
        "hidden": 4,
        "synthetic": True,
    }
    row = memory.measured(data_dir=None, **sizes)
    assert row["live"] > row["arenas"] > 0
    assert row["params"] > 0
    assert len(row["resident"]) == 2
    assert row["ratio"] == row["live"] / (
        row["arenas"] + row["records"] + row["params"] + row["opt_state"]
    )
    with pytest.raises(SettingsError, match="bench memory, options"):
        memory.main(memory.MemoryBench(epochs=0))


@pytest.mark.nightly
def test_pages_are_counted_with_and_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[tuple[str, str | None]] = []

    def in_a_process(function, arguments, environment):
        called.append((arguments["program"], environment["AMPJAX_MALLOC"]))
        return dict.fromkeys(pages.FIGURES, 1.0 if environment["AMPJAX_MALLOC"] is None else 2.0)

    monkeypatch.setattr(pages, "in_a_process", in_a_process)
    console = Console(record=True, width=100)
    rows = pages.main(
        pages.PagesBench(processes=2, json=tmp_path / "rows"),
        console,
    )
    first = next(iter(pages.PROGRAMS))
    assert [setting for program, setting in called if program == first] == [None, "0", "0", None]
    assert len(rows) == 4 * len(pages.PROGRAMS) == len((tmp_path / "rows").read_text().splitlines())
    assert console.export_text().count("0.50") == len(pages.PROGRAMS) * len(pages.FIGURES)
    with pytest.raises(SettingsError, match="bench pages, options"):
        pages.main(pages.PagesBench(passes=0))


@pytest.mark.nightly
def test_a_whole_batch_s_model_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {
        "H": 4,
        "WORDS": 7,
        "STEPS": 3,
        "BATCH": 4,
    }.items():
        monkeypatch.setattr(pages, name, size)
    monkeypatch.setattr(pages, "cache_compilations", lambda: None)
    for program in list(pages.PROGRAMS)[:2]:
        assert set(pages.measured(program, passes=2)) == set(pages.FIGURES)


@pytest.mark.nightly
def test_memory_is_told_after_trainers_and_after_fits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        lifetimes, "in_a_process", lambda function, arguments, environment: function(**arguments)
    )
    rows = lifetimes.main(
        lifetimes.LifetimesBench(trainers=1, fits=2, json=tmp_path / "rows.jsonl")
    )
    assert [(row["of"], row["after"]) for row in rows] == [
        ("trainers", 1),
        ("fits", 1),
        ("fits", 2),
    ]
    assert all(row["resident"] > 1e6 and row["maps"] > 10 for row in rows)
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 3
    with pytest.raises(SettingsError, match="bench lifetimes, options"):
        lifetimes.main(lifetimes.LifetimesBench(fits=0))


@given(st.data())
def test_a_comb_has_the_leaves_and_the_depth_that_are_asked_for(data: st.DataObject) -> None:
    leaves = data.draw(st.integers(2, 200))
    depth = data.draw(
        st.integers(
            (leaves - 1).bit_length(),
            leaves - 1,
        )
    )
    line = growth.comb(depth, leaves)
    open_ = list(itertools.accumulate((char == "(") - (char == ")") for char in line))
    assert line.count("word") == leaves
    assert max(open_) == depth + 1
    assert open_[-1] == 0
    for wrong in (leaves, (leaves - 1).bit_length() - 1):
        with pytest.raises(SettingsError, match=r"for .* leaves"):
            growth.comb(wrong, leaves)


@pytest.mark.nightly
def test_growth_is_measured_against_trees_in_flight_and_depth(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def instead(
        function: Any,
        arguments: dict[str, Any],
        environment: dict[str, str],
    ) -> list[dict[str, Any]]:
        inspect.signature(function).bind(**arguments)
        if function is growth.by_depth:
            return function(**arguments)
        return [{"at": 2, "us": 2.0, "host_us": 1.0, "dispatches": 1.0, "mean_dispatch": 3.0}]

    monkeypatch.setattr(growth, "cache_compilations", lambda: None)
    monkeypatch.setattr(growth, "in_a_process", instead)
    sizes: dict[str, Any] = {
        "n_train": 4,
        "passes": 1,
        "embedding": 6,
        "hidden": 4,
    }
    depths: dict[str, Any] = {
        "depths": (3,),
        "leaves": 5,
    }
    options = growth.GrowthBench(
        max_active_keys=(2,),
        synthetic=True,
        **sizes,
        **depths,
        depth_keys=4,
        json=tmp_path / "rows.jsonl",
        out=tmp_path,
    )
    rows = growth.main(options)
    assert [(row["against"], row["at"]) for row in rows] == [("trees in flight", 2), ("depth", 3)]
    assert rows[1]["host_us"] > 0 and rows[1]["us"] > 0
    # Four trees at once: leaves and three levels of branches, there and back, and the loss with the classifier in it.
    assert rows[1]["dispatches"] * 4 == 2 * (1 + 3) + 1
    assert {path.name for path in tmp_path.glob("*.png")} == {"trees-in-flight.png", "depth.png"}
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == rows
    with pytest.raises(SettingsError, match="bench growth, options"):
        growth.main(growth.GrowthBench(max_active_keys=(0,)))
    with pytest.raises(
        SettingsError,
        match="bench growth, --depths: expected a depth from 3 to 4, for 5 leaves, got 9",
    ):
        growth.main(growth.GrowthBench(depths=(9,), leaves=5))


@pytest.mark.nightly
def test_workers_are_compared_at_the_same_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Entry] = []
    results = []
    for n, r in (("two", 3.0), ("one", 2.0)):
        results.append(
            common.Result(
                n,
                "",
                r,
                0,
                None,
                0,
            )
        )
    monkeypatch.setattr(
        workers,
        "compare",
        lambda _, entries, *a, **k: asked.extend(entries) or results,
    )
    options = workers.WorkersBench(n_train=200, max_active_keys=2)
    assert workers.main(options) == results
    two, one = asked
    assert (
        len(two.cores),
        len(one.cores),
    ) == (2, 1)
    assert two.environment["NPROC"] == "1"
    assert (
        two.arguments["workers"],
        one.arguments["workers"],
    ) == (2, 1)
    for name in ("max_active_keys", "max_dispatch_size", "policy"):
        assert two.arguments[name] == one.arguments[name]


def test_targets_are_reached_from_the_right_side() -> None:
    class Answers:
        entry = Entry("ours", "", "")

        def ask(self, what: str) -> dict[str, float]:
            return {"seconds": 1.0, "value": 0.5}

    answers: Any = Answers()
    assert (
        common._to_target(answers, 0.6, 3, "error") == 1
        and common._to_target(answers, 0.4, 3, "error") is None
    )
    assert (
        common._to_target(answers, 0.4, 3, "accuracy") == 1
        and common._to_target(answers, 0.6, 3, "accuracy") is None
    )


@pytest.mark.nightly
def test_places_of_tables_are_timed_and_a_cache_that_is_right_hits_nothing(tmp_path: Path) -> None:
    options = table_places.TablePlacesBench(
        rows=50,
        features=2,
        ids=20,
        steps=2,
        shared_folder=tmp_path,
        folder=tmp_path,
        json=tmp_path / "found.json",
    )
    *places, cache = table_places.main(options, Console(quiet=True))
    assert [row["place"] for row in places] == ["memory", "mapped files", "shared", "server"]
    assert all(row["rows"] <= 20 and row["pull_ms"] > 0 for row in places)
    # A worker's turn comes with every second update.
    assert cache["hits"][1] == 0 < cache["hits"][4] <= cache["hits"][64] < 1
    assert len((tmp_path / "found.json").read_text().splitlines()) == 5
    with pytest.raises(SettingsError, match="table-places"):
        table_places.main(table_places.TablePlacesBench(steps=0))
