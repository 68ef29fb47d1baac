"""Small runs of the experiments, end to end: files, JSON keys, pictures, and what is refused."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import ampjax as amp
from ampjax.engine.executor import Executor
from ampjax.errors import SettingsError
from ampjax.train.history import History
from experiments import (
    appendix_c,
    babi15,
    figure5b,
    list_reduction,
    mnist,
    permutation,
    qm9,
    sentiment,
    virtual,
    wikiner,
)
from experiments.__main__ import COMMANDS, main, parse
from experiments.appendix_c import AppendixCOptions
from experiments.babi15 import Babi15Options
from experiments.common import FIELDS
from experiments.figure5b import Figure5bOptions
from experiments.intervals import intervals
from experiments.list_reduction import ListReductionOptions
from experiments.mnist import MnistOptions
from experiments.permutation import PermutationOptions
from experiments.qm9 import Qm9Options
from experiments.sentiment import SentimentOptions
from experiments.virtual import VirtualOptions
from experiments.wikiner import WikinerOptions

pytestmark = pytest.mark.slow


def small(folder: Path, **options: Any) -> ListReductionOptions:
    given = {
        "n_train": 200,
        "n_valid": 100,
        "hidden": 8,
        "batch_size": 20,
        "epochs": 2,
        "max_active_keys": 4,
    }
    return ListReductionOptions(
        **{**given, "out": folder / "out", "json": folder / "epochs.jsonl", **options}
    )


def records(path: Path) -> list[dict[str, Any]]:
    result = []
    for line in path.read_text().splitlines():
        result.append(json.loads(line))
    return result


def assert_png(path: Path) -> None:
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size > 5000


@pytest.mark.nightly
def test_list_reduction_leaves_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    histories = list_reduction.main(small(tmp_path, seed=(0, 1)))
    assert [len(h) for h in histories] == [2, 2]
    lines = records(tmp_path / "epochs.jsonl")
    assert lines == records(tmp_path / "out" / "history.jsonl")
    assert [(r["seed"], r["epoch"]) for r in lines] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    for record in lines:
        fields = [
            field for field in FIELDS if not field.endswith("_error")
        ]  # those are regression's
        assert list(record)[: len(fields)] == fields
        assert record["experiment"] == "list-reduction" and record["max_active_keys"] == 4
        assert 0 <= record["valid_accuracy"] <= 1 and record["messages"] > 0
    assert_png(tmp_path / "out" / "convergence.png")
    assert_png(tmp_path / "out" / "gantt.png")
    last = capsys.readouterr().out.replace("\n", "")
    assert last.endswith(str(tmp_path / "out")) and "seed 0 1;" in last


@pytest.mark.nightly
def test_a_run_on_the_machines_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "resources.yaml"
    file.write_text("machines: [{host: left, devices: [0]}, {host: right, devices: [1]}]")
    list_reduction.main(small(tmp_path, epochs=1, resources=file))
    for name in ("gantt.png", "traffic.png"):
        assert_png(tmp_path / "out" / name)
    out = capsys.readouterr().out
    assert (
        "left (thread 0 of this process): 2 nodes with parameters;" in out
        and "right (thread 1" in out
    )


@pytest.mark.nightly
def test_json_is_appended_to_and_the_folder_starts_anew(tmp_path: Path) -> None:
    for _ in range(2):
        list_reduction.main(small(tmp_path, epochs=1))
    assert len(records(tmp_path / "epochs.jsonl")) == 2
    assert len(records(tmp_path / "out" / "history.jsonl")) == 1


@pytest.mark.nightly
def test_a_machine_of_flops_gives_its_own_time(tmp_path: Path) -> None:
    for flops in (1e9, 2e9):
        list_reduction.main(small(tmp_path, epochs=1, flops=flops, out=tmp_path / "out"))
    slow, fast = records(tmp_path / "epochs.jsonl")
    assert fast["train_per_s"] == pytest.approx(2 * slow["train_per_s"], rel=1e-3)
    assert slow["options"]["flops"] == 1e9 and fast["valid_accuracy"] == slow["valid_accuracy"]


@pytest.mark.nightly
def test_what_is_no_layer_may_take_the_time_that_it_takes_here(tmp_path: Path) -> None:
    """Measured once and kept: with the same times it is the same run."""
    profile = tmp_path / "profiles" / "times.json"
    for rest in ("none", "measured", "measured"):
        list_reduction.main(
            small(
                tmp_path,
                epochs=1,
                flops=1e12,
                rest=rest,
                profile=profile,
                out=tmp_path / "out",
            )
        )
    alone, measured, again = records(tmp_path / "epochs.jsonl")
    assert 0 < measured["train_per_s"] < 0.1 * alone["train_per_s"]
    assert (
        again["train_per_s"] == measured["train_per_s"]
        and again["valid_loss"] == measured["valid_loss"]
    )


@pytest.mark.nightly
def test_throughput_counts_sequences_not_buckets(tmp_path: Path) -> None:
    task = list_reduction.tasks(small(tmp_path))(0)
    assert task.train.n_examples == 200 and len(task.train) < 50  # type: ignore[attr-defined]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sync"},
        {"mode": "pipeline", "policy": "backward_first", "max_dispatch_size": 1},
        pytest.param(
            {"replicas": 2, "workers": 2, "replica_sync": "every_k:2"},
            marks=pytest.mark.nightly,
        ),
        {"single": True, "max_active_keys": 16},
    ],
)
def test_every_mode_runs(tmp_path: Path, options: dict[str, Any]) -> None:
    (history,) = list_reduction.main(small(tmp_path, epochs=1, **options))
    record = records(tmp_path / "epochs.jsonl")[0]
    assert record["mode"] == options.get("mode", "async")
    assert record["max_active_keys"] == (
        1 if options.get("mode") == "sync" else options.get("max_active_keys", 4)
    )
    assert history[0].updates > 0


@pytest.mark.nightly
def test_it_stops_at_the_target_unless_told_to_go_on(tmp_path: Path) -> None:
    assert len(list_reduction.main(small(tmp_path, target=0.0))[0]) == 1
    assert len(list_reduction.main(small(tmp_path, target=0.0, keep_going=True))[0]) == 2


@pytest.mark.nightly
def test_mnist_runs_without_files(tmp_path: Path) -> None:
    options = MnistOptions(
        synthetic=True,
        hidden=16,
        epochs=1,
        out=tmp_path,
        target=0.5,
        seed=(2,),
        replicas=2,
    )
    (history,) = mnist.main(options)
    assert history[0].valid["accuracy"] > 0.8
    assert_png(tmp_path / "gantt.png")
    assert records(tmp_path / "history.jsonl")[0]["workers"] == 4


@pytest.mark.nightly
def test_wikiner_runs_without_files(tmp_path: Path) -> None:
    options = WikinerOptions(
        synthetic=True,
        n_train=20,
        n_valid=5,
        epochs=1,
        max_dispatch_size=1,
        out=tmp_path,
    )
    (history,) = wikiner.main(options)
    train, _ = wikiner.load(options)
    assert 0 < history[0].train["loss"] * len(train) / len(train.words) < 2.3, (
        "nine tags: it starts near log 9"
    )
    (record,) = records(tmp_path / "history.jsonl")
    assert record["experiment"] == "wikiner" and record["max_active_keys"] == 32
    assert 0 <= record["valid_accuracy_without_o"] <= 1
    assert_png(tmp_path / "gantt.png")


@pytest.mark.nightly
def test_qm9_learns_without_files(tmp_path: Path) -> None:
    sizes = {
        "hidden": 12,
        "steps": 1,
        "max_active_keys": 2,
        "max_dispatch_size": 8,
        "n_train": 200,
        "n_valid": 50,
    }
    options = Qm9Options(
        synthetic=True,
        epochs=2,
        batch=5,
        learning_rate=0.01,
        out=tmp_path,
        **sizes,
    )
    (history,) = qm9.main(options)
    assert history[1].valid["error"] < history[0].valid["error"]
    (first, _) = records(tmp_path / "history.jsonl")
    assert first["experiment"] == "qm9"
    assert first["valid_error"] == history[0].valid["error"]
    assert_png(tmp_path / "convergence.png")


@pytest.mark.nightly
def test_babi15_runs_without_files(tmp_path: Path) -> None:
    sizes = {
        "n_train": 40,
        "n_valid": 20,
        "epochs": 1,
        "max_active_keys": 2,
        "max_dispatch_size": 16,
    }
    (history,) = babi15.main(
        Babi15Options(
            nodes=8,
            synthetic=True,
            encoding="flatmap",
            out=tmp_path,
            **sizes,
        )
    )
    assert 0 <= history[0].valid["accuracy"] <= 1
    assert history[0].updates > 0


@pytest.mark.nightly
def test_appendix_c_prints_the_papers_figure_and_the_simulation_comes_near(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    paper, formula, simulated = appendix_c.main(AppendixCOptions(n=60, json=file))
    assert formula.graphs_per_s == pytest.approx(
        6510, rel=1e-3
    ) and formula.bits_per_s == pytest.approx(1.25e9, rel=1e-2)
    assert paper.graphs_per_s == pytest.approx(formula.graphs_per_s, rel=0.01)
    # The formula takes 4 forward passes for a training step, the cost model 3: forward, and two products of the same size backward.
    bound = 4 / 3 * formula.graphs_per_s
    assert 0.9 < simulated.graphs_per_s / bound <= 1.0, (
        "the busiest device is busy nearly all the time"
    )
    assert formula.device_bytes == 1.28e6
    assert [row["source"] for row in records(file)] == ["paper", "closed form", "simulated"]


@pytest.mark.parametrize(
    "name", ["mnist", "list-reduction", "sentiment", "wikiner", "qm9", "babi15"]
)
def test_every_experiment_can_be_asked_for_all_there_is(name: str) -> None:
    assert parse([name, "--full"]).full
    assert not parse([name]).full


@pytest.mark.nightly
def test_all_there_is_means_the_papers_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, kind, hidden, keep in (
        ({}, "tai", 150, 0.5),
        ({"full": True}, "fold", 300, 0.75),
        ({"full": True, "cell": "tai", "hidden": 7, "keep": 1.0}, "tai", 7, 1.0),
    ):
        cells = sentiment.chosen_cells(SentimentOptions(**given))
        assert cells.kind == kind
        assert cells.embedding == 300
        assert cells.hidden == hidden
        assert cells.keep == keep
    assert (
        len(sentiment.tasks(SentimentOptions(synthetic=True, full=True, n_train=7))(0).train)
        == 1000
    )
    monkeypatch.setattr(qm9, "run", lambda name, options, tasks: options)
    monkeypatch.setattr(qm9, "tasks", lambda options: None)
    asked: list[Any] = []
    for given in ({}, {"epochs": 3}, {"epochs": 40}):
        asked.append(qm9.main(Qm9Options(full=True, **given)))
    assert [options.epochs for options in asked] == [25, 3, 40]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["lists", "trees", "sentences"])
def test_the_embedding_may_lie_in_a_table_in_host_memory(name: str) -> None:
    own: dict[str, Any] = {
        "lists": lambda **given: list_reduction.tasks(
            ListReductionOptions(n_train=200, n_valid=10, hidden=4, **given)
        ),
        "trees": lambda **given: sentiment.tasks(
            SentimentOptions(
                synthetic=True,
                n_train=4,
                embedding=4,
                hidden=3,
                **given,
            )
        ),
        "sentences": lambda **given: wikiner.tasks(
            WikinerOptions(synthetic=True, n_train=60, n_valid=5, **given)
        ),
    }
    dense, hosted = (own[name](table=table)(0) for table in (False, True))
    (host_table,) = (
        node.table for node in hosted.graph.parameterised.values() if node.table is not None
    )
    assert set(dense.graph.parameterised) == set(hosted.graph.parameterised)
    embed = amp.Trainer(dense.graph, dense.tx, settings=dense.settings).params["embed"]
    assert host_table.dense().shape == embed.shape
    interval = []
    for task in (dense, hosted):
        interval.append(task.graph.parameterised["embed"].options.min_update_interval)
    assert interval[0] == interval[1]


@pytest.mark.nightly
@pytest.mark.parametrize("copies", [1, 2])
def test_list_reduction_learns_with_its_embedding_in_a_table(copies: int, tmp_path: Path) -> None:
    sizes: dict[str, Any] = {
        "n_train": 1000,
        "n_valid": 100,
        "hidden": 32,
        "epochs": 3,
        "batch_size": 10,
    }

    def run(table: bool) -> History:
        options = ListReductionOptions(
            **sizes, copies=copies, workers=copies, out=tmp_path, table=table
        )
        return list_reduction.main(options)[0]

    dense = run(False)
    hosted = run(True)
    assert hosted[-1].train["loss"] == pytest.approx(dense[-1].train["loss"], rel=0.1)


@pytest.mark.nightly
def test_few_sentences_have_no_frequent_word() -> None:
    task = wikiner.tasks(WikinerOptions(synthetic=True, n_train=1, n_valid=1))(0)
    assert amp.Trainer(task.graph).params["embed"].shape[0] == 1


def test_permutations_replicas_are_made() -> None:
    task = permutation.tasks(
        PermutationOptions(
            n_train=8,
            n_valid=2,
            operations=2,
            hidden=4,
            replicas=2,
        )
    )(0)
    assert {"operation1/0", "operation1/1"} <= set(task.graph.parameterised)


@pytest.mark.long
def test_permutations_are_learned_with_the_settings_that_users_get(tmp_path: Path) -> None:
    (history,) = permutation.main(PermutationOptions(out=tmp_path))
    assert history.best("accuracy") >= 0.97 and len(history) <= 5


@pytest.mark.nightly
def test_figure_5b_has_a_point_for_each_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = {
        "n_train": 60,
        "n_valid": 20,
        "batch_size": 10,
        "hidden": 4,
        "epochs": 1,
        "max_dispatch_size": 2,
    }
    options = Figure5bOptions(
        **sizes,
        max_active_keys=(1, 3),
        min_update_interval=(6,),
        flops=1e12,
        out=tmp_path,
    )
    rows = figure5b.main(options)
    assert list(rows) == [(1, 6), (3, 6)]
    assert rows[3, 6].speed[0] > rows[1, 6].speed[0]
    assert rows[1, 6].seconds == [float("inf")], "60 sequences teach nothing"
    assert_png(tmp_path / "figure5b.png")
    assert records(tmp_path / "3-6" / "history.jsonl")[0]["max_active_keys"] == 3
    assert "not reached" in capsys.readouterr().out


def test_babi15_has_enough_fresh_samples() -> None:
    questions, train, valid = babi15.data(
        Babi15Options(epochs=7, n_train=10, n_valid=30),
        0,
    )
    assert len(train) == 10
    assert len(valid) == 30
    assert len(questions) == 8 * 10 + 30


def test_intervals_are_what_a_batch_brings() -> None:
    rows = {
        "edge0": 30.0,
        "edge1": 0.01,
        "unknown": 0.0,
        "update/0": 40.0,
        "update/1": 32.0,
    }
    assert intervals(rows, 10) == {
        "edge0": 300,
        "edge1": 1,
        "unknown": 10,
        "update/0": 720,
        "update/1": 720,
    }


@pytest.mark.nightly
def test_virtual_replicas_write_rows_and_pictures(tmp_path: Path) -> None:
    options = VirtualOptions(
        replicas=(1, 2),
        max_active_keys=(4,),
        n=1000,
        json=tmp_path / "v.jsonl",
        out=tmp_path,
    )
    rows = virtual.main(options)
    assert records(tmp_path / "v.jsonl") == rows
    assert rows[0]["ratio"] == 1 and rows[1]["ratio"] > 1.5
    assert_png(tmp_path / "gantt-2.png")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (
            lambda t: list_reduction.main(small(t, learning_rate=0.0)),
            "--learning-rate: expected more than 0",
        ),
        (lambda t: list_reduction.main(small(t, batch_size=0)), "batch_size"),
        (
            lambda t: mnist.main(MnistOptions(synthetic=True, learning_rate=-1, out=t)),
            "--learning-rate",
        ),
        (lambda t: virtual.main(VirtualOptions(flops=0)), "numbers above 0"),
        (
            lambda t: wikiner.main(WikinerOptions(synthetic=True, learning_rate=0.0, out=t)),
            "--learning-rate",
        ),
        (lambda t: wikiner.main(WikinerOptions(synthetic=True, n_train=0, out=t)), "n_train"),
        (lambda t: wikiner.main(WikinerOptions(synthetic=True, replicas=0, out=t)), "replicas"),
        (
            lambda t: qm9.main(Qm9Options(synthetic=True, batch=0, out=t)),
            "--batch: expected more than 0",
        ),
        (
            lambda t: qm9.main(Qm9Options(synthetic=True, hidden=5, out=t)),
            "at least the 11 features",
        ),
        (
            lambda t: babi15.main(Babi15Options(learning_rate=0, out=t)),
            "--learning-rate: expected more than 0",
        ),
        (lambda t: babi15.main(Babi15Options(nodes=8, fold=11, out=t)), "--fold: expected 1 to 10"),
        (
            lambda t: sentiment.main(SentimentOptions(synthetic=True, hidden=0, out=t)),
            "sizes of at least 1",
        ),
        (
            lambda t: sentiment.main(SentimentOptions(synthetic=True, keep=0.0, out=t)),
            "0 < keep <= 1",
        ),
        (
            lambda t: figure5b.main(Figure5bOptions(max_active_keys=(), out=t)),
            "--max-active-keys: expected more than 0",
        ),
        (
            lambda t: figure5b.main(Figure5bOptions(min_update_interval=(2, 2), out=t)),
            "--min-update-interval: expected diff",
        ),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, call: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        call(tmp_path)


def test_the_command_line_reads_shared_options_and_several_seeds() -> None:
    options = parse(
        [
            "list-reduction",
            "--seed",
            "0",
            "1",
            "2",
            "--max-active-keys",
            "4",
            "--min-update-interval",
            "12",
            "--mode",
            "pipeline",
            "--json",
            "a.jsonl",
        ]
    )
    assert isinstance(options, ListReductionOptions)
    assert (
        options.seed == (0, 1, 2)
        and options.min_update_interval == 12
        and options.json == Path("a.jsonl")
    )
    assert isinstance(parse(["mnist", "--synthetic"]), MnistOptions)
    assert parse(["bench", "engine", "--sizes", "1", "8"]).sizes == (1, 8)
    for name in ("sentiment", "wikiner", "qm9", "babi15"):
        assert parse(["bench", name, "--batch", "4", "8"]).batch == (4, 8)


def test_a_mistake_is_told_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list-reduction", "--out", str(tmp_path), "--policy", "fifo"]) == 2
    assert "error: setting `policy`: expected one of" in capsys.readouterr().err


def test_a_run_that_was_ended_by_ctrl_c_tells_so_by_its_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for interrupted, status in ((False, 0), (True, 130)):
        monkeypatch.setattr(
            list_reduction, "main", lambda _, ended=interrupted: [History(interrupted=ended)]
        )
        assert main(["list-reduction"]) == status


def test_what_is_interrupted_before_an_epoch_has_ended_writes_nothing_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Executor, "warm", interrupted)
    (history,) = list_reduction.main(small(tmp_path))
    told = capsys.readouterr().out
    assert (
        history.interrupted
        and "interrupted" in told
        and "no epoch has ended, so nothing was written" in told
    )
    assert not list((tmp_path / "out").iterdir())
    assert not (tmp_path / "epochs.jsonl").read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_experiment_tells_what_it_does_and_can_be_run(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parse([*name.split(), "--help"])
    assert (
        stop.value.code == 0 and f"usage: python -m experiments {name} " in capsys.readouterr().out
    )
    assert callable(COMMANDS[name].main)


@pytest.mark.nightly
def test_nothing_is_said_when_nobody_reads_on() -> None:
    """As in `python -m experiments --help | head -1`."""
    ours = subprocess.Popen(
        [sys.executable, "-m", "experiments", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert ours.stdout is not None and ours.stderr is not None
    ours.stdout.close()
    assert ours.stderr.read() == "" and ours.wait() == 141


def test_help_lists_all_experiments_with_a_line_or_two_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    lines: Counter[str] = Counter()
    for arguments in (["--help"], ["bench", "--help"]):
        with pytest.raises(SystemExit):
            parse(arguments)
        name = ""
        for line in capsys.readouterr().out.partition("subcommands")[2].splitlines():
            if "•" in line:
                name = " ".join([*arguments[:-1], line.partition("•")[2].split()[0]])
            if name and line.strip(" │╰─╯"):
                lines[name] += 1
    assert set(lines) == {*COMMANDS, "bench"}
    assert {name: n for name, n in lines.items() if n > 2} == {}


def test_an_unknown_option_or_mode_ends_with_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["list-reduction", "--mak", "3"],
        ["list-reduction", "--mode", "fast"],
        ["no-such-thing"],
    ):
        with pytest.raises(SystemExit) as stop:
            parse(arguments)
        assert stop.value.code == 2
    capsys.readouterr()
