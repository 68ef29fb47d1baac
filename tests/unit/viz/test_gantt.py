import random

import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from ampjax.errors import SettingsError
from ampjax.trace.trace import Trace
from ampjax.trace.trace_records import KINDS, Slice, TracedHost
from ampjax.utils.drawing.colours import SLICES
from ampjax.viz.gantt import gantt


def schedule(n, n_workers, seed=0, overlap=0):
    rng = random.Random(seed)
    clock = [0] * n_workers
    found = []
    for i in range(n):
        worker = rng.randrange(n_workers)
        start = max(0, clock[worker] + rng.randrange(20_000) - overlap)
        end = start + rng.randrange(20_000, 120_000)
        clock[worker] = max(end, clock[worker])
        found.append(
            Slice(
                worker,
                f"node{rng.randrange(3)}",
                rng.choice(KINDS),
                start,
                end,
                tuple(range(i, i + rng.randrange(60))),
            )
        )
    return found


def boxes(figure, run=0):
    """Kind of each box, and its corners."""
    result = []
    for collection in figure.axes[run].collections:
        if isinstance(collection, PolyCollection):
            for path in collection.get_paths():
                result.append((collection.get_label(), path.get_extents()))
    return result


@pytest.mark.parametrize(
    ("n", "n_workers", "overlap"),
    [
        (1, 1, 0),
        (10, 3, 0),
        (200, 4, 50_000),
        (5000, 8, 0),
        (300, 200, 0),
    ],
)
def test_a_box_per_slice_in_its_colour_and_place(n, n_workers, overlap):
    found = schedule(n, n_workers, overlap=overlap)
    figure = gantt(found)
    drawn = boxes(figure)
    assert len(drawn) == n
    rows = {}
    for i, worker in enumerate(sorted({s.worker for s in found})):
        rows[worker] = i
    unit = {"µs": 1e3, "ms": 1e6, "s": 1e9}[figure.axes[0].get_xlabel().split("[")[1][:-1]]
    first = min(s.start_ns for s in found)
    expected = sorted(
        (
            s.kind,
            rows[s.worker],
            round((s.start_ns - first) / unit, 6),
            round((s.end_ns - first) / unit, 6),
        )
        for s in found
    )
    assert (
        sorted((kind, int(e.y0), round(e.x0, 6), round(e.x1, 6)) for kind, e in drawn) == expected
    )
    for collection in figure.axes[0].collections:
        assert to_hex(collection.get_facecolor()[0]).upper() == SLICES[collection.get_label()][0]


@pytest.mark.parametrize("overlap", [0, 50_000])
def test_no_boxes_overlap(overlap):
    drawn = []
    for _, e in boxes(gantt(schedule(150, 3, overlap=overlap))):
        drawn.append(e)
    for i, a in enumerate(drawn):
        for b in drawn[:i]:
            wide = min(a.x1, b.x1) - max(a.x0, b.x0)
            high = min(a.y1, b.y1) - max(a.y0, b.y0)
            assert wide < 1e-9 or high < 1e-9


def test_labels_stay_in_their_boxes():
    figure = gantt(schedule(60, 3))
    figure.canvas.draw()
    axes = figure.axes[0]
    pixels = []
    for _, e in boxes(figure):
        pixels.append(e.transformed(axes.transData))
    assert len(axes.texts) > 20
    for text in axes.texts:
        label = text.get_window_extent()
        # The time axis runs to the right, the rows downwards, so a box's y1 is its lower edge on the screen.
        assert any(
            b.x0 <= label.x0 and label.x1 <= b.x1 and b.y1 <= label.y0 and label.y1 <= b.y0
            for b in pixels
        ), text
    assert not gantt(schedule(60, 3), labels=False).axes[0].texts


def test_many_instances_are_abbreviated():
    one = Slice(
        0,
        "a",
        "forward",
        0,
        1_000,
        tuple(range(3, 16)),
    )
    long = gantt([one])
    short = gantt(
        [
            one,
            Slice(0, "a", "backward", 1_000, 25_000, (3,)),
        ]
    )
    assert long.axes[0].texts[0].get_text() == "3,4,5,6,7,8,9,10,11,12,13,14,15"
    assert sorted(t.get_text() for t in short.axes[0].texts) == ["3", "3+12"]


def test_nodes_are_named_where_a_worker_has_several():
    figure = gantt(
        [
            Slice(
                0,
                "a",
                "forward",
                0,
                10,
                (1,),
            ),
            Slice(0, "b", "update", 10, 20),
        ]
    )
    assert [t.get_text() for t in figure.axes[0].texts] == ["a\n1", "b"]


def test_axes_title_and_file(tmp_path):
    trace = Trace(
        [
            Slice(
                2,
                "a",
                "infer",
                5_000_000,
                9_000_000,
                (1,),
            )
        ]
    )
    figure = gantt(trace, tmp_path / "g.svg", title="a run")
    assert figure.axes[0].get_xlabel() == "time [ms]"
    assert figure.get_suptitle() == "a run"
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["worker 2"]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["infer"]
    assert "worker 2" in (tmp_path / "g.svg").read_text()


def test_several_runs_share_the_time_axis_and_each_starts_at_its_own_start(tmp_path):
    late = [
        Slice(0, "a", "forward", 7_000_000, 8_000_000, (1,)),
        Slice(3, "b", "backward", 8_000_000, 9_000_000, (1,)),
    ]
    long = [Slice(0, "a", "update", 0, 8_000_000)]
    figure = gantt(
        {"late": late, "long": long},
        tmp_path / "g.svg",
        title="both",
    )
    first, second = figure.axes
    assert first.get_xlim() == second.get_xlim() == (0, 8)
    assert [(kind, e.x0, e.x1) for kind, e in boxes(figure)] == [
        ("forward", 0, 1),
        ("backward", 1, 2),
    ]
    assert [(kind, e.x0, e.x1) for kind, e in boxes(figure, 1)] == [("update", 0, 8)]
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["late: 2 ms", "long: 8 ms"]
    assert (first.get_xlabel(), second.get_xlabel()) == ("", "time [ms]")
    assert {t.get_text() for t in figure.legends[0].get_texts()} == {
        "forward",
        "backward",
        "update",
    }
    # As high a row in each, and no chart over another's.
    heights = [axes.get_position().height for axes in figure.axes]
    assert heights[0] == pytest.approx(2 * heights[1])
    assert first.get_position().y0 > second.get_position().y1
    assert "both" in (tmp_path / "g.svg").read_text()


def test_the_workers_of_a_host_stand_together_beside_its_name():
    trace = Trace(schedule(40, 4))
    trace.add_host(TracedHost("left", "", (2, 0)))
    trace.add_host(TracedHost("a-name-that-is-much-too-long", "", (1, 3)))
    trace.add_host(TracedHost("idle", "", (4,)))
    figure = gantt(trace)
    figure.canvas.draw()
    (axes,) = figure.axes
    ticks = [t.get_text() for t in axes.get_yticklabels()]
    assert ticks == ["worker 0", "worker 2", "worker 1", "worker 3"]
    names = {}
    for t in axes.texts:
        if t.get_weight() == "bold":
            names[t.get_text()] = t
    assert {name: text.get_position()[1] for name, text in names.items()} == {
        "left": 1,
        "a-name-that-is-much-too…": 3,
    }
    labels = [t.get_window_extent() for t in axes.get_yticklabels()]
    for text in names.values():
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert not any(box.overlaps(label) for label in labels)
    assert {s.worker for s in trace} == set(range(4))
    assert len(boxes(figure)) == 40


def test_a_wider_chart_has_room_for_more_labels():
    found = schedule(400, 3)
    narrow = gantt(found)
    wide = gantt(found, width=48.0)
    assert (
        wide.get_size_inches()[0] == 48 and wide.get_size_inches()[1] == narrow.get_size_inches()[1]
    )
    assert len(wide.axes[0].texts) > len(narrow.axes[0].texts)


def test_errors(tmp_path):
    with pytest.raises(SettingsError, match="gantt: expected at least one slice, got none"):
        gantt({})
    with pytest.raises(SettingsError, match="gantt: expected at least one slice, got none"):
        gantt({"a": schedule(1, 1), "b": []})
    with pytest.raises(SettingsError, match="gantt, `width`: expected at least 3 inches, got 1"):
        gantt(schedule(1, 1), width=1)
    with pytest.raises(SettingsError, match="gantt: expected at least one slice, got none"):
        gantt([])
    with pytest.raises(SettingsError, match=r"ends in \.png"):
        gantt(schedule(1, 1), tmp_path / "g.txt")
