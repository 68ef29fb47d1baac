"""`python -m experiments tune`: the models' choices, and tuning beside a grid search on a tiny one."""

from dataclasses import replace

import pytest
from rich.console import Console

from ampjax.errors import SettingsError
from ampjax.tuning.search_space import candidates
from experiments import tune
from experiments.__main__ import parse
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
    with pytest.raises(SettingsError, match="--n-train: expected a model with such an option, got mnist"):
        main(TuneOptions(name="mnist", synthetic=True, n_train=10))


@pytest.mark.slow
@pytest.mark.full
def test_tuning_and_a_grid_search_choose_among_the_same(tmp_path, monkeypatch):
    space = {
        "max_active_keys": (1, 2),
        "max_dispatch_size": (2,),
        "batch": (1, 2),
        "policy": ("largest",),
        "min_admission": (1,),
    }
    small = ListReductionOptions(n_train=400, n_valid=100, hidden=8, batch_size=10)
    monkeypatch.setitem(tune.MODELS, "list-reduction", replace(MODELS["list-reduction"], options=small, space=space))
    console = Console(record=True, width=120)
    found = main(
        TuneOptions(name="list-reduction", target=0.15, budget=300, grid=True, repeats=1, out=tmp_path), console
    )
    assert found.is_reached and len(found.candidates) == 4
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"tuned.jsonl", "grid.jsonl", "compared.jsonl", "front.png", "epochs.png"}
    assert len((tmp_path / "grid.jsonl").read_text().splitlines()) == 4
    assert "tuned over grid" in console.export_text()
