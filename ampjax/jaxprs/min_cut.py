"""A minimum cut: the values of a forward pass to record, so that the backward pass can compute the rest again.

Values that depend on parameters, or are expensive, cannot be computed again from inputs. Some of them follow from others by cheap
operations alone: both gates from the row that holds both, one minus a gate from the gate. Among all sets of values from which the wanted
ones follow in this way, the one with the fewest bytes is a minimum cut between the operations that are not cheap and the wanted values.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from jax.extend.core import Literal

CHEAP = frozenset((
    "add", "sub", "mul", "neg", "max", "min", "abs", "sign", "square", "integer_pow", "one_minus_square", "select_n", "gt", "lt", "ge", "le", "eq", "ne",
    "and", "or", "not", "convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "concatenate", "split", "slice", "transpose", "copy",
))  # fmt: skip
"""Primitives that cost about as much as reading their results."""

SOURCE = "source"
SINK = "sink"


def smallest_cut(
    equations: Sequence[Any],
    unrecoverable: Mapping[Any, bool],
    rows: Mapping[Any, int],
    wanted: Sequence[Any],
) -> list[Any]:
    """The variables to record, with the fewest bytes.

    Args:
      equations: The equations of a jaxpr.
      unrecoverable: Whether each variable cannot be computed again from inputs.
      rows: Bytes of a row of each variable that has a row for each message. No other variable can be recorded.
      wanted: Variables that must follow from the recorded ones, and may be recorded themselves.

    Returns:
      Variables, in the order in which they are computed.
    """
    order: list[Any] = []
    for equation in equations:
        order.extend(v for v in equation.outvars if unrecoverable.get(v))
    capacity = _network(equations, unrecoverable, rows)
    # The backward pass reads these.
    for var in wanted:
        capacity["out", var][SINK] = math.inf
    # Fill shortest paths until none is left (Edmonds and Karp): then the full edges hold a minimum cut.
    while (path := _path(capacity)) is not None:
        flow = min(capacity[a][b] for a, b in path)
        for a, b in path:
            capacity[a][b] -= flow
            # A later path may take flow back.
            capacity[b][a] += flow
    # Of all minimum cuts, take the one nearest to the sink.
    after = _find_reaching(capacity)
    result = []
    for var in order:
        if ("out", var) in after and ("in", var) not in after:
            result.append(var)
    return result


def _network(
    equations: Sequence[Any],
    unrecoverable: Mapping[Any, bool],
    rows: Mapping[Any, int],
) -> dict[Hashable, dict[Hashable, float]]:
    """Makes a flow network: a variable is an edge from its `in` to its `out`, as wide as a row, and cutting the edge records the variable."""
    capacity: dict[Hashable, dict[Hashable, float]] = defaultdict(lambda: defaultdict(float))
    for equation in equations:
        known = []
        for v in equation.invars:
            if not isinstance(v, Literal) and unrecoverable.get(v):
                known.append(v)
        cheap = equation.primitive.name in CHEAP and known and all(v in rows for v in known)
        # A cheap equation can be computed again from its inputs; any other result comes from the source, so it must be recorded.
        sources = [("out", v) for v in known] if cheap else [SOURCE]
        for var in equation.outvars:
            if unrecoverable.get(var):
                capacity["in", var]["out", var] = rows.get(
                    var,
                    math.inf,
                )
                for source in sources:
                    capacity[source]["in", var] = math.inf
    return capacity


def _path(
    capacity: Mapping[Hashable, Mapping[Hashable, float]],
) -> list[tuple[Hashable, Hashable]] | None:
    """A shortest path with capacity left, from the source to the sink."""
    previous: dict[Hashable, Hashable] = {SOURCE: SOURCE}
    queue = deque([SOURCE])
    # Breadth first, so that the path is a shortest one.
    while queue and SINK not in previous:
        here = queue.popleft()
        for target in [t for t, left in capacity[here].items() if left > 0 and t not in previous]:
            previous[target] = here
            queue.append(target)  # type: ignore[arg-type]
    if SINK not in previous:
        return None
    path: list[tuple[Hashable, Hashable]] = []
    here: Hashable = SINK
    # Walk back from the sink.
    while here != SOURCE:
        path.append((previous[here], here))
        here = previous[here]
    return path


def _find_reaching(capacity: Mapping[Hashable, Mapping[Hashable, float]]) -> set[Hashable]:
    """The vertices from which a path with capacity left leads to the sink."""
    back: dict[Hashable, list[Hashable]] = defaultdict(list)
    for here, ways in capacity.items():
        for target, left in ways.items():
            if left > 0:
                back[target].append(here)
    reaching: set[Hashable] = {SINK}
    stack: list[Hashable] = [SINK]
    while stack:
        new = [v for v in back[stack.pop()] if v not in reaching]
        reaching.update(new)
        stack.extend(new)
    return reaching
