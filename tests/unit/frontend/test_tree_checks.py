"""Which columns are trees, against a look at each node's way to the root."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampjax.errors import DataError
from ampjax.frontend.combinators.structures import check_trees


def is_tree(parent, side):
    """A root or several, parents that exist, sides 0, 1, ... below each node, and a way to a root from everywhere."""
    n = len(parent)
    if all(p >= 0 for p in parent) or any(p >= n for p in parent):
        return False
    if any(
        sorted(s for s, p in zip(side, parent, strict=True) if p == node)
        != list(range(parent.count(node)))
        for node in range(n)
    ):
        return False
    for node in range(n):
        steps = 0
        while parent[node] >= 0 and steps <= n:
            node = parent[node]
            steps = steps + 1
        if steps > n:
            return False
    return True


def grown(n, draw):
    """A tree whose nodes are numbered anyhow."""
    numbers = draw(st.permutations(range(n)))
    parent = [-1] * n
    side = [0] * n
    n_children = [0] * n
    for i in range(1, n):
        above = numbers[draw(st.integers(0, i - 1))]
        parent[numbers[i]] = above
        side[numbers[i]] = n_children[above]
        n_children[above] += 1
    return parent, side


@st.composite
def columns(draw):
    """A tree, as it is or with one number changed, or any numbers."""
    n = draw(st.integers(1, 7))
    if draw(st.integers(0, 3)) == 0:
        numbers = st.lists(
            st.integers(-1, n),
            min_size=n,
            max_size=n,
        )
        return draw(numbers), draw(numbers)
    parent, side = grown(n, draw)
    if draw(st.booleans()):
        changed = draw(st.sampled_from([parent, side]))
        changed[draw(st.integers(0, n - 1))] = draw(
            st.integers(
                -1,
                n,
            )
        )
    return parent, side


@given(st.lists(columns(), min_size=1, max_size=3))
def test_exactly_trees_pass(trees):
    parents, sides = (np.array([x for tree in trees for x in tree[i]]) for i in range(2))
    sizes = np.array([len(parent) for parent, _ in trees])
    wrong = []
    for number, tree in enumerate(trees):
        if not is_tree(*tree):
            wrong.append(number)
    if not wrong:
        check_trees("the tree", parents, sides, sizes)
        return
    with pytest.raises(DataError, match=r"instance \d+") as error:
        check_trees("the tree", parents, sides, sizes)
    assert int(str(error.value).split("instance ")[1].split(":")[0]) in wrong
