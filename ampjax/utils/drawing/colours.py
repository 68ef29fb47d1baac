"""Every colour that our pictures use, in one place: Okabe and Ito's palette, which colour-blind people can tell apart.

Plain data without imports of ours, so that text export can use it too.
"""

from __future__ import annotations

from dataclasses import dataclass

BLACK = "#000000"
GREY = "#BBBBBB"
WHITE = "#FFFFFF"
ORANGE = "#E69F00"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
BLUE = "#0072B2"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"

SERIES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, BLACK)
"""Colours of lines, in the order of use; yellow is too light on white."""


@dataclass(frozen=True)
class Family:
    """Node kinds that share a colour.

    Args:
      name: One word.
      fill: The boxes' colour.
      ink: The colour of text on it.
      kinds: The node kinds. Control nodes that no family names belong to `control`, other nodes to `plain`.
    """

    name: str
    fill: str
    ink: str
    kinds: tuple[str, ...]


FAMILIES = (
    Family("source", GREY, BLACK, ("Pump",)),
    Family("parameterised", ORANGE, BLACK, ("PPT",)),
    Family("plain", SKY, BLACK, ("NPT", "Concat", "Split")),
    Family(
        "control",
        GREEN,
        BLACK,
        ("Cond", "Phi", "Isu", "Relabel", "Bcast", "RouteBy"),
    ),
    Family(
        "aggregate",
        PURPLE,
        BLACK,
        ("Group", "Ungroup", "Flatmap", "Repeat", "Distribute", "Collect", "Reduce"),
    ),
    Family("loss", VERMILION, BLACK, ("Loss",)),
    Family("sink", WHITE, BLACK, ("Sink",)),
)
"""The node kinds in the order of a legend."""

_BY_KIND = {kind: family for family in FAMILIES for kind in family.kinds}
_CONTROL = _BY_KIND["Cond"]
_PLAIN = _BY_KIND["NPT"]

SLICES = {
    "forward": (ORANGE, BLACK),
    "backward": (BLUE, WHITE),
    "update": (YELLOW, BLACK),
    "transfer": (GREY, BLACK),
    "infer": (GREEN, BLACK),
}
"""Fill and ink of a Gantt chart's boxes (AMPNet, figure 1: forward orange, backward blue, update yellow)."""


WAITS = {
    "rows": (GREEN, "\\\\\\\\"),
    "join": (PURPLE, "////"),
    "throttled": (VERMILION, "...."),
    "policy": (SKY, "xxxx"),
    "memory": (BLACK, "++++"),
    "starved": (WHITE, ""),
    "host": (WHITE, "----"),
}
"""Colour and hatching of a worker's time without work, by reason; hatched on white, so that work alone is filled."""


def family(kind: str, is_control: bool = False) -> Family:
    """The family of a node kind.

    Args:
      kind: For example `PPT`.
      is_control: Whether nodes of this kind are control nodes: such a kind is in the family `control` if the table does not have it.

    Returns:
      Its colours.
    """
    return _BY_KIND.get(kind, _CONTROL if is_control else _PLAIN)
