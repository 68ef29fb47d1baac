"""ListOps (Nangia and Bowman 2018): nested lists of digits with an operation each, which have one to five members here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from experiments.data.generated.labelled_trees import Node, as_columns
from experiments.data.readers.data_checks import at_least_one

N_CLASSES = 10
"""The digits."""
MOST_MEMBERS = 5

OPERATIONS: Mapping[str, Callable[[list[int]], int]] = {
    "max": max,
    "min": min,
    "median": lambda members: int(np.median(members)),
    "sum modulo 10": lambda members: sum(members) % N_CLASSES,
}
"""By name; operation `k` is the word `10 + k`. The median of an even number of members is rounded down."""
N_WORDS = N_CLASSES + len(OPERATIONS)


def generate(
    n: int,
    seed: int | np.random.SeedSequence = 0,
    depth: int = 3,
) -> list[dict[str, Any]]:
    """Draws trees.

    Args:
      n: How many.
      seed: Same seed, same trees.
      depth: Operations from the root to a digit at most.

    Returns:
      Instances: `tree`, whose nodes have a `word` and, as `label`, the digit that the list below them gives; and the root's `label`.

    Raises:
      SettingsError: If a count is below 1.

    >>> generate(1)[0]["tree"].value["word"].tolist()[0] >= 10
    True
    """
    at_least_one("generate", n=n, depth=depth)
    rng = np.random.default_rng(seed)
    roots = [_draw(rng, depth, depth) for _ in range(n)]
    result = []
    for root in roots:
        result.append({"tree": as_columns(root), "label": np.int32(root.label)})
    return result


def _draw(
    rng: np.random.Generator,
    left: int,
    depth: int,
) -> Node:
    if left == 0 or (left < depth and rng.random() < 0.7):
        digit = int(rng.integers(N_CLASSES))
        return Node(digit, digit)
    children = []
    for _ in range(rng.integers(1, MOST_MEMBERS + 1)):
        children.append(_draw(rng, left - 1, depth))
    number = int(rng.integers(len(OPERATIONS)))
    label = list(OPERATIONS.values())[number]([child.label for child in children])
    return Node(N_CLASSES + number, label, children)
