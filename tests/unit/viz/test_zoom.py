"""Gantt charts to look into: each twice as wide as the one before, in a page that shows one of them."""

import base64
import re
import struct

import pytest

from ampjax.errors import SettingsError
from ampjax.trace.trace_records import Slice
from ampjax.viz.zoom import zoomable

SLICES = [Slice(i % 2, "a", "forward", 10 * i, 10 * i + 9, (i,)) for i in range(40)]


def sizes(page):
    """Pixels of each picture in a page."""
    files = [
        base64.b64decode(text) for text in re.findall(r"data:image/png;base64,([^\"]+)\"", page)
    ]
    assert all(file.startswith(b"\x89PNG") for file in files)
    return [struct.unpack(">II", file[16:24]) for file in files]


def test_each_chart_is_twice_as_wide_and_the_first_one_is_shown():
    page = zoomable(SLICES, title="a <run>", times=3, width=6.0)._repr_html_()
    (a, height), (b, _), (c, _) = sizes(page)
    assert (b, c) == (2 * a, 4 * a)
    assert {h for _, h in sizes(page)} == {height}
    images = re.findall("<img[^>]*>", page)
    assert ["display: none" in image for image in images] == [False, True, True]
    assert "a &lt;run&gt;" in images[0] and "a <run>" not in page
    assert page.count("<button") == 3 and "=== undefined" not in page


def test_its_repr_is_short():
    assert repr(zoomable(SLICES, times=1)) == "Zoomable(name='Gantt chart')"


def test_mistakes():
    with pytest.raises(SettingsError, match="at least one slice"):
        zoomable([])
    with pytest.raises(
        SettingsError, match="setting `times`: expected an integer of at least 1, got 0"
    ):
        zoomable(SLICES, times=0)
