"""The picture of lanes: as many bars, of such lengths and areas, as were counted."""

from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from matplotlib.text import Text

import ampjax as amp
from ampjax.errors import SettingsError
from ampjax.viz.lane_chart import lanes

TRIPS = jnp.asarray([3, 0, 9, 1, 5, 2, 7, 4])


def turned(n):
    return lax.fori_loop(0, n, lambda _, x: x + 1.0, 0.0)


@pytest.fixture(scope="module")
def report():
    return amp.vmap(turned, lanes=3, trips=2).explain(TRIPS)


def extents(collection):
    return [path.get_extents() for path in collection.get_paths()]


def test_a_bar_for_each_element_as_long_as_its_trips_in_its_row(report):
    above, below = lanes(report).axes
    drawn = np.flatnonzero(report.trips)
    for axes, rows, starts in (
        (above, np.arange(len(TRIPS)), np.zeros(len(TRIPS))),
        (below, report.lane, report.start),
    ):
        _, bars = axes.collections
        found = []
        for e in extents(bars):
            found.append((e.y0, e.y1, e.x0, e.x1))
        expected = []
        for i in drawn:
            expected.append(
                (
                    rows[i],
                    rows[i] + 1,
                    starts[i],
                    starts[i] + report.trips[i],
                )
            )
        assert found == expected


def test_areas_are_rows_computed_on_one_scale(report):
    figure = lanes(report)
    above, below = figure.axes
    for axes, n_rows in ((above, report.rows_of_vmap), (below, report.rows_of_lanes)):
        ground, bars = axes.collections
        (extent,) = extents(ground)
        assert extent.width * extent.height == n_rows
        assert sum(e.width * e.height for e in extents(bars)) == report.trips.sum()
        assert f"{n_rows:,} rows computed" in axes.get_title(loc="left")
    assert above.get_xlim() == below.get_xlim()
    heights = [axes.get_position().height for axes in figure.axes]
    assert heights[0] / len(TRIPS) == pytest.approx(heights[1] / report.lanes)


@pytest.mark.first_case
@pytest.mark.parametrize("n", [1, 8, 1_000])
def test_no_text_leaves_the_picture_or_lies_on_another(n):
    report = amp.vmap(
        turned,
        lanes=4,
        trips=2,
    ).explain(jnp.arange(1, n + 1) % 9 + 1)
    figure = lanes(report, title="some trips")
    figure.canvas.draw()
    for axes in figure.axes:
        labels = [t.get_window_extent() for t in axes.get_yticklabels()]
        for one, other in pairwise(labels):
            assert not one.overlaps(other)
        names = {kind.get_text(): kind for kind in axes.findobj(Text)}
        title = names[axes.get_title(loc="left")]
        for text in (axes.yaxis.label, axes.xaxis.label, title):
            box = text.get_window_extent()
            assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
            assert box.y0 >= 0 and box.y1 <= figure.bbox.y1
            assert not any(box.overlaps(label) for label in labels) or not text.get_text()


def test_files_are_the_same_each_time(report, tmp_path):
    for name in ("a.svg", "b.svg"):
        lanes(report, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_mistakes(report, tmp_path):
    with pytest.raises(SettingsError, match=r"ends in \.png"):
        lanes(report, tmp_path / "x.txt")
    none = amp.vmap(turned, lanes=3, trips=2).explain(TRIPS * 0)
    with pytest.raises(SettingsError, match="lanes: expected an element with a trip of a loop"):
        lanes(none)
