"""Rules that turn trees into steps: leaves together, then branches after their children; or a node's state from its parent's, level by level."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ampjax.frontend.batch_rules.loop_parts import with_early_products
from ampjax.frontend.batch_rules.sequence_steps import sequences
from ampjax.frontend.batch_rules.step_loops import in_steps, waiting_steps
from ampjax.frontend.batch_rules.waiting_loops import waiting_loop, where, zeros_of
from ampjax.frontend.batches.programs_of_rows import View
from ampjax.frontend.batches.room_bodies import Body
from ampjax.frontend.batches.row_lowering import STEP_RULES, Value
from ampjax.frontend.batches.step_frames import Before
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.combinators.tree_combinators import FOLD, SCAN_TREE
from ampjax.frontend.draft.index_spaces import Column, Guard, IndexSpace
from ampjax.frontend.draft.values import Constant, Elements, Static
from ampjax.frontend.draft.waiting_levels import waiting_levels
from ampjax.frontend.rules.tree_rules import TreeFields


@STEP_RULES.of(FOLD)
def fold(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """From the leaves up."""
    leaf, branch = call.functions
    n_leaf, n_branch = call.n_closed
    arity = call.options["arity"]
    n_closed = n_leaf + n_branch
    parent, side, *values = sequences(body, operands[n_closed:])
    tree = TreeFields(parent, side, body.region, arity, call)
    _check(body, tree)
    inner = body.inside(tree.space)
    rows = [value.element for value in values]
    branch = with_early_products(branch, branch.jaxpr.invars[len(rows) :])
    types = [variable.aval for variable in leaf.jaxpr.outvars]
    leaves = inner.inside(tree.space.part(tree.is_leaf, 1))
    states = leaves.guarded(
        leaves.room,
        lambda there: there.run(leaf, [*operands[:n_leaf], *rows]),
    )
    children = IndexSpace(tree.space, call.options["inner"], tree.n_children)
    body.low.host.lengths[call.options["inner"]] = tree.n_children
    given = [*operands[n_leaf:n_closed], *rows]
    kids_of = _reader_of_children(tree, children, arity, types)

    is_branch = Guard("is_leaf", 0, tree.is_leaf)

    def step(there: Body, states: list[Value]) -> list[Value]:
        body.low.guards[there.room.frame] = is_branch
        return there.run(branch, [*given, *kids_of(there, states)])

    def levels(data: Any) -> np.ndarray:
        return data.once((tree, "levels"), lambda: _heights(data, tree))

    if arity and in_steps(inner, branch, given, types):
        there = Before(
            leaves.room.place,
            lambda data: np.where(levels(data) < 0, leaves.space.first_rows(data), -1),
        )
        before = [leaves.rows(state, kind) for state, kind in zip(states, types, strict=True)]
        found = waiting_steps(inner, branch, levels, (before, there), types, step)
    else:
        start = []
        for state, kind in zip(states, types, strict=True):
            start.append((_of_leaves(leaves, state, kind, tree.space), kind))
        found = waiting_loop(inner, levels, start, step, call, branch)
    return [*found, *_of_roots(body, tree, found)]


def _reader_of_children(
    tree: TreeFields,
    children: IndexSpace,
    arity: int | None,
    types: Sequence[Any],
) -> Callable[[Body, list[Value]], list[Value]]:
    """Makes a function from the states of all nodes to the states of branches' children.

    Args:
      tree: The tree.
      children: The space of all nodes' children.
      arity: How many children each branch has; None or 0 for any number, whose states are a sequence.
      types: The types of a state's parts.

    Returns:
      A function of the branches and the parts of all nodes' states, to the parts of the children's states.
    """

    def rows_of_children(data: Any) -> np.ndarray:
        return data.once(
            (tree, "children"),
            lambda: _children(data, tree, children),
        )

    @functools.cache
    def child(number: int) -> Any:
        def find(data: Any) -> np.ndarray:
            rows = rows_of_children(data)
            starts = children.starts(data)
            is_there = children.lengths(data) > number
            found = np.full(len(starts), -1)
            found[is_there] = rows[starts[is_there] + number]
            return found

        return find

    def one_by_one(there: Body, states: list[Value]) -> list[Value]:
        del there
        kids: list[Value] = []
        for number in range(arity or 0):
            for state in states:
                kids.append(View(state.rows, tree.space, child(number)))
        return kids

    def in_sequence(there: Body, states: list[Value]) -> list[Value]:
        # read here, not where an empty level would be left out: of what is left out, derivatives would be of all rows
        around = there.inside(children)
        kids: list[Value] = []
        for state, kind in zip(states, types, strict=True):
            below = View(state.rows, children, rows_of_children)
            read: Value = View(around.rows(below, kind), children)
            kids.append(Elements(children, read))
        return kids

    return one_by_one if arity else in_sequence


def _of_roots(
    body: Body,
    tree: TreeFields,
    found: Sequence[Value],
) -> list[Value]:
    """Picks the roots' states from the states of all nodes."""
    space = tree.space
    first, _ = tree.roots(body.space)

    def root(data: Any) -> np.ndarray:
        return space.starts(data) + first.of(data)

    roots = []
    for each in found:
        roots.append(
            body.low.value_at(
                each.element,
                space,
                body.space,
                root,
                (tree, "root"),
            )
        )
    return roots


@STEP_RULES.of(SCAN_TREE)
def scan(
    body: Body,
    call: Call,
    operands: Sequence[Value],
) -> list[Value]:
    """From the root down."""
    (step,) = call.functions
    (n_closed,) = call.n_closed
    k = call.options["n_carry"]
    init = operands[n_closed : n_closed + k]
    parent, side, *values = sequences(body, operands[n_closed + k :])
    tree = TreeFields(parent, side, body.region, None, call)
    _check(body, tree)
    space = tree.space
    rows = [value.element for value in values]
    step = with_early_products(step, step.jaxpr.invars[:k])
    types = [variable.aval for variable in step.jaxpr.outvars]
    is_root = Static(Column(space, lambda data: tree.parents(data) < 0))

    def above(data: Any) -> np.ndarray:
        return np.where(
            tree.parents(data) < 0,
            -1,
            space.starts(data)[space.parents(data)] + tree.parents(data),
        )

    def each(there: Body, states: list[Value]) -> list[Value]:
        before = []
        for own, state, kind in zip(init, states, types, strict=True):
            before.append(
                where(
                    there,
                    is_root,
                    own,
                    View(state.rows, space, above),
                    kind,
                )
            )
        return there.run(
            step,
            [*operands[:n_closed], *before, *rows],
        )

    def levels(data: Any) -> np.ndarray:
        return data.once(
            (tree, "levels"),
            lambda: _depths(data, above(data)),
        )

    inner = body.inside(space)
    if in_steps(inner, step, [*operands[: n_closed + k], *rows], types):
        return waiting_steps(inner, step, levels, ([], None), types, each)
    start = [(Constant(zeros_of(kind)), kind) for kind in types]
    return waiting_loop(inner, levels, start, each, call, step)


def _check(body: Body, tree: TreeFields) -> None:
    """Adds a check that all examples have trees."""
    body.low.host.draft.checks.append(lambda data: tree.n_children.of(data))


def _of_leaves(
    leaves: Body,
    state: Value,
    kind: Any,
    space: IndexSpace,
) -> Value:
    """Returns leaves' states as a value of all nodes; the values at branches do not matter."""
    rows = View(leaves.rows(state, kind), leaves.space)
    return leaves.low.value_at(
        rows,
        leaves.space,
        space,
        leaves.space.first_rows,
        "leaf",
    )


def _depths(data: Any, above: np.ndarray) -> np.ndarray:
    inner = np.flatnonzero(above >= 0)
    return waiting_levels(len(above), inner, above[inner])


def _parents(data: Any, tree: TreeFields) -> np.ndarray:
    """`[nodes]`: the row of each node's parent; -1 for a root."""
    space = tree.space
    parents = tree.parents(data)
    return np.where(
        parents < 0,
        -1,
        space.starts(data)[space.parents(data)] + parents,
    )


def _heights(data: Any, tree: TreeFields) -> np.ndarray:
    """`[nodes]`: the level of each branch, from 0; -1 for leaves."""
    above = _parents(data, tree)
    inner = np.flatnonzero(above >= 0)
    return waiting_levels(len(above), above[inner], inner) - 1


def _children(data: Any, tree: TreeFields, children: IndexSpace) -> np.ndarray:
    """`[children of all nodes]`: the row of each child, in the order of sides."""
    above = _parents(data, tree)
    inner = np.flatnonzero(above >= 0)
    found = np.zeros(children.n_rows(data), np.int64)
    found[children.starts(data)[above[inner]] + tree.sides(data)[inner]] = inner
    return found
