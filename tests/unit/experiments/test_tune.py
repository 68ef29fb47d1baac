"""`python -m experiments tune`: the models' choices, and tuning beside a grid search on a tiny one."""

import json
import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.console import Console

from ampjax.errors import DataError, SettingsError
from ampjax.tuning.candidate import Candidate
from ampjax.tuning.search_space import candidates
from experiments import tune
from experiments.__main__ import parse
from experiments.grid_search import GRIDS, pairs
from experiments.list_reduction import ListReductionOptions
from experiments.tune import MODELS, TuneOptions, main


def test_the_command_line():
    options = parse(["tune", "qm9", "--budget", "30", "--steps", "tune", "plain-grid"])
    assert options == TuneOptions(name="qm9", budget=30.0, steps=("tune", "plain-grid"))


@pytest.mark.parametrize("name", MODELS)
def test_every_choice_of_a_model_can_be(name):
    assert len(candidates(MODELS[name].space, {})) > 1


def test_mistakes_are_told():
    with pytest.raises(SettingsError, match="--budget: expected more than 0, and finite, got 0"):
        main(TuneOptions(name="mnist", budget=0))
    with pytest.raises(
        SettingsError, match="--n-train: expected a model with such an option, got mnist"
    ):
        main(TuneOptions(name="mnist", synthetic=True, n_train=10))


@pytest.mark.slow
@pytest.mark.nightly
def test_tuning_and_a_grid_search_choose_among_the_same(tmp_path, monkeypatch):
    space = {
        "max_active_keys": (1, 2),
        "max_dispatch_size": (2,),
        "batch": (1, 2),
        "policy": ("largest",),
        "min_admission": (1,),
    }
    small = ListReductionOptions(n_train=400, n_valid=100, hidden=16, batch_size=10)
    monkeypatch.setitem(
        tune.MODELS,
        "list-reduction",
        replace(MODELS["list-reduction"], options=small, space=space),
    )
    console = Console(record=True, width=120)
    options = TuneOptions(
        name="list-reduction",
        target=0.18,
        budget=300,
        steps=("tune", *GRIDS, "pairs"),
        repeats=1,
        epochs=30,
        out=tmp_path,
    )
    found = main(options, console)
    if found:
        in_mode = Counter(one.settings.get("mode", "async") for one in found.candidates)
    else:
        in_mode = Counter()
    assert found is not None
    assert found.is_reached
    assert in_mode == {"async": 4, "pipeline": 4}
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "tuned.jsonl",
        *(f"{kind}.jsonl" for kind in GRIDS),
        "compared.jsonl",
        "front.png",
        "epochs.png",
    }
    assert "tuned over" in console.export_text()
    grids = {}
    for kind in GRIDS:
        grids[kind] = (tmp_path / f"{kind}.jsonl").read_text().splitlines()
    records = []
    for lines in grids.values():
        for line in lines:
            records.append(json.loads(line))
    assert len(records) == 16
    assert all(r["search_processor_s"] > 0 for r in records)
    assert any(r["processor_to_target"] for r in records)

    path = tmp_path / "plain-grid.jsonl"
    path.write_text("\n".join(grids["plain-grid"][:-1]) + "\n")
    assert main(replace(options, steps=("plain-grid",))) is None
    again = path.read_text().splitlines()
    assert again[:-1] == grids["plain-grid"][:-1] and len(again) == 8, (
        "the search goes on where it ended"
    )


def test_pairs_show_the_seconds_of_each_run_and_which_did_not_reach_the_target(tmp_path):
    choices = []
    for n in (4, 16):
        choices.append(Candidate({"max_active_keys": n}, {}))
    grid = SimpleNamespace(
        choices=choices,
        seed=0,
        race=lambda different, seed: [2.0, math.inf],
    )
    for name, choice in (("tuned", choices[0]), ("plain-grid", choices[1])):
        (tmp_path / f"{name}.jsonl").write_text(
            json.dumps({**choice.settings, "processor_to_target": 1.0}) + "\n"
        )
    console = Console(record=True, width=120)
    pairs(grid, tmp_path, 1, 2, "some model", console)
    text = console.export_text()
    assert (
        "tuned: 2.00, 2.00\n" in text
        and "plain-grid 1: not reached, not reached\n" in text
        and "inf" not in text
    )


@pytest.mark.nightly
def test_pairs_need_what_earlier_steps_have_written(tmp_path):
    options = TuneOptions(
        name="mnist",
        synthetic=True,
        steps=("pairs",),
        out=tmp_path,
    )
    with pytest.raises(
        DataError,
        match=r"tuned\.jsonl: expected a file that an earlier step has written, got no file",
    ):
        main(options)
    (tmp_path / "tuned.jsonl").write_text(
        json.dumps({"max_active_keys": 4, "max_dispatch_size": 1}) + "\n"
    )
    with pytest.raises(DataError, match="expected records of a grid search, got none"):
        main(options)
    (tmp_path / "plain-grid.jsonl").write_text(json.dumps({"processor_to_target": None}) + "\n")
    with pytest.raises(
        SettingsError, match="--steps: expected a choice that reaches the target, got none"
    ):
        main(options)
    (tmp_path / "plain-grid.jsonl").write_text(json.dumps({"processor_to_target": 1.0}) + "\n")
    with pytest.raises(DataError, match="--steps: expected records of choices that there are"):
        main(options)
