"""Trees like dependency parses, any number of dependents a word: each has a polarity that its words make together, negations too."""

from __future__ import annotations

from typing import Any

import numpy as np

from experiments.data.generated.labelled_trees import Node, as_columns
from experiments.data.readers.data_checks import at_least_one

N_WORDS = 40
N_CLASSES = 3
"""Words; and classes: 0 negative, 1 neutral, 2 positive."""
MOST_DEPENDENTS = 4


def polarity(word: int) -> int:
    """What a word adds: -1, 0 or 1; the same for every seed."""
    return word % 3 - 1


def negates(word: int) -> bool:
    """Whether a word turns around the sum of its dependents: every fourth does."""
    return word % 4 == 0


def generate(
    n: int,
    seed: int | np.random.SeedSequence = 0,
    depth: int = 3,
) -> list[dict[str, Any]]:
    """Draws trees; a node's value is its own polarity and, turned around if its word negates, the sum of its dependents' values.

    Args:
      n: How many.
      seed: Same seed, same trees.
      depth: Edges from the root to a leaf at most.

    Returns:
      Instances: `tree`, whose nodes have a `word` and, as `label`, the class of their value's sign; and the root's `label`.

    Raises:
      SettingsError: If a count is below 1.
    """
    at_least_one("generate", n=n, depth=depth)
    rng = np.random.default_rng(seed)
    roots = [_draw(rng, depth)[0] for _ in range(n)]
    result = []
    for root in roots:
        result.append({"tree": as_columns(root), "label": np.int32(root.label)})
    return result


def _draw(
    rng: np.random.Generator,
    left: int,
) -> tuple[Node, int]:
    """A node and its value."""
    word = int(rng.integers(N_WORDS))
    if left:
        n_below = int(rng.integers(0, MOST_DEPENDENTS + 1))
    else:
        n_below = 0
    below = [_draw(rng, left - 1) for _ in range(n_below)]
    value = polarity(word) + (-1 if negates(word) else 1) * sum(value for _, value in below)
    return Node(word, int(np.sign(value)) + 1, [node for node, _ in below]), value
