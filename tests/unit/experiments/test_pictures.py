"""The pictures of the README and of the documentation can be made anew."""

import pytest

from experiments.example_shapes import example_shapes
from experiments.pictures import (
    WAYS,
    graph_after_a_run,
    looks,
    on_hosts,
    schedules,
    updates_of_a_run,
)

pytestmark = pytest.mark.nightly


def test_schedules(tmp_path):
    schedules(tmp_path / "schedules.svg")
    text = (tmp_path / "schedules.svg").read_text(encoding="utf-8")
    assert all(name in text for name in WAYS)
    assert text.count("worker 3") == len(WAYS)


@pytest.mark.nightly
def test_the_graph_after_a_run(tmp_path):
    graph_after_a_run(tmp_path / "graph.svg", n=3, max_dispatch_size=1)
    text = (tmp_path / "graph.svg").read_text(encoding="utf-8")
    assert ">3 messages<" in text and "→" in text


def test_looks_at_a_run(tmp_path):
    looks(tmp_path / "usage.svg", tmp_path / "staleness.svg", n=20)
    assert "starved" in (tmp_path / "usage.svg").read_text(encoding="utf-8")
    assert "staleness" in (tmp_path / "staleness.svg").read_text(encoding="utf-8")


def test_updates_of_a_run(tmp_path):
    updates_of_a_run(tmp_path / "lineage.svg", n=20)
    assert "linear1: " in (tmp_path / "lineage.svg").read_text(encoding="utf-8")


def test_hosts(tmp_path):
    on_hosts(tmp_path / "hosts.svg", tmp_path / "traffic.svg", width=10, kind="threads")
    assert all(
        name in (tmp_path / "hosts.svg").read_text(encoding="utf-8")
        for name in ("host0", "host1", "worker 3")
    )
    assert "driver" in (tmp_path / "traffic.svg").read_text(encoding="utf-8")


def test_what_an_example_may_be(tmp_path):
    example_shapes(tmp_path)
    assert len(list(tmp_path.glob("*.svg"))) == 3
