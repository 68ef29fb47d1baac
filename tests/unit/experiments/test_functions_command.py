"""`python -m experiments functions NAME`: trains a model of a kind of its own, and says whether its target was reached."""

import json
from pathlib import Path
from typing import get_args

import pytest

from experiments.__main__ import parse
from experiments.functions import RECIPES, FunctionsOptions, Name, chance, main


def test_every_model_can_be_named() -> None:
    assert get_args(Name) == tuple(RECIPES)
    for name in RECIPES:
        options = parse(["functions", name, "--epochs", "3"])
        assert options.name == name
        assert options.epochs == 3
        assert options.target == 0.0


@pytest.mark.parametrize("name", RECIPES)
def test_the_most_common_answer_is_far_from_the_target(name: Name) -> None:
    recipe = RECIPES[name]
    assert chance(FunctionsOptions(name=name, n_train=1, n_valid=300)) < recipe.target - 0.2


@pytest.mark.nightly
def test_a_run_says_whether_the_target_was_reached(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = {
        "n_train": 8,
        "n_valid": 8,
        "max_dispatch_size": 1,
        "epochs": 1,
        "out": tmp_path,
    }
    (history,) = main(
        FunctionsOptions(
            name="attention-classifier", target=0.001, json=tmp_path / "x.jsonl", **few
        )
    )
    told = capsys.readouterr().out
    (record,) = [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    assert record["experiment"] == "functions-attention-classifier" and record["target"] == 0.001
    reached = history.best("accuracy") >= 0.001
    assert (
        f"target 0.001 {'reached' if reached else 'not reached'}: {history.best('accuracy'):.4f}"
        in told
    )
    assert "always the most common answer:" in told


@pytest.mark.long
@pytest.mark.parametrize("name", RECIPES)
def test_a_model_reaches_its_target(name: Name, tmp_path: Path) -> None:
    (history,) = main(FunctionsOptions(name=name, out=tmp_path))
    assert history.best("accuracy") >= RECIPES[name].target
