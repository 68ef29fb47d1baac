"""Pictures of a search's findings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ampjax.tuning.candidate import Candidate
from ampjax.utils.drawing.colours import BLUE, GREY, ORANGE, VERMILION
from ampjax.utils.drawing.figure import new_figure, save
from ampjax.viz.front import Point, front


def draw_front(
    candidates: Sequence[Candidate],
    chosen: Candidate,
    path: str | Path | None = None,
) -> Figure:
    """Draws staleness over throughput, as simulated; further right and further down is better.

    Args:
      candidates: All choices.
      chosen: The best of them.
      path: A file to write the picture to: .png, .svg or .pdf.

    Returns:
      The figure.

    Raises:
      SettingsError: If the file name ends in anything else.
    """
    figure = new_figure(6.4, 4.4, layout="constrained")
    axes = figure.subplots()
    simulated = [c for c in candidates if c.simulated is not None]
    kinds = (
        (
            "others",
            [c for c in simulated if not c.is_on_front],
            GREY,
            "o",
            4,
        ),
        (
            "on the front",
            [c for c in simulated if c.is_on_front],
            BLUE,
            "o",
            5,
        ),
        (
            "tried",
            [c for c in simulated if c.tried is not None],
            ORANGE,
            "D",
            7,
        ),
        (
            "chosen",
            [c for c in simulated if c is chosen],
            VERMILION,
            "*",
            14,
        ),
    )
    for label, choices, colour, marker, size in kinds:
        if choices:
            xs, ys = zip(*map(_place, choices), strict=True)
            axes.plot(
                xs,
                ys,
                marker,
                color=colour,
                markersize=size,
                linestyle="none",
                label=label,
            )
    axes.set(
        xlabel="training examples per second, simulated",
        ylabel="mean staleness in updates, simulated",
    )
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_ylim(bottom=-0.05)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=9)
    save(figure, path)
    return figure


def draw_epochs(
    candidates: Sequence[Candidate],
    chosen: Candidate,
    n_train: int,
    path: str | Path | None = None,
) -> Figure:
    """Draws epochs to the target over throughput, as measured, with lines of equal time (`viz.front`).

    Args:
      candidates: All choices.
      chosen: The best of them.
      n_train: Training units, such as tokens, of an epoch.
      path: A file to write the picture to: .png, .svg or .pdf.

    Returns:
      The figure.

    Raises:
      SettingsError: If the file name ends in anything else, or nothing was measured.
    """
    measured = []
    for c in candidates:
        if c.tried is not None and 0 < c.tried.per_s < math.inf:
            measured.append(c)
    points = {}
    for name, best in (("chosen", True), ("tried", False)):
        points[name] = [_point(c, n_train) for c in measured if (c is chosen) == best]
    return front(
        {name: some for name, some in points.items() if some},
        n_train,
        path,
        joined=False,
    )


def _place(choice: Candidate) -> tuple[float, float]:
    assert choice.simulated is not None
    return choice.simulated.per_s, choice.simulated.staleness


def _point(choice: Candidate, n_train: int) -> Point:
    assert choice.tried is not None
    examples = choice.tried.examples_to_target
    in_flight = choice.settings.get("max_active_keys", "")
    return Point(
        f"{in_flight}", choice.tried.per_s, math.inf if examples is None else examples / n_train
    )
