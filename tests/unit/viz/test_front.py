import math

import pytest

from ampjax.errors import SettingsError
from ampjax.viz.front import Point, front

SERIES = {
    "sync": [("1", 100.0, 2)],
    "async": [
        Point("1", 110.0, 2),
        Point("4", 300.0, 3),
        Point("8", 320.0, math.inf),
    ],
}


def legend(figure):
    result = []
    for text in figure.legends[0].get_texts():
        result.append(text.get_text())
    return result


def test_a_point_for_each_setting_and_lines_of_equal_time(tmp_path):
    figure = front(SERIES, 600, tmp_path / "front.png")
    (axes,) = figure.axes
    assert (tmp_path / "front.png").stat().st_size > 1000
    assert legend(figure) == ["sync", "async", "async: not reached"]
    assert [t.get_text() for t in axes.texts][:4] == ["1", "1", "4", "8"]
    marked = []
    for line in axes.lines:
        if line.get_marker() not in ("None", ""):
            marked.append(line)
    assert [list(line.get_ydata()) for line in marked] == [[2], [2, 3], [3.75]]
    for line, text in zip(
        axes.lines[-6:],
        axes.texts[-6:],
        strict=True,
    ):
        _, x = line.get_xdata()
        _, y = line.get_ydata()
        value, unit = text.get_text().split()
        assert y * 600 / x == pytest.approx(float(value) * {"s": 1, "ms": 1e-3}[unit])


@pytest.mark.parametrize(
    "series",
    [
        {},
        {"async": []},
        {"async": [Point("1", math.inf, 2)]},
    ],
)
def test_points_without_rates_are_refused(series):
    with pytest.raises(
        SettingsError, match=r"front: expected points with rates above 0, got .*\. Leave out runs"
    ):
        front(series, 600)


def test_points_need_not_be_joined():
    series = {
        "tried": [
            Point("1", 10.0, 2.0),
            Point("2", 20.0, 3.0),
        ]
    }
    lines = []
    for joined in (True, False):
        lines.append(len(front(series, 100, joined=joined).axes[0].lines))
    assert lines[0] == lines[1] + 1
