"""A Gantt chart with zoom in a notebook: drawn at several widths, each with the labels that fit."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Iterable
from dataclasses import dataclass, field

from ampjax.trace.trace_records import Slice
from ampjax.utils.drawing.figure import save
from ampjax.utils.setting_checks import at_least
from ampjax.viz.gantt import gantt

_PIXELS_PER_INCH = 96


@dataclass(frozen=True)
class Zoomable:
    """Charts of one run, each twice as wide as the one before.

    Args:
      name: What they show, for those who don't see them.
      charts: PNG files with their widths in inches.
    """

    name: str
    charts: tuple[tuple[bytes, float], ...] = field(repr=False)

    def _repr_html_(self) -> str:
        """Buttons, and the chosen chart in a box that scrolls; needs no script before a button is pressed."""
        buttons = "".join(
            f'<button type="button" onclick="{_SHOW.format(i)}">{2**i}×</button> '
            for i in range(len(self.charts))
        )
        images = "".join(
            f'<img alt="{html.escape(self.name)}, {2**i} times as wide" src="data:image/png;base64,{_text(png)}" '
            f'style="max-width: {"none" if i else "100%"}; width: {round(width * _PIXELS_PER_INCH)}px{"; display: none" if i else ""}">'
            for i, (png, width) in enumerate(self.charts)
        )
        return f'<div><div>zoom {buttons}</div><div style="overflow-x: auto">{images}</div></div>'


_SHOW = "this.closest('div').nextElementSibling.querySelectorAll('img').forEach((e, i) => e.style.display = i == {} ? '' : 'none')"


def zoomable(
    events: Iterable[Slice],
    *,
    title: str | None = None,
    times: int = 4,
    width: float = 12.0,
) -> Zoomable:
    """Makes a Gantt chart for a notebook with buttons for its width; in a wider chart more boxes have room for their labels.

    Args:
      events: The slices, for example a `Trace`.
      title: The title above the chart.
      times: The number of widths: with 4, there are charts of 1, 2, 4 and 8 times the width.
      width: The width of the narrowest chart, in inches.

    Returns:
      An object that a notebook shows.

    Raises:
      SettingsError: If there are no slices, `times` is below 1, or the width below 3.
    """
    at_least("times", times, 1)
    slices = list(events)
    widths = [width * 2**i for i in range(times)]
    charts = tuple((_png(slices, title, inches), inches) for inches in widths)
    return Zoomable(title or "Gantt chart", charts)


def _png(
    slices: list[Slice],
    title: str | None,
    width: float,
) -> bytes:
    with io.BytesIO() as buffer:
        save(gantt(slices, title=title, width=width), buffer, "png")
        return buffer.getvalue()


def _text(png: bytes) -> str:
    return base64.b64encode(png).decode()
