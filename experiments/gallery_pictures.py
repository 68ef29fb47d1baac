"""The pictures of the documentation's gallery: a small drawing of each model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import cos, pi, sin
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

from experiments.example_shapes import EDGE, Place, arrow, axes_without_frame, node, text

PALE = "#b0b4c8"
GREY = "#888888"


def gallery_pictures(folder: Path) -> None:
    """Draws all of them.

    Args:
      folder: Where the files go.
    """
    for name, draw in DRAWINGS.items():
        with axes_without_frame(folder / f"gallery_{name}.svg") as axes:
            draw(axes)


def recurrent(axes: Any) -> None:
    """A chain of states over brackets, and an answer at its end."""
    for i, bracket in enumerate("(())()"):
        text(axes, (i, 0), bracket)
        arrow(axes, (i, 0), (i, 1))
        if i:
            arrow(axes, (i - 1, 1), (i, 1), EDGE)
        node(axes, (i, 1))
    arrow(axes, (5, 1), (5, 2))
    text(axes, (5, 2), "yes")


def tagger(axes: Any) -> None:
    """A chain from each side, and a tag made of both."""
    for i, (digit, tag) in enumerate(zip("5382", ("left", "left", "", "both"), strict=True)):
        x = 1.6 * i
        left, right = (x - 0.35, 1.0), (x + 0.35, 1.75)
        text(axes, (x, 0), digit)
        arrow(axes, (x, 0), left)
        arrow(axes, (x, 0), right)
        if i:
            arrow(axes, (x - 1.95, 1.0), left, EDGE)
            arrow(axes, right, (x - 1.25, 1.75), EDGE)
        node(axes, left)
        node(axes, right, PALE)
        arrow(axes, left, (x, 2.8))
        arrow(axes, right, (x, 2.8))
        text(axes, (x, 2.8), tag or "–")


def child_sum(axes: Any) -> None:
    """A formula as a tree whose branches have two and three children."""
    root, low = (1.1, 2.2), (2.2, 1.1)
    text(axes, (0.1, 1.1), "0")
    arrow(axes, (0.1, 1.1), root, EDGE)
    for x, word in ((1.2, "1"), (2.2, "1"), (3.2, "0")):
        text(axes, (x, 0), word)
        arrow(axes, (x, 0), low, EDGE)
    arrow(axes, low, root, EDGE)
    for place, word in ((root, "or"), (low, "and")):
        node(axes, place)
        x, y = place
        text(axes, (x + 0.75, y + 0.15), word)


def binary_tree(axes: Any) -> None:
    """A phrase as a binary tree, with grades."""
    low, root = (1.9, 1.0), (1.0, 2.0)
    for x, word in ((0, "not"), (1.2, "very"), (2.6, "good")):
        text(axes, (x, 0), word)
    arrow(axes, (1.2, 0), low, EDGE)
    arrow(axes, (2.6, 0), low, EDGE)
    arrow(axes, (0, 0), root, EDGE)
    arrow(axes, low, root, EDGE)
    for (x, y), grade in ((low, "+2"), (root, "–2")):
        node(axes, (x, y))
        text(axes, (x + 0.65, y + 0.1), grade)


def gated_graph(axes: Any) -> None:
    """A directed graph in which some nodes can be reached from a marked one."""
    places: list[Place] = [(0, 1), (1.4, 1.8), (1.4, 0.2), (2.8, 1), (4.2, 1.8)]
    for i, j in ((0, 1), (0, 2), (1, 3), (2, 3), (4, 3)):
        arrow(axes, places[i], places[j], EDGE)
    for place in places[:4]:
        node(axes, place)
    node(axes, places[4], PALE)
    text(axes, (-0.2, 1.6), "marked")


def graph_attention(axes: Any) -> None:
    """A node and its neighbours, one of which it looks at."""
    colours = "#e64a19", "#43a047", "#fbc02d", "#8e24aa"
    centre = (0.0, 0.0)
    for i, colour in enumerate(colours):
        angle = 2 * pi * i / 4 + 0.6
        place = (1.9 * cos(angle), 1.0 * sin(angle))
        line = arrow(axes, place, centre, GREY)
        line.arrow_patch.set_linewidth(4 if i == 1 else 1)
        node(axes, place, colour)
    node(axes, centre)
    text(axes, (-1.1, -0.05), "softmax")


def self_attention(axes: Any) -> None:
    """Words that look at each other."""
    words = "hot", "or", "nice", "cold"
    for i, word in enumerate(words):
        text(axes, (1.4 * i, 0), word)
        for j in range(i):
            strong = (j, i) == (0, 3)
            arc(axes, 1.4 * j, 1.4 * i, strong)


def arc(
    axes: Any,
    start: float,
    end: float,
    strong: bool,
) -> None:
    """A line in a bow from one word to another."""
    t = np.linspace(0, pi, 40)
    middle, half = (start + end) / 2, (end - start) / 2
    axes.plot(
        middle + half * np.cos(t),
        0.35 + 0.55 * half * np.sin(t),
        color=EDGE if strong else PALE,
        lw=3.5 if strong else 1.2,
    )


def crf(axes: Any) -> None:
    """Tags joined to their neighbours, and what was seen."""
    for i, (tag, seen) in enumerate(zip("AAAABB", "AACABA", strict=True)):
        text(axes, (i, 0), seen, "black" if tag == seen else EDGE)
        arrow(axes, (i, 0), (i, 1.2), style="-")
        if i:
            arrow(axes, (i - 1, 1.2), (i, 1.2), EDGE, "-")
        node(axes, (i, 1.2))
        text(axes, (i, 1.2), tag, "white")
    text(axes, (-1.1, 0), "seen")
    text(axes, (-1.1, 1.2), "tags")


def soft_dtw(axes: Any) -> None:
    """Two curves of one shape at different speeds, and what belongs together."""
    t = np.linspace(0, 1, 60)
    slow = t**2.2
    axes.plot(4 * t, 0.5 * np.sin(2 * pi * t) + 1.7, color="#3f51b5", lw=2)
    axes.plot(4 * t, 0.5 * np.sin(2 * pi * slow), color=EDGE, lw=2)
    for each in np.linspace(0, 1, 13):
        y = 0.5 * sin(2 * pi * each)
        axes.plot([4 * each, 4 * each ** (1 / 2.2)], [y + 1.7, y], color=GREY, lw=0.8)


def early_exit(axes: Any) -> None:
    """Rounds, each with a look and with a way out."""
    for i in range(4):
        x = 1.3 * i
        colour = "#3f51b5" if i < 2 else PALE
        text(axes, (x, 0), "look", "black" if i < 2 else PALE)
        arrow(axes, (x, 0), (x, 1), GREY if i < 2 else PALE)
        if i:
            arrow(axes, (x - 1.3, 1), (x, 1), EDGE if i < 2 else PALE)
        node(axes, (x, 1), colour)
    arrow(axes, (1.3, 1), (1.3, 2), EDGE)
    text(axes, (1.3, 2), "sure")


def experts(axes: Any) -> None:
    """A gate that chooses one of four experts."""
    text(axes, (0, 1.05), "point")
    arrow(axes, (0, 1.05), (1.4, 1.05))
    for i in range(4):
        place = (3.0, 0.7 * i)
        chosen = i == 2
        arrow(axes, (1.4, 1.05), place, EDGE if chosen else PALE)
        node(axes, place, "#3f51b5" if chosen else PALE)
    arrow(axes, (3.0, 1.4), (4.4, 1.4), EDGE)
    text(axes, (4.5, 1.4), "class")
    node(axes, (1.4, 1.05))
    text(axes, (1.4, 1.55), "gate")


def table(
    axes: Any,
    x: float,
    rows: int,
    read: int,
) -> Place:
    """A tall table with one row that is read; gives that row's place."""
    for i in range(rows):
        y = 0.28 * i
        colour = EDGE if i == read else "#e8eaf6"
        axes.add_patch(Rectangle((x - 0.6, y), 1.2, 0.24, facecolor=colour, edgecolor=PALE))
    axes.plot([x - 0.6, x + 0.6], [0, 0.28 * rows], alpha=0)
    return (x, 0.28 * read + 0.12)


def recommender(axes: Any) -> None:
    """Two tables, a row of each, and a network."""
    one = table(axes, 0, 9, 6)
    two = table(axes, 2.0, 9, 2)
    for x, word in ((0, "users"), (2.0, "films")):
        text(axes, (x, -0.35), word)
    for x, y in (one, two):
        arrow(axes, (x + 0.3, y), (4.0, 1.2), EDGE)
    node(axes, (4.0, 1.2))
    arrow(axes, (4.0, 1.2), (5.3, 1.2))
    text(axes, (5.4, 1.2), "likes")


def ngrams(axes: Any) -> None:
    """Characters, a hash of the last ones, a row of a table."""
    for i, character in enumerate("the ca"):
        shown = "·" if character == " " else character
        text(axes, (0.5 * i, -0.6), shown, EDGE if i > 2 else "black")
    place = table(axes, 4.6, 9, 5)
    arrow(axes, (2.2, -0.4), (4.2, 1.5), EDGE)
    text(axes, (2.6, 0.9), "hash")
    arrow(axes, place, (6.6, 1.5), EDGE)
    node(axes, (6.6, 1.5))
    arrow(axes, (6.6, 1.5), (6.6, 2.5))
    text(axes, (6.6, 2.5), "t")
    axes.plot([2.9, 6.6, 6.6], [-0.6, -0.6, 0.9], color=GREY, lw=1.5)
    arrow(axes, (6.6, 0.3), (6.6, 1.5), GREY)


def encoder_decoder(axes: Any) -> None:
    """A chain that reads, and one that writes and looks back."""
    for i, word in enumerate("314"):
        text(axes, (i, 0), word)
        arrow(axes, (i, 0), (i, 1))
        if i:
            arrow(axes, (i - 1, 1), (i, 1), EDGE)
        node(axes, (i, 1))
    arrow(axes, (2, 1), (3.4, 1), EDGE)
    for i, word in enumerate("413"):
        x = 3.4 + i
        if i:
            arrow(axes, (x - 1, 1), (x, 1), EDGE)
        node(axes, (x, 1), "#00897b")
        arrow(axes, (x, 1), (x, 2))
        text(axes, (x, 2), word)
    t = np.linspace(0, pi, 40)
    axes.plot(3.2 + 1.2 * np.cos(t), 0.72 - 0.7 * np.sin(t), color=PALE, lw=2, ls="--")


def pointer(axes: Any) -> None:
    """Points, a walk so far, and what it points at."""
    places: list[Place] = [(0, 0.2), (1.0, 1.2), (2.2, 0.4), (3.4, 1.5), (4.3, 0.3)]
    arrow(axes, places[0], places[1], EDGE)
    arrow(axes, places[1], places[2], EDGE)
    arrow(axes, places[2], places[4], PALE)
    line = arrow(axes, places[2], places[3], "#00897b")
    line.arrow_patch.set_linewidth(3.5)
    for i, place in enumerate(places):
        node(axes, place, "#3f51b5" if i < 3 else PALE)


def program(axes: Any) -> None:
    """A term with a subterm that two others use."""
    places: Mapping[str, Place] = {
        "2": (0, 0),
        "3": (1.4, 0),
        "4": (2.8, 0),
        "+": (0.7, 1),
        "+ ": (2.1, 1.4),
        "×": (1.2, 2.3),
    }
    for start, end in (
        ("2", "+"),
        ("3", "+"),
        ("+", "+ "),
        ("4", "+ "),
        ("+", "×"),
        ("+ ", "×"),
    ):
        arrow(axes, places[start], places[end], EDGE)
    for name, place in places.items():
        if name.strip().isdigit():
            text(axes, place, name)
        else:
            node(axes, place)
            text(axes, place, name.strip(), "white")


DRAWINGS: Mapping[str, Callable[[Any], None]] = {
    "recurrent": recurrent,
    "tagger": tagger,
    "child_sum": child_sum,
    "binary_tree": binary_tree,
    "gated_graph": gated_graph,
    "graph_attention": graph_attention,
    "self_attention": self_attention,
    "encoder_decoder": encoder_decoder,
    "crf": crf,
    "soft_dtw": soft_dtw,
    "pointer": pointer,
    "early_exit": early_exit,
    "experts": experts,
    "program": program,
    "ngrams": ngrams,
    "recommender": recommender,
}
"""By the name of the file, without `gallery_`."""
