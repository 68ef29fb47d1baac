"""Trees whose nodes have a word and a label, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import ampjax as amp


@dataclass(frozen=True)
class Node:
    """A node of a tree.

    Args:
      word: Its word's number.
      label: Its label.
      children: The nodes below it, in order.
    """

    word: int
    label: int
    children: Sequence[Node] = ()


def as_columns(root: Node) -> amp.Tree:
    """A tree as columns, the root first.

    Args:
      root: The root.

    Returns:
      The tree; its values are `word` and `label`, `[nodes]` int32 each.

    >>> as_columns(Node(7, 0, [Node(1, 1), Node(2, 0)])).value["word"].tolist()
    [7, 1, 2]
    """
    rows: list[tuple[int, int, int, int]] = []
    waiting = [(root, -1, 0)]
    while waiting:
        node, parent, side = waiting.pop()
        at = len(rows)
        rows.append((parent, side, node.word, node.label))
        waiting += [(child, at, i) for i, child in reversed(list(enumerate(node.children)))]
    parents, sides, words, labels = np.array(rows, np.int32).T
    return amp.Tree(parents, sides, {"word": words, "label": labels})
