import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import runs

from ampjax.errors import DataError, SettingsError
from ampjax.trace.trace import Trace, in_lanes, scale_time
from ampjax.trace.trace_records import KINDS, Slice, Wait

times = st.integers(0, 2**62)
slices = st.builds(
    lambda worker, node, kind, a, b, ids, rows: Slice(worker, node, kind, min(a, b), max(a, b), tuple(ids), rows, len(ids)),
    st.integers(0, 9), st.text(), st.sampled_from(KINDS), times, times, st.lists(st.integers(0, 2**40), max_size=5, unique=True,),
    st.integers(0, 99),
)  # fmt: skip


@pytest.mark.nightly
@settings(max_examples=30)
@given(st.lists(slices, max_size=8))
@pytest.mark.slow
def test_jsonl_round_trip(tmp_path_factory, found):
    path = tmp_path_factory.mktemp("trace") / "folder" / "run.jsonl"
    trace = Trace(found)
    trace.to_jsonl(path)
    again = Trace.from_jsonl(path)
    assert again == trace and again.slices == found
    assert len(path.read_text(encoding="utf-8").splitlines()) >= len(found)


@pytest.mark.nightly
@given(st.lists(slices, min_size=1, max_size=8))
def test_busy_fraction_is_the_union_of_slices(found):
    # Against a count of the elementary intervals between all starts and ends.
    trace = Trace(found)
    marks = sorted({t for s in found for t in (s.start_ns, s.end_ns)})
    for worker, part in trace.busy_fraction().items():
        mine = [s for s in found if s.worker == worker]
        busy = sum(
            b - a
            for a, b in itertools.pairwise(marks)
            if any(s.start_ns <= a and b <= s.end_ns for s in mine)
        )
        assert part == pytest.approx(busy / trace.span_ns if trace.span_ns else 0.0)
    assert set(trace.busy_fraction()) == {s.worker for s in found}


@settings(max_examples=30)
@given(st.lists(slices, max_size=8))
def test_slices_of_a_lane_do_not_overlap(found):
    placed = in_lanes(found)
    assert sorted(map(repr, found)) == sorted(repr(s) for s, _ in placed)
    for (s, lane), (t, other) in itertools.combinations(placed, 2):
        assert (s.worker, lane) != (t.worker, other) or s.end_ns <= t.start_ns


def test_instances_may_be_arrays():
    trace = Trace()
    trace.add(
        np.int64(1),
        "a",
        "forward",
        np.int64(5),
        np.int64(9),
        np.array([3, 4]),
    )
    assert trace.slices == [
        Slice(
            1,
            "a",
            "forward",
            5,
            9,
            (3, 4),
        )
    ]
    assert trace.slices[0].duration_ns == 4
    assert json.dumps(trace.slices[0].instances) == "[3, 4]"


def test_what_is_too_much_is_counted(tmp_path):
    trace = Trace(max_slices=2)
    for i in range(5):
        trace.add(0, "a", "update", i, i + 1)
    assert (len(trace), trace.n_dropped) == (2, 3)
    assert (
        repr(trace)
        == "Trace(2 slices on 1 workers over 2 ns: 2 update; busy 0: 100 %; 3 more not kept)"
    )
    trace.to_jsonl(tmp_path / "t.jsonl")
    assert Trace.from_jsonl(tmp_path / "t.jsonl").n_dropped == 3


def test_all_that_a_trace_holds_comes_back(tmp_path):
    """A run in virtual time has records of every kind."""
    _, trace = runs.rnn()
    assert (
        trace.waits
        and trace.queues
        and trace.staleness
        and trace.histograms
        and trace.runs
        and trace.stages
    )
    trace.to_jsonl(tmp_path / "run.jsonl")
    assert Trace.from_jsonl(tmp_path / "run.jsonl") == trace


def test_files_of_slices_alone_are_still_read(tmp_path):
    """Such as were written before slices told of their rows and messages."""
    old = '{"worker": 1, "node": "a", "kind": "forward", "start_ns": 2, "end_ns": 3, "instances": [4]}\n'
    (tmp_path / "old.jsonl").write_text(old)
    assert Trace.from_jsonl(tmp_path / "old.jsonl").slices == [Slice(1, "a", "forward", 2, 3, (4,))]


def test_an_instance_is_named_once_however_many_of_its_messages_were_there():
    trace = Trace()
    trace.add(
        0,
        "a",
        "forward",
        0,
        1,
        [3, 3, 5, 3],
        rows=4,
        messages=4,
    )
    assert trace.slices == [
        Slice(
            0,
            "a",
            "forward",
            0,
            1,
            (3, 5),
            4,
            4,
        )
    ]


def test_a_wait_of_no_time_is_none():
    trace = Trace()
    trace.add_wait(0, "join", 5, 5)
    assert trace.waits == []


def test_an_empty_trace():
    trace = Trace()
    assert len(trace) == 0
    assert trace.span_ns == 0
    assert trace.busy_fraction() == {}
    assert trace.slices == []
    assert repr(trace) == "Trace(0 slices on 0 workers over 0 ns: nothing; busy none)"


def test_units():
    assert [scale_time(t) for t in (999, 1_000, 2_500_000, 3e9)] == [
        (999, "ns"),
        (1, "us"),
        (2.5, "ms"),
        (3, "s"),
    ]


def test_errors(tmp_path):
    with pytest.raises(
        SettingsError,
        match="slice of `a`, kind: expected one of forward, backward, update, transfer, infer, got 'sleep'",
    ):
        Slice(0, "a", "sleep", 0, 1)
    with pytest.raises(
        SettingsError,
        match="slice of `a`: expected an end that is not before the start, got 2 ns to 1 ns",
    ):
        Slice(0, "a", "update", 2, 1)
    with pytest.raises(
        SettingsError,
        match=r"wait of worker 2, reason: expected one of rows, join, throttled, .*, got 'bored'",
    ):
        Wait(2, "bored", 0, 1)
    with pytest.raises(
        SettingsError, match="wait of worker 2: expected an end that is not before the start"
    ):
        Wait(2, "join", 2, 1)
    with pytest.raises(SettingsError, match="max_slices: expected at least 1, got 0"):
        Trace(max_slices=0)
    with pytest.raises(SettingsError, match="every: expected at least 1, got 0"):
        Trace(every=0)
    with pytest.raises(DataError, match="expected a readable file"):
        Trace.from_jsonl(tmp_path / "none.jsonl")
    path = tmp_path / "bad.jsonl"
    for bad in (
        "{",
        "[]",
        "3",
        '{"worker": 0}',
        '{"worker":0,"node":"a","kind":"sleep","start_ns":0,"end_ns":1,"instances":[]}',
        '{"wait": {"worker": 0, "reason": "bored", "start_ns": 0, "end_ns": 1}}',
        '{"queues": {"worker": 0, "time_ns": 0}}',
        '{"run": [1]}',
        '{"something": 3}',
        "[1]",
        "[" * 100_000,
        '{"n_dropped": Infinity}',
        '{"n_dropped": 1.5}',
        '{"run": [0, 10000000000000000000]}',
        '{"stage": {"name": "a", "nodes": [1]}}',
        '{"histogram": {"node": "a", "rows": ["1"]}}',
        '{"staleness": {"node": "a", "time_ns": 0, "rows": 1, "mean": "1"}}',
        '{"worker":0,"node":"a","kind":"update","start_ns":"0","end_ns":"1","instances":[]}',
        '{"worker":0,"node":"a","kind":"update","start_ns":0,"end_ns":1,"instances":["1"]}',
    ):
        path.write_text(
            '{"worker":0,"node":"a","kind":"update","start_ns":0,"end_ns":1,"instances":[]}\n' + bad
        )
        with pytest.raises(DataError, match="line 2: expected a record of a trace as JSON"):
            Trace.from_jsonl(path)
