"""Discarding late gradients biases training where labels go with costs; late admission does not."""

import json

import pytest

from ampjax.errors import SettingsError
from experiments import admission
from experiments.admission import AdmissionOptions


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("admission")
    options = AdmissionOptions(
        bound=(4,),
        examples=400,
        rate=0.05,
        seed=(0,),
        json=folder / "a.jsonl",
        out=folder,
    )
    records = admission.main(options)
    written = []
    for line in (folder / "a.jsonl").read_text().splitlines():
        written.append(json.loads(line))
    assert written == records
    assert (folder / "admission.png").stat().st_size > 10_000
    return {record["way"]: record for record in records}


def test_discarding_trains_on_the_fast_class(records):
    discarded = records["discarded"]
    assert discarded["most_stale"] <= 4 < records["none"]["most_stale"]
    assert discarded["dropped"] > 0.4
    assert discarded["share"] < 0.35


def test_late_admission_trains_on_all(records):
    held = records["held back"]
    assert held["most_stale"] <= 4
    assert held["dropped"] == 0
    assert held["share"] == pytest.approx(0.5, abs=0.1)
    assert records["none"]["share"] == pytest.approx(0.5, abs=0.1)


def test_classes_have_their_share():
    data = admission.examples(40, 0.25, seed=0)
    assert sum(float(example["label"].payload[0]) for example in data) == 10


def test_mistakes():
    with pytest.raises(SettingsError, match="bound 0"):
        admission.main(AdmissionOptions(bound=(0,)))
