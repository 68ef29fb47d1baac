"""The picture of which instances each update is made of."""

import re

import numpy as np
import pytest

from ampjax.errors import SettingsError
from ampjax.trace.update_log import LoggedUpdate
from ampjax.viz.lineage import lineage


def update(node, version, seen, rows=None):
    n = len(seen)
    columns = (
        np.ones(n, int),
        np.arange(n),
        np.array(
            seen,
            int,
        ),
        np.array(rows or [1] * n),
    )
    return LoggedUpdate(
        node,
        version,
        int(columns[-1].sum()),
        *columns,
    )


UPDATES = [
    update("a", 1, [0, 0]),
    update("b", 1, [0]),
    update("a", 2, [0, 1], [3, 1]),
    update("a", 3, [0, 2, 2]),
]


def bars(figure):
    return sorted(
        tuple(segment[:, 0].astype(int).tolist())
        for segment in figure.axes[0].collections[0].get_segments()
    )


def test_a_line_goes_from_the_version_seen_to_the_version_made():
    figure = lineage(UPDATES)
    assert bars(figure) == [(0, 1), (0, 1), (0, 2), (0, 3), (1, 2), (2, 3), (2, 3)]
    assert (
        figure.axes[0].get_title()
        == "a: 3 updates from gradients of 7 instances, mean staleness 0.6"
    )  # 5 of 9 rows


def test_a_part_of_a_log():
    assert bars(lineage(UPDATES, "b")) == [(0, 1)]
    assert bars(lineage(UPDATES, "a", most=1)) == [(0, 3), (2, 3), (2, 3)]
    assert bars(lineage(UPDATES, "a", first=2, most=1)) == [(0, 2), (1, 2)]


def test_files_are_the_same_each_time(tmp_path):
    for name in ("a.svg", "b.svg"):
        lineage(UPDATES, path=tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


@pytest.mark.parametrize(
    ("mistake", "text"),
    [
        (
            {"updates": []},
            "lineage: expected at least one update of a node among [], got an empty log. Log a fit",
        ),
        (
            {"node": "c"},
            "among ['a', 'b'], got none of `c`. Log a fit with `update_log=file`, and draw one of its nodes.",
        ),
        ({"first": 4}, "got none of `a` that makes version 4 or a later one."),
        ({"most": 0}, "setting `most`: expected an integer of at least 1, got 0."),
    ],
)
def test_mistakes(mistake, text):
    with pytest.raises(SettingsError, match=re.escape(text)):
        lineage(**{"updates": UPDATES, **mistake})
