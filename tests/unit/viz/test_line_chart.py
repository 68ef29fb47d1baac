"""Curves in one picture."""

from pathlib import Path

import pytest

from ampjax.errors import SettingsError
from ampjax.viz.line_chart import curves

LINE = [(1.0, 2.0), (4.0, 8.0)]


def test_a_line_for_each_series_and_guide(tmp_path: Path) -> None:
    figure = curves(
        {"a": LINE, "b": LINE},
        tmp_path / "c.svg",
        x="workers",
        y="rate",
        guides={"ideal": LINE},
        log=True,
    )
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == ["ideal", "a", "b"]
    assert axes.lines[1].get_xydata().tolist() == [[1, 2], [4, 8]]  # type: ignore[union-attr]
    assert (
        axes.get_xlabel(),
        axes.get_ylabel(),
        axes.get_xscale(),
    ) == ("workers", "rate", "log")
    assert "ideal" in (tmp_path / "c.svg").read_text()


@pytest.mark.parametrize(
    ("most", "labels"),
    [(400.0, ["200", "300", "400"]), (40_000.0, ["1,000", "10,000"])],
    ids=["short", "long"],
)
def test_logarithmic_axes_have_plain_numbers(most: float, labels: list[str]) -> None:
    figure = curves(
        {"a": [(1.0, 150.0), (2.0, most)]},
        x="x",
        y="y",
        log=True,
    )
    figure.canvas.draw()
    low, high = figure.axes[0].get_ylim()
    ticks = figure.axes[0].yaxis.get_ticklabels(which="both")
    shown = []
    for t in ticks:
        if low <= t.get_position()[1] <= high:
            shown.append(
                (
                    t.get_position()[1],
                    t.get_text(),
                )
            )
    assert [text for _, text in sorted(shown) if text] == labels


@pytest.mark.parametrize(
    ("line", "log"),
    [
        ([(0.0, 1.0)], True),
        ([(1.0, float("inf"))], False),
        ([], False),
    ],
)
def test_what_can_not_be_drawn_is_told(
    line: list[tuple[float, float]],
    log: bool,
) -> None:
    with pytest.raises(SettingsError, match="curves: expected points of finite numbers"):
        curves({"a": line}, x="x", y="y", log=log)
