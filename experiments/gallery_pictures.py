"""The pictures of the documentation's gallery: a small drawing of each model, from `gallery_pictures.yaml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from matplotlib.patches import Rectangle

from experiments.example_shapes import EDGE, NODE, arrow, axes_without_frame, node, text

SOURCE = Path(__file__).with_suffix(".yaml")
PALE = "#b0b4c8"
GREY = "#888888"
COLOURS = {
    "edge": EDGE,
    "node": NODE,
    "pale": PALE,
    "grey": GREY,
}
"""Any other colour has matplotlib's name."""
ROW = (1.2, 0.24)
"""The width and the height of a table's row."""


def gallery_pictures(folder: Path) -> None:
    """Draws all pictures.

    Args:
      folder: Where the files go.
    """
    drawings = yaml.safe_load(SOURCE.read_text(encoding="utf-8"))
    for name, shapes in drawings.items():
        path = folder / f"gallery_{name}.svg"
        with axes_without_frame(path) as axes:
            for shape in shapes:
                _draw(axes, shape)


def _draw(
    axes: Any,
    shape: Mapping[str, Any],
) -> None:
    """Draws one shape: a node, a text, an arrow, a line, or a row of a table."""

    def colour(default: str) -> str:
        name: str = shape.get("colour", default)
        return COLOURS.get(name, name)

    width = shape.get("width", 1.5)
    if "node" in shape:
        node(axes, shape["node"], colour(NODE))
    if "text" in shape:
        text(
            axes,
            shape["at"],
            shape["text"],
            colour("black"),
        )
    if "arrow" in shape:
        places = shape["arrow"]
        style = shape.get("style", "-|>")
        drawn = arrow(
            axes,
            places[:2],
            places[2:],
            colour(GREY),
            style,
        )
        drawn.arrow_patch.set_linewidth(width)
    if "line" in shape:
        axes.plot(
            shape["line"],
            shape["heights"],
            color=colour(GREY),
            lw=width,
            ls=shape.get("style", "-"),
        )
    if "row" in shape:
        row = Rectangle(
            shape["row"],
            *ROW,
            facecolor=colour("#e8eaf6"),
            edgecolor=PALE,
        )
        axes.add_patch(row)
        axes.autoscale_view()
