"""Experiments by whole batches: settings, refused options, and a run beside the same one through messages."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ampjax as amp
from ampjax.errors import SettingsError
from experiments import babi15, intervals, list_reduction
from experiments.babi15 import Babi15Options
from experiments.list_reduction import ListReductionOptions
from experiments.wikiner import WikinerOptions


def small(folder: Path, **options: Any) -> ListReductionOptions:
    given: dict[str, Any] = {
        "mode": "batch",
        "out": folder / "out",
        "json": folder / "epochs.jsonl",
        "single": True,
        "n_train": 200,
        "n_valid": 100,
        "hidden": 8,
        "epochs": 2,
        "max_active_keys": 16,
    }
    return ListReductionOptions(**{**given, **options})


def test_an_experiments_choices_about_messages_are_left_out() -> None:
    options = WikinerOptions(
        mode="batch",
        max_active_keys=8,
        group_by_size=2,
    )
    assert options.settings(3, 50, gradient="sum") == amp.Settings(
        mode="batch",
        max_active_keys=8,
        group_by_size=2,
        gradient="sum",
        compile_ahead=True,
        seed=3,
    )


@pytest.mark.slow
@pytest.mark.first_case
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"policy": "largest"}, "setting `policy`: expected its default: there are no messages"),
        ({"min_update_interval": 9}, "setting `min_update_interval`: expected its default"),
        ({"workers": 2}, "setting `workers`: expected its default"),
        ({"copies": 3}, "node `embed`: expected one copy, got several"),
        ({"table": True}, "node `embed`: expected parameters in arrays"),
        ({"hosts": 2}, "`hosts`: expected none, got"),
        ({"flops": 1e12}, "`cost`: expected none, got"),
    ],
)
def test_what_a_user_asks_of_messages_is_refused(
    options: dict[str, Any], text: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=f"mode='batch', {text}"):
        list_reduction.main(small(tmp_path, **options))
    assert not (tmp_path / "out" / "history.jsonl").exists()


def test_every_node_updates_after_each_batch(tmp_path: Path) -> None:
    options = small(tmp_path)
    task = list_reduction.tasks(options)(0)
    updates = intervals.updates_per_instance(task.graph, task.train, task.settings)
    assert updates == dict.fromkeys(["embed", "linear1", "linear2"], 1 / 16)
    same = intervals.update_together(
        task.graph,
        task.train,
        task.settings,
        options,
        9,
        "linear1",
    )
    assert same == task.settings


@pytest.mark.nightly
def test_a_run_is_that_of_rounds_of_messages(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = small(tmp_path)
    list_reduction.main(options)
    told = capsys.readouterr().out.replace("\n", "")
    assert "seed 0, batch, 16 examples a batch" in told
    assert told.endswith(f"history and convergence plot are in {tmp_path / 'out'}")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {
        "history.jsonl",
        "convergence.png",
    }
    list_reduction.main(
        small(
            tmp_path,
            mode="pipeline",
            out=tmp_path / "through",
        )
    )
    lines = []
    for line in (tmp_path / "epochs.jsonl").read_text().splitlines():
        lines.append(json.loads(line))
    assert [(record["mode"], record["epoch"]) for record in lines] == [
        ("batch", 1),
        ("batch", 2),
        ("pipeline", 1),
        ("pipeline", 2),
    ]
    for own, through in zip(
        lines[:2],
        lines[2:],
        strict=True,
    ):
        assert list(own) == list(through)
        assert own["messages"] == 0
        assert own["updates"] == through["updates"]
        for name in ("train_loss", "valid_loss", "train_accuracy", "valid_accuracy"):
            np.testing.assert_allclose(
                own[name],
                through[name],
                rtol=1e-4,
            )


@pytest.mark.nightly
def test_each_epoch_has_fresh_questions(tmp_path: Path) -> None:
    options = Babi15Options(
        mode="batch",
        steps=1,
        n_train=40,
        n_valid=20,
        epochs=2,
        max_active_keys=10,
        out=tmp_path,
    )
    (history,) = babi15.main(options)
    assert [epoch.updates > 0 for epoch in history.epochs] == [True, True]
    assert history[1].valid["loss"] < history[0].valid["loss"]
