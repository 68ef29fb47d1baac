"""Combinators over trees: states from the leaves up, and from the root down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from ampjax.errors import DataError, GraphError
from ampjax.frontend.combinators.draw_places import EACH, Use
from ampjax.frontend.combinators.empty_sequences import blank, learns_types, none_of
from ampjax.frontend.combinators.sequences import is_symbolic, sequences_of
from ampjax.frontend.combinators.structures import Tree, is_rows, stack
from ampjax.frontend.combinators.tracing import (
    Call,
    Combinator,
    along,
    as_arrays,
    bind,
    dimensions,
    require_same,
    require_structure,
    trace,
    type_of,
    user_line,
)

FOLD = Combinator("fold")
SCAN_TREE = Combinator("scan_tree")


def fold_tree(
    leaf: Callable[..., Any],
    branch: Callable[..., Any],
    tree: Tree,
    *,
    arity: int | None = None,
) -> tuple[Any, Any]:
    """Computes a state for each node of a tree, from the leaves up.

    When it runs: `leaf` and `branch` are traced once. Then they run on the device: as messages once for each node, when its children's
    states have come; as a batch once for all leaves, and step by step for the branches whose children are done.

    Args:
      leaf: `leaf(value)`: a leaf's state, a pytree of arrays.
      branch: `branch(value, child_0, ..., child_k)` with `arity` children; without `arity`, `branch(value, children)`, where `children` is
        the sequence of their states, of any length.
      tree: The tree.
      arity: How many children every branch has.

    Returns:
      The sequence of all nodes' states, in the order of the tree's rows, and the root's state; of several roots the first one's.

    Raises:
      GraphError: If leaf and branch give different types.
      DataError: If a branch has not `arity` children.
    """
    use = Use()
    if not _is_traced(tree):
        return _fold_now(leaf, branch, _with_arrays(tree), arity, use)
    line = user_line()
    dimension = tree.parent.shape[0]
    values, structure = jax.tree.flatten(tree.value)
    value = structure.unflatten([jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in values])
    first, first_closed, types = trace(
        leaf,
        value,
        inside=use.inside(0, EACH),
    )
    state = first.results.unflatten([jax.ShapeDtypeStruct(a.shape, a.dtype) for a in types])
    known = dimensions()
    assert known is not None
    inner = f"{dimension}_child"
    if arity:
        children_types = [state] * arity
    else:
        children_types = [
            jax.tree.map(
                lambda a: jax.ShapeDtypeStruct(
                    (known.get(inner), *a.shape),
                    a.dtype,
                ),
                state,
            )
        ]
    fix = (
        "Mend its arguments."
        if arity
        else "Take the children as one sequence, or pass `arity`, the number of children."
    )
    second, second_closed, results = trace(
        branch,
        value,
        *children_types,
        inside=use.inside(1, EACH),
        fix=fix,
    )
    fix = "Return the same structure from both."
    require_structure(line, "{} from branch, as leaf returns", first.results, second.results, fix)
    require_same(line, "branch to return the same types as leaf", types, results)
    call = Call(
        FOLD,
        [*(along(dimension, a) for a in types), *types],
        (first, second),
        (len(first_closed), len(second_closed)),
        line,
        {"arity": arity, "inner": inner},
    )
    out = bind(
        call,
        [*first_closed, *second_closed, tree.parent, tree.side, *values],
    )
    return first.results.unflatten(out[: len(types)]), first.results.unflatten(out[len(types) :])


def _fold_now(
    leaf: Callable[..., Any],
    branch: Callable[..., Any],
    tree: Tree,
    arity: int | None,
    use: Use,
) -> tuple[Any, Any]:
    """Computes the states of a tree that is there, one node after the other."""
    if learns_types() and not len(tree.parent):
        with use.inside(0):
            state = leaf(_blank(tree))
        return none_of(use, lambda: state), state
    children = tree.children()
    states: list[Any] = [None] * len(children)
    for node in reversed(_from_roots(children, tree)):
        value = _value(tree, node)
        below = [states[child] for child in children[node]]
        if below and arity and len(below) != arity:
            raise wrong_arity(user_line(), arity, len(below), node)
        with use.inside(bool(below), node):
            if below:
                states[node] = branch(
                    value,
                    *(below if arity else [stack(below)]),
                )
            else:
                states[node] = leaf(value)
    return stack(states), states[_roots(tree)[0]]


def wrong_arity(
    where: str,
    arity: int,
    n_children: int,
    node: int,
) -> DataError:
    """The error of a branch with another number of children.

    Args:
      where: The user's line, and the instance where that is known.
      arity: How many children every branch should have.
      n_children: How many this one has.
      node: Its number in its tree.
    """
    return DataError(
        where,
        f"{arity} children of every branch, as `arity` says",
        f"{n_children} of node {node}",
        "Leave `arity` out: then the branch function gets a sequence of children.",
    )


def scan_tree(
    f: Callable[[Any, Any], Any],
    init: Any,
    tree: Tree,
) -> Any:
    """Computes a state for each node of a tree, from the root down.

    When it runs: `f` is traced once. Then it runs on the device: as messages once for each node, when its parent's state has come, as a
    batch once for each level of all trees.

    Args:
      f: `f(state, value) -> state`: a node's state from its parent's and its own value.
      init: What each root gets as its parent's state, a pytree of arrays.
      tree: The tree.

    Returns:
      The sequence of all nodes' states, in the order of the tree's rows.

    Raises:
      GraphError: If the state changes its types.
    """
    init = as_arrays("to begin with", init)
    use = Use()
    if not _is_traced(tree):
        tree = _with_arrays(tree)
        if learns_types() and not len(tree.parent):
            return none_of(use, lambda: init)
        children = tree.children()
        parent = [int(p) for p in tree.parent]
        states: list[Any] = [None] * len(children)
        for node in _from_roots(children, tree):
            with use.inside(0, node):
                states[node] = f(
                    init if parent[node] < 0 else states[parent[node]],
                    _value(tree, node),
                )
        return stack(states)
    line = user_line()
    dimension = tree.parent.shape[0]
    leaves, structure = jax.tree.flatten(init)
    values, value_structure = jax.tree.flatten(tree.value)
    value = value_structure.unflatten([jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in values])
    step, closed, results = trace(
        f,
        jax.tree.map(type_of, init),
        value,
        inside=use.inside(0, EACH),
    )
    require_structure(
        line,
        "a function that returns the state, {}",
        structure,
        step.results,
        "Return it as `init` is built.",
    )
    require_same(line, "a state that keeps its types", [type_of(x) for x in leaves], results)
    call = Call(
        SCAN_TREE,
        [along(dimension, a) for a in results],
        (step,),
        (len(closed),),
        line,
        {"n_carry": len(leaves)},
    )
    return structure.unflatten(
        bind(
            call,
            [*closed, *leaves, tree.parent, tree.side, *values],
        )
    )


def _is_traced(tree: Tree) -> bool:
    if not isinstance(tree, Tree):
        raise GraphError(
            user_line(),
            "an `amp.Tree`",
            f"{type(tree).__name__}",
            "Make one with `amp.Tree.of(...)` or from its columns.",
        )
    return is_symbolic([tree.parent])


def _with_arrays(tree: Tree) -> Tree:
    """A tree whose columns are arrays, or rows of different lengths."""
    (parent, side, *values), structure = sequences_of(
        "a tree", (tree.parent, tree.side, tree.value)
    )
    return Tree(*structure.unflatten([parent, side, *values]))


def _from_roots(
    children: list[list[int]],
    tree: Tree,
) -> list[int]:
    order = [*_roots(tree)]
    for node in order:
        order += children[node]
    return order


def _roots(tree: Tree) -> list[int]:
    return [node for node, parent in enumerate(tree.parent) if parent < 0]


def _value(tree: Tree, node: int) -> Any:
    return jax.tree.map(
        lambda x: x[node],
        tree.value,
        is_leaf=is_rows,
    )


def _blank(tree: Tree) -> Any:
    """Makes a stand-in for the value of a node."""
    return jax.tree.map(blank, tree.value, is_leaf=is_rows)
