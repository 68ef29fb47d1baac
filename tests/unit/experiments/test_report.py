"""The tables of results: what is counted as a run, as reached, and as time."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ampjax.errors import DataError, SettingsError
from experiments import report
from experiments.__main__ import parse
from experiments.common import changed
from experiments.list_reduction import ListReductionOptions
from experiments.report import ReportOptions


def write(
    path: Path,
    accuracies: list[float],
    *,
    seed: int = 0,
    keys: int = 4,
    **more: Any,
) -> None:
    with path.open("a") as file:
        for epoch, accuracy in enumerate(accuracies, 1):
            record = {
                "experiment": "e",
                "mode": "async",
                "max_active_keys": keys,
                "options": {},
                "seed": seed,
                "epoch": epoch,
            }
            speed = {
                "train_per_s": 50.0,
                "valid_per_s": 10.0,
                "n_train": 100,
                "n_valid": 20,
                "staleness_mean": 1.0,
            }
            file.write(
                json.dumps({**record, **speed, "target": 0.9, "valid_accuracy": accuracy, **more})
                + "\n"
            )


def test_medians_over_seeds(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    write(file, [0.5, 0.91], seed=0)
    write(file, [0.5, 0.6, 0.95], seed=1)
    write(file, [0.5, 0.6, 0.7], seed=2)
    write(file, [0.99], keys=16, options={"replicas": 2})
    first, second = report.main(ReportOptions(files=(file,)))
    assert first.setting == ("e", "async", 4, "") and second.setting == (
        "e",
        "async",
        16,
        "replicas=2",
    )
    assert first.epochs == [2, 3, np.inf]
    assert first.best == [0.91, 0.95, 0.7]
    assert first.seconds == [8, 12, np.inf], "an epoch: 100 at 50/s and 20 at 10/s"
    assert first.speed == (50, 10) and second.epochs == [1]


def test_another_target(tmp_path: Path) -> None:
    write(tmp_path / "runs", [0.5, 0.91])
    (row,) = report.main(
        ReportOptions(
            files=(tmp_path / "runs",),
            target=0.5,
        )
    )
    assert row.epochs == [1]


def test_errors_fall(tmp_path: Path) -> None:
    records = []
    for n, error in ((1, 3.0), (2, 2.0), (3, 2.5)):
        records.append({"valid_error": error, "target": 2.0, "epoch": n})
    common = {
        "train_per_s": 1.0,
        "valid_per_s": 1.0,
        "n_train": 1,
        "n_valid": 1,
        "staleness_mean": 0.0,
    }
    row = report.summarise(
        ("e", "sync", 1, ""),
        {0: [{**common, **record} for record in records]},
    )
    assert row.metric == "error"
    assert row.epochs == [2]
    assert row.best == [2.0]


def test_the_last_run_of_a_seed_counts(tmp_path: Path) -> None:
    write(tmp_path / "runs", [0.1, 0.2, 0.95])
    write(tmp_path / "runs", [0.92])
    (row,) = report.main(ReportOptions(files=(tmp_path / "runs",)))
    assert row.epochs == [1] and row.best == [0.92]


def test_it_is_markdown(tmp_path: Path) -> None:
    write(tmp_path / "runs", [0.9512], seed=0)
    write(tmp_path / "runs", [0.5], seed=1)
    console = Console(width=240, record=True)
    report.main(ReportOptions(files=(tmp_path / "runs",)), console)
    header, rule, row = [
        line.strip() for line in console.export_text().splitlines() if line.strip()
    ]
    assert header.startswith("| experiment") and set(rule) <= set("|-: ")
    cells = []
    for cell in row.strip("|").split("|"):
        cells.append(cell.strip())
    assert cells == [
        "e",
        "async",
        "4",
        "",
        "2",
        "— (1, —)",
        "not reached",
        "72.56 %, 31.90",
        "50",
        "10",
        "1.0",
    ]


def test_a_picture_of_one_experiment(tmp_path: Path) -> None:
    write(tmp_path / "runs", [0.5, 0.91], keys=1)
    write(tmp_path / "runs", [0.95], keys=8)
    report.main(ReportOptions(files=(tmp_path / "runs",), plot=tmp_path / "front.png"))
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")
    write(tmp_path / "runs", [0.95], experiment="another")
    with pytest.raises(
        SettingsError, match=r"--plot: expected runs of one experiment on the same data"
    ):
        report.main(ReportOptions(files=(tmp_path / "runs",), plot=tmp_path / "front.png"))


def test_points_are_joined_along_what_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figure 5a: more and more in flight. Figure 5b: longer and longer intervals."""
    drawn: list[dict[str, list[Any]]] = []
    monkeypatch.setattr(
        report,
        "front",
        lambda series, *_: drawn.append(series),
    )
    write(
        tmp_path / "runs",
        [0.95],
        min_update_interval=100,
        options={"min_update_interval": 100, "cell": "tai"},
    )
    for keys in (4, 16):
        write(
            tmp_path / "runs",
            [0.5, 0.95],
            keys=keys,
            min_update_interval=50,
            options={"cell": "tai"},
        )
    for by in ("max-active-keys", "min-update-interval"):
        report.main(ReportOptions(files=(tmp_path / "runs",), plot=tmp_path / "front.png", by=by))  # type: ignore[arg-type]
    lines = []
    for series in drawn:
        lines.append(
            {name: [(p.label, p.epochs) for p in points] for name, points in series.items()}
        )
    assert lines == [
        {
            "async cell=tai": [("4", 2), ("16", 2)],
            "async min_update_interval=100 cell=tai": [("4", 1)],
        },
        {
            "async max_active_keys=4 cell=tai": [("50", 2), ("100", 1)],
            "async max_active_keys=16 cell=tai": [("50", 2)],
        },
    ]


@pytest.mark.parametrize("line", ["{", "{}", "[]", '{"experiment": "e"}'])
def test_what_is_no_record_is_told(tmp_path: Path, line: str) -> None:
    write(tmp_path / "runs", [0.5])
    with (tmp_path / "runs").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match=r"runs, line 2: expected an epoch"):
        report.main(ReportOptions(files=(tmp_path / "runs",)))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        report.main(parse(["report", str(tmp_path / "none")]))


def test_at_least_one_file_is_needed() -> None:
    with pytest.raises(SettingsError, match="report: expected at least one file"):
        report.main(parse(["report"]))


def test_changed_options() -> None:
    assert changed(
        ListReductionOptions(
            seed=(3,),
            replicas=2,
            out=Path("x"),
            max_active_keys=4,
        )
    ) == {"replicas": 2}
