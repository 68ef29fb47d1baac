"""Traces in Perfetto's format, read by `support.perfetto`."""

import json

import pytest
from support import perfetto, runs

from ampjax.trace.trace import Trace
from ampjax.trace.trace_records import KINDS, REASONS, Slice
from ampjax.viz.perfetto import QUEUES, STALENESS, to_perfetto


@pytest.mark.first_case
@pytest.mark.parametrize("mode", ["sync", "pipeline", "async"])
@pytest.mark.parametrize("model", [runs.rnn, runs.trees])
def test_another_reader_finds_nothing_wrong(tmp_path, model, mode):
    _, trace = model(mode)
    slices, flows, counters = perfetto.read(to_perfetto(trace, tmp_path / "new" / "run.json"))
    worked = [s for s in slices if s["cat"] in KINDS]
    assert len(worked) == len(trace)
    assert {s["cat"] for s in slices} <= {*KINDS, "wait"}
    assert any(s["cat"] == "wait" for s in slices)
    assert sum(s["dur"] for s in worked) == sum(s.duration_ns for s in trace)
    assert flows
    assert {name for pid, name in counters if pid == STALENESS} == {s.node for s in trace.staleness}
    assert {name for pid, name in counters if pid == QUEUES} == {
        name for s in trace.queues for name, *_ in s.queues
    }


@pytest.mark.parametrize("model", [runs.rnn, runs.trees])
def test_arrows_go_from_an_instances_forward_pass_to_its_backward_pass_at_the_same_node(
    tmp_path, model
):
    _, trace = model()
    _, flows, _ = perfetto.read(to_perfetto(trace, tmp_path / "run.json"))
    for (start, there), (_, back) in flows:
        instance = int(start["name"].removeprefix("instance "))
        fits = []
        for a in there:
            for b in back:
                if (
                    a["cat"] == "forward"
                    and b["cat"] == "backward"
                    and a["args"]["node"] == b["args"]["node"]
                ):
                    fits.append((a, b))
        assert any(
            instance in a["args"]["instances"] and instance in b["args"]["instances"]
            for a, b in fits
        )
    assert len(flows) == sum(len(s.instances) for s in trace if s.kind == "backward")


def test_in_a_loop_the_last_pass_comes_back_first(tmp_path):
    slices = []
    for i, kind in enumerate(["forward"] * 3 + ["backward"] * 3):
        slices.append(
            Slice(
                0,
                "f",
                kind,
                10 * i,
                10 * i + 9,
                (7,),
            )
        )
    _, flows, _ = perfetto.read(to_perfetto(Trace(slices), tmp_path / "run.json"))
    assert [(start["ts"], end["ts"]) for (start, _), (end, _) in flows] == [
        (20, 30),
        (10, 40),
        (0, 50),
    ]


def test_a_slice_tells_what_was_in_it(tmp_path):
    trace = Trace(
        [
            Slice(
                3,
                "a",
                "forward",
                1_000,
                3_500,
                (4, 5),
                rows=6,
                messages=2,
            )
        ]
    )
    (found,), _, _ = perfetto.read(to_perfetto(trace, tmp_path / "run.json"))
    assert found["ts"] == 0
    assert found["dur"] == 2_500
    assert found["name"] == "a"
    assert found["cat"] == "forward"
    assert found["args"] == {
        "node": "a",
        "direction": "forward",
        "messages": 2,
        "rows": 6,
        "instances": [4, 5],
    }


def test_slices_that_overlap_get_tracks_of_their_own(tmp_path):
    trace = Trace(
        [
            Slice(0, "a", "forward", 0, 10),
            Slice(0, "b", "forward", 5, 15),
            Slice(1, "c", "infer", 0, 20),
        ]
    )
    path = to_perfetto(trace, tmp_path / "run.json")
    slices, _, _ = perfetto.read(path)
    assert len({(s["pid"], s["tid"]) for s in slices}) == 3
    names = []
    for e in json.loads(path.read_text())["traceEvents"]:
        if e["name"] == "thread_name":
            names.append(e["args"]["name"])
    assert names == ["worker 0", "worker 0, lane 2", "worker 1"]


def test_waits_fill_what_slices_leave_and_counters_fall_to_zero(tmp_path):
    trace = Trace([Slice(0, "a", "forward", 10, 20)])
    trace.runs.append((0, 40))
    trace.add_wait(0, "join", 5, 15)
    trace.add_wait(0, "starved", 20, 40)
    trace.add_queues(
        0,
        5,
        [("a", "forward", 3), ("a", "backward", 1)],
    )
    trace.add_queues(0, 20, [("a", "backward", 1)])
    trace.add_queues(0, 30, [("a", "backward", 1)])
    slices, _, counters = perfetto.read(to_perfetto(trace, tmp_path / "run.json"))
    assert [(s["name"], s["dur"]) for s in slices] == [("(join)", 5), ("a", 10), ("(starved)", 20)]
    assert all(s["args"]["reason"] in REASONS for s in slices if s["cat"] == "wait")
    changes = []
    for e in counters[QUEUES, "a"]:
        changes.append((e["ts"], e["args"]))
    assert changes == [(0, {"forward": 3, "backward": 1}), (15, {"forward": 0, "backward": 1})]


def test_an_empty_trace_is_a_file_without_events(tmp_path):
    assert perfetto.read(to_perfetto(Trace(), tmp_path / "run.json")) == ([], [], {})
