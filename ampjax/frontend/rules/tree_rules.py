"""The rule of trees, which become loops: a state goes to its parent by the fields `up` and `side`, or from a parent to each child."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.combinators.structures import check_trees
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.combinators.tree_combinators import FOLD, SCAN_TREE, wrong_arity
from ampjax.frontend.deduction.lowering import MESSAGE_RULES, Lowering, by_dtype
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.graph_draft import built_wire
from ampjax.frontend.draft.index_spaces import Column, Guard, IndexSpace, Region
from ampjax.frontend.draft.node_bodies import second
from ampjax.frontend.draft.values import Computed, Elements, Flow, Static, Value, Wanted
from ampjax.frontend.rules.branch_rules import route_values
from ampjax.frontend.rules.carry_loops import leave
from ampjax.frontend.rules.sequence_rules import elements_space
from ampjax.ir.builders import payload_builders, ragged_builders
from ampjax.ir.state import State


class TreeFields:
    """A tree's nodes as a space, and the state fields by which messages find their way.

    Args:
      parent: The column of parents.
      side: The column of sides.
      region: Where the tree is.
      arity: Children of each branch; None where it differs.
      call: The combinator.
    """

    def __init__(
        self,
        parent: Value,
        side: Value,
        region: Region,
        arity: int | None,
        call: Call,
    ):
        self.space = elements_space([parent, side], call.line)
        if self.space.is_ragged:
            fix = "Give the graph's nodes and the tree's dimensions of different names."
            raise GraphError(
                call.line,
                "a dimension of its own for the nodes of a tree",
                "the nodes of a graph",
                fix,
            )
        assert isinstance(parent, Elements) and isinstance(side, Elements)
        assert isinstance(parent.element, Static) and isinstance(side.element, Static)
        self._parent = parent.element.column
        self._side = side.element.column
        self.arity = arity
        self._line = call.line
        dimension = self.space.dimension
        self.at = self.space.index
        self.up = f"{dimension}_up"
        self.side = f"{dimension}_side"
        self.is_leaf = Column(
            self.space,
            lambda data: (self.n_children.of(data) == 0).astype(np.int64),
        )
        self.n_children = Column(self.space, self._count)

    def parents(self, data: Any) -> np.ndarray:
        """`[nodes]`: the number of each node's parent in its tree; below 0 for a root."""
        return self._parent.of(data)

    def note_up(self) -> None:
        """Puts the parent and the side into all messages of the tree; the first root's side is -1, the next one's -2, and so on."""
        self.space.fact(self.up, self._parent, "number of the parent")
        self.space.fact(
            self.side, Column(self.space, self._sides), "which child of its parent; -1 for the root"
        )

    def other_roots(self) -> Guard:
        """Makes the guard of roots other than the first one of their tree."""
        is_other = Column(
            self.space,
            lambda data: (self._sides(data) < -1).astype(np.int64),
        )
        return Guard(f"{self.space.dimension}_is_other_root", 1, is_other)

    def sides(self, data: Any) -> np.ndarray:
        """`[nodes]`: which child of its parent each node is; of a root any number."""
        return self._side.of(data)

    def guards(self, field: str) -> list[Guard]:
        """Makes the guards of branches and of leaves."""
        return [
            Guard(field, 0, self.is_leaf),
            Guard(field, 1, self.is_leaf),
        ]

    def roots(self, outer: IndexSpace) -> tuple[Column, Column]:
        """Computes the first root's number in each tree, and the number of its other roots."""

        def first(data: Any) -> np.ndarray:
            nodes = np.flatnonzero(self._sides(data) == -1)
            numbers = np.zeros(outer.n_rows(data), np.int64)
            numbers[self.space.parents(data)[nodes]] = self.space.numbers(data)[nodes]
            return numbers

        def others(data: Any) -> np.ndarray:
            return np.bincount(
                self.space.parents(data)[self._sides(data) < -1],
                minlength=outer.n_rows(data),
            )

        return Column(outer, first), Column(outer, others)

    def _sides(self, data: Any) -> np.ndarray:
        """`[nodes]`: the side of each; below 0 for roots."""
        sides = self._side.of(data).astype(np.int64)
        tree = self.space.parents(data)
        roots = np.flatnonzero(self._parent.of(data) < 0)
        ranks = np.arange(len(roots)) - np.searchsorted(tree[roots], tree[roots])
        sides[roots] = -1 - ranks
        return sides

    def _count(self, data: Any) -> np.ndarray:
        parent = self._parent.of(data)
        side = self._side.of(data)
        sizes = self.space.lengths(data)
        n = check_trees(
            f"the tree over `{self.space.dimension}` ({self._line})", parent, side, sizes
        )
        if self.arity:
            wrong = np.flatnonzero((n != 0) & (n != self.arity))
        else:
            wrong = ()
        for node in wrong[:1]:
            assert self.arity is not None
            where = f"{self._line}, instance {self.space.instances(data)[node]}"
            raise wrong_arity(
                where,
                self.arity,
                int(n[node]),
                int(self.space.numbers(data)[node]),
            )
        return n


@MESSAGE_RULES.of(FOLD)
def fold(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """Lowers a fold from the leaves up: a node's state goes to its parent, where it meets the states of its siblings."""
    leaf, branch = call.functions
    parent, side, *values = operands[sum(call.n_closed) :]
    tree = TreeFields(
        parent,
        side,
        region,
        call.options["arity"],
        call,
    )
    tree.note_up()
    space = tree.space
    inputs = _inputs_of_nodes(
        low,
        call,
        operands,
        values,
        region,
        tree,
    )

    n = len(leaf.jaxpr.outvars)
    climbs = _climbs(
        low,
        leaf,
        inputs,
        tree,
        region,
        call,
    )
    every = Wanted(
        set(range(n)),
        groups=[climb.group for climb in climbs],
    )
    of_children = _values_of_children(climbs, n, tree.arity)
    of_branch = low.run(
        branch,
        [*inputs.for_branch, *of_children],
        inputs.at_branch,
        every,
    )

    states: dict[int, Computed] = {}
    final: dict[int, Computed] = {}
    for climb in climbs:
        _close_climb(
            low,
            climb,
            of_branch,
            inputs.at_branch,
            f"{space.dimension}/branch",
            call.line,
        )
        states |= _values_in(climb.node, climb.group)
        if any(n + i in wanted.values for i in climb.group):
            left = leave(low, climb.root, space, region, f"{space.dimension}/root")
            final |= _values_in(left, climb.group)
    return [
        *(Elements(space, states[i]) for i in range(n)),
        *(final.get(i) for i in range(n)),
    ]


class _NodeInputs(NamedTuple):
    """The inputs of branches and of leaves: values of their own rows, and closures.

    Args:
      at_branch: Where branches are.
      at_leaf: Where leaves are.
      for_branch: Values there.
      for_leaf: Likewise.
      is_branch: The guard of branches.
    """

    at_branch: Region
    at_leaf: Region
    for_branch: Sequence[Value]
    for_leaf: Sequence[Value]
    is_branch: Guard


def _inputs_of_nodes(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    values: Sequence[Value],
    region: Region,
    tree: TreeFields,
) -> _NodeInputs:
    """Sends each node's values to the function of branches or of leaves."""
    leaf, branch = call.functions
    space = tree.space
    name = space.dimension
    inner = region.within(space)
    rows = [value.element for value in values if isinstance(value, Elements)]
    closed_leaf, closed_branch = low.closures(
        call,
        operands,
        region,
        [space, space],
        name,
    )
    guards = tree.guards(low.number("leaf"))
    inputs = [
        [*closed_branch, *rows],
        [*closed_leaf, *rows],
    ]
    for_branch, for_leaf = route_values(
        low,
        [branch, leaf],
        inputs,
        guards,
        name,
        call.line,
    )
    is_branch, is_leaf = guards
    return _NodeInputs(
        inner.where(is_branch),
        inner.where(is_leaf),
        for_branch,
        for_leaf,
        is_branch,
    )


class _Climb(NamedTuple):
    """The way up of a state's values of one dtype, which travel together.

    Args:
      group: The values' numbers.
      kinds: Their types.
      leaves: The states of leaves.
      node: The states of all nodes: a loop, until `_close_climb`.
      below: The states of children, at their parents.
      root: The state of each first root.
    """

    group: list[int]
    kinds: list[Any]
    leaves: Flow
    node: Flow
    below: Sequence[Flow]
    root: Flow


def _climbs(
    low: Lowering,
    leaf: Any,
    inputs: _NodeInputs,
    tree: TreeFields,
    region: Region,
    call: Call,
) -> list[_Climb]:
    """Computes the states of leaves, and begins the way up of all values."""
    types = [variable.aval for variable in leaf.jaxpr.outvars]
    groups = by_dtype(types)
    every = Wanted(set(range(len(types))), groups=groups)
    of_leaf = low.run(leaf, inputs.for_leaf, inputs.at_leaf, every)
    result = []
    for group in groups:
        result.append(
            _climb(
                low,
                group,
                [types[i] for i in group],
                of_leaf,
                inputs,
                tree,
                region,
                call,
            )
        )
    return result


def _climb(
    low: Lowering,
    group: list[int],
    kinds: list[Any],
    of_leaf: Sequence[Any],
    inputs: _NodeInputs,
    tree: TreeFields,
    region: Region,
    call: Call,
) -> _Climb:
    """Begins the way up of some values: from leaves into a loop, out of which states go to parents."""
    name = tree.space.dimension
    leaves = low.pack(
        [of_leaf[i] for i in group],
        kinds,
        inputs.at_leaf,
        f"{name}/leaf",
        call.line,
    )
    node = low.draft.loop(
        region.within(tree.space),
        kinds,
        f"{name}/state",
        is_fresh=True,
    )
    below, root = _upwards(
        low,
        node,
        tree,
        region,
        inputs.is_branch,
        call,
    )
    return _Climb(
        group,
        kinds,
        leaves,
        node,
        below,
        root,
    )


def _close_climb(
    low: Lowering,
    climb: _Climb,
    of_branch: Sequence[Any],
    at_branch: Region,
    name: str,
    line: str,
) -> None:
    """Sends the states of branches into the loop with the states of leaves."""
    flow = low.pack(
        [of_branch[i] for i in climb.group],
        climb.kinds,
        at_branch,
        name,
        line,
    )
    low.draft.close_loop(
        climb.node,
        climb.leaves,
        payload_notes.refresh_states(low.draft, flow, name, line),
    )


def _values_in(flow: Flow, group: Sequence[int]) -> dict[int, Computed]:
    """The values of a message by number."""
    return {i: Computed(flow, part) for part, i in enumerate(group)}


def _values_of_children(
    climbs: Sequence[_Climb],
    n: int,
    arity: int | None,
) -> list[Value]:
    """Finds a branch's inputs from its children: the values of one child after the other, or without an arity, each value as a sequence over the children.

    Args:
      climbs: The values that travel together, and the wires from the children.
      n: How many values a state has.
      arity: Children of each branch; None where it differs.
    """
    of_children: dict[int, Value] = {}
    for climb in climbs:
        for k, flow in enumerate(climb.below):
            for i, value in _values_in(flow, climb.group).items():
                if arity:
                    of_children[k * n + i] = value
                else:
                    of_children[i] = Elements(flow.region.space, value)
    return [of_children[i] for i in range(len(of_children))]


@MESSAGE_RULES.of(SCAN_TREE)
def scan(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """Lowers a scan from the root down: a node's state goes to each child, where it meets the child's message by the parent's number and the side."""
    (step,) = call.functions
    (n_closed,) = call.n_closed
    k = call.options["n_carry"]
    init = operands[n_closed : n_closed + k]
    parent, side, *values = operands[n_closed + k :]
    tree = TreeFields(parent, side, region, None, call)
    tree.note_up()
    space = tree.space
    name = tree.space.dimension
    inner = region.within(space)
    n_children = space.fact(f"{name}_children", tree.n_children, "children")
    starts = _starts_of(tree, region)
    (closed,) = low.closures(
        call,
        operands,
        region,
        [space],
        name,
    )
    rows = [value.element for value in values if isinstance(value, Elements)]
    types = [variable.aval for variable in step.jaxpr.outvars]
    groups = by_dtype(types)
    descents = []
    carry: dict[int, Computed] = {}
    for group in groups:
        descent = _descent(
            low,
            group,
            [types[i] for i in group],
            init,
            starts,
            tree,
            region,
            call,
        )
        descents.append(descent)
        carry |= _values_in(descent.above, descent.group)
    results = low.run(
        step,
        [
            *closed,
            *(carry[i] for i in range(k)),
            *rows,
        ],
        inner,
        Wanted(set(range(k)), groups=groups),
    )
    out: dict[int, Computed] = {}
    for descent in descents:
        flow = _close_descent(
            low,
            descent,
            results,
            inner,
            tree,
            n_children,
            call,
        )
        out |= _values_in(flow, descent.group)
    result = []
    for i in range(k):
        result.append(Elements(space, out[i]) if i in wanted.values else None)
    return result


class _Starts(NamedTuple):
    """The state fields by which a tree's initial value finds the roots.

    Args:
      root: The number of the first root.
      n_others: How many other roots there are.
    """

    root: str
    n_others: str


def _starts_of(tree: TreeFields, region: Region) -> _Starts:
    """Puts the fields of roots into the messages around a tree."""
    name = tree.space.dimension
    first_root, other_roots = tree.roots(region.space)
    return _Starts(
        region.space.fact(f"{name}_root", first_root, "number of the first root"),
        region.space.fact(f"{name}_roots", other_roots, "other roots"),
    )


class _Descent(NamedTuple):
    """The way down of carried values of one dtype, which travel together.

    Args:
      group: The values' numbers.
      kinds: Their types.
      first: The initial values at first roots.
      others: Those at other roots.
      above: The values that each node gets: a loop that is still open.
    """

    group: Sequence[int]
    kinds: list[Any]
    first: Flow
    others: Flow
    above: Flow


def _descent(
    low: Lowering,
    group: Sequence[int],
    kinds: list[Any],
    init: Sequence[Value],
    starts: _Starts,
    tree: TreeFields,
    region: Region,
    call: Call,
) -> _Descent:
    """Begins the way down of some values: from a tree's initial values to its roots."""
    space = tree.space
    name = space.dimension
    inner = region.within(space)
    packed = low.pack(
        [init[i] for i in group],
        kinds,
        region,
        f"{name}/init",
        call.line,
    )
    start = payload_notes.refresh_states(
        low.draft,
        packed,
        name,
        call.line,
    )

    def begin(s: State) -> State:
        return s.replace(
            **dict.fromkeys(space.facts, 0),
            **{tree.at: getattr(s, starts.root)},
        )

    first = low.draft.relabel(start, inner, begin, f"{name}/first", is_fresh=False)
    above = low.draft.loop(inner, kinds, f"{name}/above")
    others = _to_other_roots(
        low,
        start,
        tree,
        starts.n_others,
        call,
    )
    return _Descent(
        group,
        kinds,
        first,
        others,
        above,
    )


def _close_descent(
    low: Lowering,
    descent: _Descent,
    results: Sequence[Any],
    inner: Region,
    tree: TreeFields,
    n_children: str,
    call: Call,
) -> Flow:
    """Sends each node's results to its children, into the loop where initial values are; returns the results' message."""
    name = f"{tree.space.dimension}/below"
    flow = low.pack(
        [results[i] for i in descent.group],
        descent.kinds,
        inner,
        name,
        call.line,
    )
    flow = payload_notes.refresh_states(low.draft, flow, name, call.line)
    low.draft.close_loop(
        descent.above,
        descent.first,
        descent.others,
        _to_children(low, flow, tree, n_children, call),
    )
    return flow


def _upwards(
    low: Lowering,
    node: Flow,
    tree: TreeFields,
    region: Region,
    is_branch: Guard,
    call: Call,
) -> tuple[list[Flow], Flow]:
    """Sends states of each side's children to their parents (for any arity all in one wire), and the first root's out; states of other roots end here."""
    space = tree.space
    name = tree.space.dimension
    arity = call.options["arity"]
    at = tree.at
    up = tree.up
    side = tree.side
    inner = region.within(space)
    if arity:
        choose = lambda s: np.where(
            getattr(s, side) < 0,
            np.minimum(arity - 1 - getattr(s, side), arity + 1),
            getattr(s, side),
        )
        *below, root, _ = low.draft.split(
            node,
            choose,
            [inner] * (arity + 2),
            f"{name}/side",
        )

        def swap(s):
            return s.replace(**{at: getattr(s, up)})

        return [
            low.draft.relabel(
                flow,
                inner.where(is_branch),
                swap,
                f"{name}/up",
                False,
            )
            for flow in below
        ], root
    children = space.along(call.options["inner"], tree.n_children)
    low.lengths[call.options["inner"]] = tree.n_children
    index = children.index
    choose = lambda s: np.clip(-getattr(s, side), 0, 2)
    below, root, _ = low.draft.split(
        node,
        choose,
        [inner] * 3,
        f"{name}/side",
    )

    def rise(s: State) -> State:
        return s.replace(
            **{at: getattr(s, up), index: getattr(s, side)},
            **dict.fromkeys(children.facts, 0),
        )

    risen = low.draft.relabel(
        below, inner.where(is_branch).within(children), rise, f"{name}/up", False
    )
    risen.knows_outer = (
        False  # the facts of the tree's nodes are still the child's, not its parent's
    )
    return [risen], root


def _to_other_roots(
    low: Lowering, start: Flow, tree: TreeFields, n_others: str, call: Call
) -> Flow:
    """Sends a tree's initial value to each of its roots but the first; messages meet by the root's side."""
    space = tree.space
    name = tree.space.dimension
    at = tree.at
    side = tree.side
    roots = start.region.within(space).where(tree.other_roots())
    place = payload_notes.place(low.draft, roots, f"{name}/root", call.line)
    sent = low.draft.name(f"{name}/roots")
    met = low.draft.name(f"{name}/root")
    key = (
        *(space.parent.key if space.parent else ()),
        side,
    )

    def make() -> Any:
        def to_each(s, i):
            return s.replace(
                **dict.fromkeys(space.facts, 0),
                **{at: 0},
            ).replace(**{side: -2 - i})

        copies = ragged_builders.flatmap(
            built_wire(start), lambda s: getattr(s, n_others), to_each, name=sent
        )
        return payload_builders.npt(met, second, join=key)(
            built_wire(place),
            copies,
        )

    return low.draft.control(roots, start.types, make)


def _to_children(
    low: Lowering,
    flow: Flow,
    tree: TreeFields,
    n_children: str,
    call: Call,
) -> Flow:
    """Sends a node's state to each of its children, where it meets the child's message by the parent's number and the side."""
    space = tree.space
    name = tree.space.dimension
    at = tree.at
    up = tree.up
    side = tree.side
    has_parent = Guard(
        f"{name}_has_parent",
        1,
        Column(
            space,
            lambda data: (tree.parents(data) >= 0).astype(np.int64),
        ),
    )
    place = payload_notes.place(
        low.draft, flow.region.where(has_parent), f"{name}/child", call.line
    )
    sent = low.draft.name(f"{name}/children")
    met = low.draft.name(f"{name}/child")
    key = (
        *(space.parent.key if space.parent else ()),
        up,
        side,
    )

    def make() -> Any:
        def to_each(s, i):
            return s.replace(
                **{
                    up: getattr(s, at),
                    side: i,
                    at: 0,
                }
            )

        copies = ragged_builders.flatmap(
            built_wire(flow), lambda s: getattr(s, n_children), to_each, name=sent
        )
        return payload_builders.npt(met, second, join=key)(
            built_wire(place),
            copies,
        )

    return low.draft.control(flow.region, flow.types, make)
