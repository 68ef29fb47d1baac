"""The start page's three pictures of what an example may be: a sentence, a tree, a graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import cos, pi, sin
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.patches import Circle

NODE = "#3f51b5"
EDGE = "#e64a19"
RADIUS = 0.24
FONT = 11
WORDS = ("not", "a", "bad", "film")
Place = tuple[float, float]


def example_shapes(folder: Path) -> None:
    """Draws all three.

    Args:
      folder: Where the files go.
    """
    sentence(folder / "sentence.svg")
    tree(folder / "tree.svg")
    molecule(folder / "molecule.svg")


def sentence(path: Path) -> None:
    """A sentence: a state goes from word to word, and each word gets a tag.

    Args:
      path: The file.
    """
    words = ("she", "met", "Ada", "in", "Turin")
    tags = ("", "", "person", "", "place")
    with axes_without_frame(path) as axes:
        for i, (word, tag) in enumerate(zip(words, tags, strict=True)):
            state = (i, 1.0)
            text(axes, (i, 0.0), word)
            arrow(axes, (i, 0.0), state)
            if i:
                arrow(axes, (i - 1, 1.0), state, EDGE)
            if tag:
                arrow(axes, state, (i, 2.0))
                text(axes, (i, 2.0), tag)
            node(axes, state)


def tree(path: Path) -> None:
    """A parse tree: each node is computed from its children.

    Args:
      path: The file.
    """
    leaves = [(i, 0.0) for i in range(4)]
    low = (2.5, 0.8)
    middle = (1.75, 1.6)
    root = (0.9, 2.4)
    branches = {
        low: leaves[2:],
        middle: [leaves[1], low],
        root: [leaves[0], middle],
    }
    with axes_without_frame(path) as axes:
        for word, (x, y) in zip(WORDS, leaves, strict=True):
            text(axes, (x, y - 0.55), word)
        for parent, children in branches.items():
            for child in children:
                arrow(axes, child, parent, EDGE)
        for place in (*leaves, *branches):
            node(axes, place)


def molecule(path: Path) -> None:
    """A graph: each node gets messages from its neighbours.

    Args:
      path: The file.
    """
    ring: list[Place] = []
    for i in range(6):
        angle = pi / 3 * i + pi / 6
        ring.append((1.1 * cos(angle), 1.1 * sin(angle)))
    width = 2.0 * cos(pi / 6)
    right = (width, 1.0)
    left = (-width, -1.0)
    edges: list[tuple[Place, Place]] = [(ring[0], right), (ring[3], left)]
    for i in range(6):
        edges.append((ring[i], ring[(i + 1) % 6]))
    with axes_without_frame(path) as axes:
        for one, other in edges:
            arrow(axes, one, other, EDGE, "<|-|>")
        for place in (*ring, right, left):
            node(axes, place)


@contextmanager
def axes_without_frame(path: Path) -> Iterator[Any]:
    """Axes without a frame, in a figure that is written at the end.

    Args:
      path: The file.
    """
    figure = Figure(figsize=(3.2, 1.9))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_aspect("equal")
    axes.set_axis_off()
    yield axes
    axes.margins(0.08)
    axes.autoscale_view()
    # the same file each time
    with rc_context({"svg.hashsalt": "ampjax"}):
        figure.savefig(path, metadata={"Date": None})


def node(
    axes: Any,
    place: tuple[float, float],
    colour: str = NODE,
) -> None:
    """A filled circle."""
    axes.add_patch(Circle(place, RADIUS, color=colour, zorder=2))
    axes.autoscale_view()


def text(
    axes: Any,
    place: Sequence[float],
    words: str,
    colour: str = "black",
) -> None:
    """A word."""
    x, y = place
    axes.text(x, y, words, ha="center", va="center", fontsize=FONT, color=colour)
    # axes take their limits from what is plotted, not from texts
    axes.plot(
        [x - RADIUS, x + RADIUS],
        [y - RADIUS, y + RADIUS],
        alpha=0,
    )


def arrow(
    axes: Any,
    start: Sequence[float],
    end: Sequence[float],
    colour: str = "#888888",
    style: str = "-|>",
) -> Any:
    """An arrow between two places, from circle to circle."""
    shape = {
        "arrowstyle": style,
        "color": colour,
        "lw": 1.5,
        "shrinkA": 11,
        "shrinkB": 11,
    }
    drawn = axes.annotate("", xy=end, xytext=start, arrowprops=shape)
    axes.plot(*zip(start, end, strict=True), alpha=0)
    return drawn
