"""Where time went, queues, staleness, and the graph after a run: all from one trace."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import runs

from ampjax.errors import SettingsError
from ampjax.trace.trace import Trace
from ampjax.trace.trace_records import QueueSample, Slice, TracedHost
from ampjax.trace.usage import usage
from ampjax.utils.drawing.colours import SLICES, WAITS
from ampjax.viz.graphs.graph_picture import draw
from ampjax.viz.graphs.message_flow import notes_of
from ampjax.viz.queue_lengths import BINS, line_up, queues
from ampjax.viz.staleness_histogram import mean, staleness
from ampjax.viz.traffic import in_bytes, traffic
from ampjax.viz.worker_usage import MEANINGS, time_spent

PICTURES = {"time": time_spent, "queues": queues, "staleness": staleness}


@pytest.mark.first_case
@pytest.mark.parametrize(
    "picture",
    PICTURES.values(),
    ids=PICTURES.keys(),
)
def test_files_are_the_same_each_time_and_notebooks_get_a_png(tmp_path, picture):
    _, trace = runs.rnn()
    for name in ("a.svg", "b.svg"):
        figure = picture(trace, tmp_path / "new" / name, title="a run")
    assert (tmp_path / "new" / "a.svg").read_bytes() == (tmp_path / "new" / "b.svg").read_bytes()
    assert "a run" in (tmp_path / "new" / "a.svg").read_text()
    assert figure._repr_png_()[0].startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "picture",
    PICTURES.values(),
    ids=PICTURES.keys(),
)
def test_mistakes(tmp_path, picture):
    with pytest.raises(SettingsError, match=r"Record a run first|Trace a"):
        picture(Trace())
    with pytest.raises(SettingsError, match=r"ends in \.png"):
        picture(runs.rnn()[1], tmp_path / "x.txt")


@pytest.mark.first_case
@pytest.mark.parametrize(
    "picture",
    [*PICTURES.values(), "graph"],
    ids=[*PICTURES, "graph"],
)
def test_no_text_leaves_the_picture(picture):
    graph, trace = runs.trees()
    if picture == "graph":
        figure = draw(graph, trace=trace)
    else:
        figure = picture(trace, title="a run")
    figure.canvas.draw()
    page = figure.bbox.padded(1.0)
    for axes in figure.axes:
        for text in axes.texts:
            box = text.get_window_extent()
            assert (
                page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 and box.y1 <= page.y1
            ), text


# Where time went


def test_a_bars_parts_are_the_shares_of_time():
    _, trace = runs.trees("pipeline")
    (axes,) = time_spent(trace).axes
    for y, own in enumerate(usage(trace).values()):
        total = sum(own.values())
        widths = []
        for p in axes.patches:
            if abs(p.get_y() + p.get_height() / 2 - y) < 0.1 and p.get_width():
                widths.append(p.get_width())
        assert widths == pytest.approx([100 * part / total for part in own.values()])
        assert sum(widths) == pytest.approx(100)


def test_every_use_has_a_colour_and_a_meaning():
    assert set(MEANINGS) == {*SLICES, *WAITS}


def test_many_workers_still_make_a_picture():
    trace = Trace(Slice(w, "a", "forward", 0, 10 + w) for w in range(300))
    figure = time_spent(trace)
    assert figure.get_size_inches()[1] < 30
    assert len(figure.axes[0].get_yticklabels()) < 300


def test_workers_are_named_with_their_hosts():
    trace = Trace(
        [
            Slice(
                0,
                "a",
                "forward",
                0,
                10,
            ),
            Slice(1, "a", "forward", 0, 10),
        ]
    )
    trace.add_host(TracedHost("left", "", (1,)))
    (axes,) = time_spent(trace).axes
    assert [t.get_text() for t in axes.get_yticklabels()] == ["worker 0", "worker 1 on left"]


# Bytes between hosts


def test_a_cell_for_each_sender_and_receiver(tmp_path):
    trace = Trace()
    sent = {
        ("driver", "h0"): 10,
        ("h0", "driver"): 2_345,
        ("h0", "h1"): 7_000_000,
        ("h1", "h0"): 0,
    }
    for ends, n in sent.items():
        trace.add_traffic(*ends, n)
    figure = traffic(trace, tmp_path / "t.svg", title="two hosts")
    (axes,) = figure.axes
    names = [t.get_text() for t in axes.get_xticklabels()]
    assert names == [t.get_text() for t in axes.get_yticklabels()] == ["driver", "h0", "h1"]
    cells = {}
    for t in axes.texts:
        cells[(names[int(t.get_position()[1])], names[int(t.get_position()[0])])] = t.get_text()
    assert cells == {(a, b): in_bytes(sent.get((a, b), 0)) for a in names for b in names if a != b}
    assert cells["h0", "h1"] == "7 MB"
    assert "two hosts" in (tmp_path / "t.svg").read_text()
    assert (
        axes.images[0].get_array()[1, 2] == 7e6 and axes.images[0].get_array().mask.diagonal().all()
    )


def test_traffic_of_one_process():
    with pytest.raises(
        SettingsError,
        match=r"traffic: expected a trace of a run on hosts, got one of a run in one process\. Trace",
    ):
        traffic(runs.rnn()[1])


# Queues


@settings(max_examples=20)
@given(
    st.lists(
        st.tuples(
            st.integers(1, 30),
            st.integers(0, 9),
        ),
        min_size=BINS + 1,
        max_size=BINS + 60,
    )
)
def test_means_over_equal_times(steps):
    """Against the value at each nanosecond."""
    times = np.cumsum([gap for gap, _ in steps])
    end = int(times[-1]) + 7
    samples = []
    for t, (_, n) in zip(times, steps, strict=True):
        samples.append(
            QueueSample(
                0,
                int(t),
                (("a", "forward", n),) if n else (),
            )
        )
    edges, lines = line_up(samples, 0, end)
    values = np.array([n for _, n in steps], float)
    fine = np.concatenate(
        [
            np.zeros(times[0]),
            np.repeat(
                values,
                np.diff([*times, end]),
            ),
        ]
    )
    expected = np.diff(
        np.interp(
            edges,
            np.arange(end + 1),
            np.concatenate([[0], np.cumsum(fine)]),
        )
    ) / np.diff(edges)
    assert len(edges) == BINS + 1
    line = lines.get(("a", "forward"), np.zeros(BINS))
    first = int(np.searchsorted(edges, times[0]))  # before the first sample nothing is known
    np.testing.assert_allclose(
        line[first:],
        expected[first:],
        atol=1e-6,
    )


def test_few_samples_are_drawn_as_they_are():
    samples = [
        QueueSample(0, 5, (("a", "forward", 2),)),
        QueueSample(
            0,
            9,
            (("a", "backward", 1), ("a", "forward", 1)),
        ),
    ]
    edges, lines = line_up(samples, 0, 12)
    assert edges.tolist() == [5, 9, 12]
    assert {queue: line.tolist() for queue, line in lines.items()} == {
        ("a", "forward"): [2, 1],
        ("a", "backward"): [0, 1],
    }


def test_queues_of_the_fullest_workers_are_drawn():
    trace = Trace()
    for worker in range(5):
        trace.add_queues(worker, 0, [("a", "forward", worker)])
        trace.add_queues(worker, 10, [("b", "backward", worker)])
    figure = queues(trace, most=2, title="a run")
    assert [axes.get_title("left") for axes in figure.axes] == ["worker 3", "worker 4"]
    assert figure.get_suptitle() == "a run (3 more workers are not shown)"


# Staleness


def test_histograms_are_those_of_the_scheduler():
    _, trace = runs.trees()
    figure = staleness(trace)
    for axes, (node, rows) in zip(
        figure.axes,
        trace.histograms.items(),
        strict=True,
    ):
        assert axes.get_title() == node
        bars = [p.get_height() for p in axes.patches]
        assert bars == pytest.approx(100 * rows[: len(bars)] / rows.sum())
        assert sum(bars) == pytest.approx(100)


def test_updates_tell_the_same_mean_as_the_histogram():
    """Rows that were not in an update by the end of the run are in the histogram alone: fewer than an interval."""
    _, trace = runs.trees()
    for node, rows in trace.histograms.items():
        mine = [s for s in trace.staleness if s.node == node]
        assert sum(s.rows for s in mine) <= rows.sum() < sum(s.rows for s in mine) + 8
        known = sum(s.rows * s.mean for s in mine) / sum(s.rows for s in mine)
        assert known == pytest.approx(
            mean(rows), abs=0.5
        )  # the rows that are left out may be staler than the others


def test_synchronous_gradients_are_fresh():
    _, trace = runs.rnn("sync")
    assert all(rows[0] == rows.sum() for rows in trace.histograms.values())


def test_the_stalest_nodes_are_drawn():
    _, trace = runs.rnn()
    figure = staleness(trace, most=1, title="a run")
    (axes,) = figure.axes
    assert axes.get_title() == max(
        trace.histograms,
        key=lambda node: mean(trace.histograms[node]),
    )
    assert figure.get_suptitle() == "a run (2 less stale nodes are not shown)"


# The graph after a run


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_what_comes_to_a_node_goes_on_from_it(mode):
    """In a tree of `n` leaves there are `n - 1` branches and one root."""
    graph, trace = runs.trees(mode)
    notes = notes_of(graph, trace)
    assert {
        (w.source.name, w.port) for node in graph.nodes.values() for w in node.inputs if w
    } == set(notes.wires)
    n = 12
    leaves = notes.wires["words", 0]
    assert notes.wires["node", 0] == 2 * leaves - n
    assert [notes.wires["cond1", i] for i in range(3)] == [leaves - n, leaves - n, n]
    assert notes.wires["branch", 0] == leaves - n


def test_times_of_nodes_are_those_of_their_stages():
    graph, trace = runs.rnn()
    notes = notes_of(graph, trace)
    (stage,) = (name for name, nodes in trace.stages.items() if "relu" in nodes)
    forward = sum(s.duration_ns for s in trace if s.node == stage and s.kind == "forward")
    total = sum(s.duration_ns for s in trace)
    assert notes.shares["relu"][0] == pytest.approx(forward / total)
    assert notes.nodes["concat1"] == ("runs in relu",)
    assert notes.nodes["linear1"] == (
        "runs in relu",
        f"{sum(s.node == 'linear1' for s in trace.staleness)} updates",
    )


def test_the_picture_says_so():
    graph, trace = runs.rnn()
    texts = []
    for t in draw(graph, trace=trace).axes[0].texts:
        texts.append(t.get_text())
    notes = notes_of(graph, trace)
    assert all(line in texts for lines in notes.nodes.values() for line in lines)
    assert f"{notes.wires['tokens', 0]:,} messages" in texts
    assert not any("messages" in t.get_text() for t in draw(graph).axes[0].texts)


def test_no_texts_overlap():
    figure = draw(
        runs.trees()[0],
        trace=runs.trees()[1],
    )
    figure.canvas.draw()
    boxes = []
    for t in figure.axes[0].texts:
        boxes.append(
            (
                t.get_text(),
                t.get_window_extent().padded(-0.5),
            )
        )
    assert not [(a, b) for i, (a, x) in enumerate(boxes) for b, y in boxes[:i] if x.overlaps(y)]


def test_a_trace_of_nothing_adds_nothing():
    graph, _ = runs.rnn()
    assert notes_of(graph, Trace()).wires == {}
    draw(graph, trace=Trace())
