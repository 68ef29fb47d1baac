"""What to record so that some values can be had again: a smallest cut through a computation.

Values that depend on parameters (or are dear) cannot be computed again from inputs. Some of them can be had from others with cheap operations
alone: both gates from the row of both, one minus a gate from the gate. Of all sets of values from which all that is wanted follows so, the one with
the fewest bytes is a minimum cut between the operations that are not cheap and what is wanted.
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
"""Primitives that cost about as much as reading what they make."""

SOURCE, SINK = "source", "sink"


def smallest_cut(
    equations: Sequence[Any], traits: Mapping[Any, bool], rows: Mapping[Any, int], wanted: Sequence[Any]
) -> list[Any]:
    """The variables to record, in the order in which they are computed.

    Args:
      equations: Of a jaxpr.
      traits: Whether each variable cannot be computed again from inputs.
      rows: Bytes of a row of each variable that has a row per message: no other can be recorded.
      wanted: Variables that must follow from what is recorded, and can be recorded themselves.
    """
    room: dict[Hashable, dict[Hashable, float]] = defaultdict(lambda: defaultdict(float))
    order: list[Any] = []
    for equation in equations:
        known = [v for v in equation.invars if not isinstance(v, Literal) and traits.get(v)]
        cheap = equation.primitive.name in CHEAP and known and all(v in rows for v in known)
        for var in (v for v in equation.outvars if traits.get(v)):
            order.append(var)
            room["in", var]["out", var] = rows.get(var, math.inf)
            for source in [("out", v) for v in known] if cheap else [SOURCE]:
                room[source]["in", var] = math.inf
    for var in wanted:
        room["out", var][SINK] = math.inf
    while (path := _path(room)) is not None:
        flow = min(room[a][b] for a, b in path)
        for a, b in path:
            room[a][b] -= flow
            room[b][a] += flow
    after = _reaching(room)
    return [var for var in order if ("out", var) in after and ("in", var) not in after]


def _path(room: Mapping[Hashable, Mapping[Hashable, float]]) -> list[tuple[Hashable, Hashable]] | None:
    """A shortest way with room from the source to the sink."""
    came: dict[Hashable, Hashable] = {SOURCE: SOURCE}
    queue = deque([SOURCE])
    while queue and SINK not in came:
        here = queue.popleft()
        for there in [t for t, left in room[here].items() if left > 0 and t not in came]:
            came[there] = here
            queue.append(there)  # type: ignore[arg-type]
    if SINK not in came:
        return None
    path: list[tuple[Hashable, Hashable]] = []
    here: Hashable = SINK
    while here != SOURCE:
        path.append((came[here], here))
        here = came[here]
    return path


def _reaching(room: Mapping[Hashable, Mapping[Hashable, float]]) -> set[Hashable]:
    """The vertices with a way to the sink that has room."""
    back: dict[Hashable, list[Hashable]] = defaultdict(list)
    for here, ways in room.items():
        for there, left in ways.items():
            if left > 0:
                back[there].append(here)
    found: set[Hashable] = {SINK}
    stack: list[Hashable] = [SINK]
    while stack:
        new = [v for v in back[stack.pop()] if v not in found]
        found.update(new)
        stack.extend(new)
    return found
