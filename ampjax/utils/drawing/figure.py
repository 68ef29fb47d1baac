"""Figures that show themselves in notebooks and save themselves to files, without pyplot's global state."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ampjax.errors import SettingsError

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ampjax",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
}
_PAGE_DPI = 96
_MAX_PIXELS = 30_000.0
"""Agg refuses pictures of 2^16 pixels and more along a side."""


class Picture(Figure):
    """A matplotlib figure that a notebook shows even where pyplot was never imported."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Renders the file, and the size at which the figure's text is as large as the page's: with more pixels, for fine screens."""
        width, height = (round(_PAGE_DPI * inches) for inches in self.get_size_inches())
        with io.BytesIO() as buffer:
            save(self, buffer, "png")
            return buffer.getvalue(), {"width": width, "height": height}


def new_figure(width: float, height: float, **options: Any) -> Picture:
    """Makes an empty figure that is not registered with pyplot, and so need not be closed.

    Args:
      width: In inches.
      height: In inches.
      **options: Of `matplotlib.figure.Figure`.

    Returns:
      The figure.
    """
    figure = Picture(figsize=(width, height), **options)
    FigureCanvasAgg(figure)
    return figure


def save(
    figure: Figure,
    path: str | Path | io.IOBase | None,
    form: str | None = None,
) -> None:
    """Writes a figure to a file; the same figure gives the same bytes.

    Args:
      figure: The figure.
      path: Where to; None does nothing. Folders are made. The suffix says the format: .png, .svg or .pdf.
      form: The format, if `path` is a buffer.

    Raises:
      SettingsError: If the suffix is another one.
    """
    if path is None:
        return
    if not isinstance(path, io.IOBase):
        path = Path(path)
        form = path.suffix.lower().lstrip(".")
        if form not in ("png", "svg", "pdf"):
            raise SettingsError(
                f"picture `{path}`",
                "a file name that ends in .png, .svg or .pdf",
                f"`{path.suffix}`",
                "Choose one of the three.",
            )
        path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[
        str(form)
    ]
    with matplotlib.rc_context(_STYLE):
        dpi = min(150.0, _MAX_PIXELS / max(figure.get_size_inches()))
        figure.savefig(path, format=form, dpi=dpi, metadata=metadata)  # type: ignore[arg-type]


def to_svg_text(figure: Figure) -> str:
    """A figure as an `<svg>` element, with its text as text.

    Returns:
      XML without a header, as HTML pages take it.
    """
    with io.BytesIO() as buffer:
        save(figure, buffer, "svg")
        text = buffer.getvalue().decode()
    return text[text.index("<svg") :]
