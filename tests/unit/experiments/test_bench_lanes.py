"""The bench of lanes: forms of a work agree, and a run measures every form."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from ampjax.errors import SettingsError
from experiments.bench.lanes import driver
from experiments.bench.lanes.driver import LanesBench


def test_a_run_measures_all_forms(tmp_path: Path) -> None:
    console = Console(record=True, width=100)
    options = LanesBench(
        work=("loops-uniform",), rounds=1, size=0.005, json=tmp_path / "lanes.jsonl"
    )
    (row,) = driver.main(options, console)
    assert json.loads((tmp_path / "lanes.jsonl").read_text()) == row
    assert row["elements"] == 5
    assert row["to_best"] <= row["to_vmap"]
    assert row["rows"] <= row["rows_vmap"]
    assert "loops-uniform" in console.export_text()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "work",
    [
        "loops-equal",
        "loops-lognormal",
        "loops-one-long",
        "loop-in-a-loop",
        "early-exit-128",
        "lbfgs",
    ],
)
def test_all_forms_agree(work: str) -> None:
    driver.main(LanesBench(work=(work,), rounds=1, size=0.01), Console(quiet=True))


def test_unknown_works_are_refused() -> None:
    with pytest.raises(SettingsError, match="bench lanes: expected works of loops-equal"):
        driver.main(LanesBench(work=("loop",)))
