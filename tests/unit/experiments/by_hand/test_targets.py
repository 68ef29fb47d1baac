"""`python -m experiments by-hand`: functions and graphs by hand are trained alike, to the same target."""

import json
from functools import partial
from pathlib import Path

import pytest

from ampjax.errors import SettingsError
from experiments import list_reduction
from experiments.by_hand import rnn_graph, targets
from experiments.by_hand.targets import ByHandOptions, Forms, forms_of, main
from experiments.data.list_reduction import Buckets, splits


@pytest.mark.parametrize(
    ("wrong", "told"),
    [({"models": ("hope",)}, "models of list-reduction"), ({"seed": ()}, "--seed")],
)
def test_options_that_cannot_be(wrong: dict, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        main(ByHandOptions(**wrong))


def small(target: float, options: ByHandOptions, seed: int) -> Forms:
    """List reduction with a bucket in flight, so that both forms do the same."""
    own = list_reduction.ListReductionOptions(
        n_train=200, n_valid=50, hidden=8, batch_size=20, mode="sync"
    )
    data = []
    for part in splits(200, 50, seed):
        data.append(Buckets(part, 20, 8))
    return forms_of(
        list_reduction.tasks(own)(seed),
        rnn_graph.list_reduction_rnn(8, 20),
        data,
        target,
        3,
    )


@pytest.mark.nightly
def test_both_forms_take_as_many_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    never = 2.0
    at_once = 0.0
    monkeypatch.setattr(
        targets,
        "FORMS",
        {"never": partial(small, never), "at-once": partial(small, at_once)},
    )
    path = tmp_path / "found.jsonl"
    found = main(ByHandOptions(seed=(0, 1), json=path))
    written = []
    for line in path.read_text().splitlines():
        written.append(json.loads(line))
    assert len(written) == len(found) == 8
    assert all(record in found for record in written)
    assert [record["epochs"] for record in found] == [None] * 4 + [1] * 4
    function, by_hand = (
        [r["accuracy"] for r in found if r["form"] == form] for form in ("function", "by hand")
    )
    assert function == by_hand
