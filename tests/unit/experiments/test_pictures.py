"""The README's pictures can be made anew."""

import pytest

from experiments.pictures import WAYS, graph_after_a_run, schedules

pytestmark = pytest.mark.slow


def test_schedules(tmp_path):
    schedules(tmp_path / "schedules.svg")
    text = (tmp_path / "schedules.svg").read_text(encoding="utf-8")
    assert all(name in text for name in WAYS)
    assert text.count("worker 3") == len(WAYS)


def test_the_graph_after_a_run(tmp_path):
    graph_after_a_run(tmp_path / "graph.svg", n=3, max_dispatch_size=1)
    text = (tmp_path / "graph.svg").read_text(encoding="utf-8")
    assert ">3 messages<" in text and "→" in text
