"""`python -m experiments sequences`: a small run of each model in both ways, and what is refused."""

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from ampjax.errors import SettingsError
from experiments.__main__ import parse
from experiments.sequences.driver import SequencesOptions, main
from experiments.sequences.subjects import Name, make_subject

SMALL: dict[str, Any] = {
    "vocabulary": 12,
    "units": 4,
    "max_length": 3,
    "n_train": 12,
    "n_valid": 6,
    "batch": 4,
}


def test_every_model_can_be_named() -> None:
    for name in get_args(Name):
        options = parse(["sequences", name, "--mode", "async", "--max-active-keys", "8"])
        assert (
            options.name,
            options.settings()["max_active_keys"],
            options.settings()["min_admission"],
        ) == (
            name,
            8,
            8,
        )


@pytest.mark.slow
def test_both_ways_see_the_same_sentences() -> None:
    """The batches hold what the instances hold, and padding; its share is counted."""
    options = SequencesOptions(name="lm", n_buckets=1, **SMALL)
    subject = make_subject("lm", options, None, True, 0)
    rows = []
    for batch in subject.batches(0):
        for row, n in zip(
            batch["targets"],
            batch["length"],
            strict=True,
        ):
            if n:
                rows.append(row[:n].tolist())
    instances = []
    for i in range(12):
        instances.append(subject.train[i]["targets"].tolist())
    assert sorted(rows) == sorted(instances)
    n_places = sum(batch["targets"].size for batch in subject.batches(0))
    assert subject.padding == pytest.approx(1 - sum(map(len, rows)) / n_places)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.parametrize("name", get_args(Name))
def test_a_run_scores_both_ways_alike(
    name: Name, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one update after all sentences, both ways take the same step of Adam, but for a gradient of almost 0."""
    small = {**SMALL, "batch": 12, "n_buckets": 1, "learning_rate": 1e-3}
    records = main(
        SequencesOptions(
            name=name,
            epochs=1,
            synthetic=True,
            json=tmp_path / "x.jsonl",
            **small,
        )
    )
    assert records == [json.loads(line) for line in (tmp_path / "x.jsonl").read_text().splitlines()]
    graph, runner = records
    assert (graph["way"], runner["way"]) == ("graph", "runner")
    assert graph["perplexity"] == pytest.approx(runner["perplexity"], rel=1e-3)
    assert ("bleu" in graph) == (name == "nmt")
    assert "words are padding" in capsys.readouterr().out


def test_mistakes_are_named() -> None:
    with pytest.raises(
        SettingsError, match="--learning-rate: expected more than 0, and finite, got -1"
    ):
        main(SequencesOptions(name="lm", learning_rate=-1))
    with pytest.raises(SettingsError, match="`epochs`: expected an integer of at least 1, got 0"):
        main(SequencesOptions(name="lm", epochs=0))
    with pytest.raises(SettingsError, match="--max-active-keys: expected a batch, 32, got 8"):
        SequencesOptions(name="lm", max_active_keys=8).settings()
    with pytest.raises(SettingsError, match="at least one seed"):
        main(SequencesOptions(name="lm", seed=()))
