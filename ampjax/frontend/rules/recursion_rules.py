"""The rule of recursions: an element's result goes to each place that asks for it, where a message waits.

A place that asks (`recur(j)`) reads an element by its number (`draft/reads.py`), and the results go around a loop until all places have them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from ampjax.errors import DataError, GraphError
from ampjax.frontend.combinators.recursion import RECALL, RECURSE
from ampjax.frontend.combinators.tracing import Call
from ampjax.frontend.deduction.lowering import MESSAGE_RULES, Lowering, by_dtype
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.index_spaces import Column, Guard, IndexSpace, Region
from ampjax.frontend.draft.reads import Reads
from ampjax.frontend.draft.values import Computed, Constant, Elements, Flow, Static, Value, Wanted
from ampjax.frontend.draft.waiting_levels import waiting_levels
from ampjax.frontend.rules.branch_rules import split_by
from ampjax.frontend.rules.sequence_rules import elements_space

_MEND = "Mend the numbers in the data."


@MESSAGE_RULES.of(RECURSE)
def recurse(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """Lowers the body for each element, and sends its results to all places in the body that ask for results."""
    (each,) = call.functions
    (n_closed,) = call.n_closed
    xs = operands[n_closed:]
    space = elements_space(xs, call.line)
    inner = region.within(space)
    name = space.dimension
    (closed,) = low.closures(
        call,
        operands,
        region,
        [space],
        name,
    )
    rows = [x.element for x in xs if isinstance(x, Elements)]
    types = [variable.aval for variable in each.jaxpr.outvars]
    groups = by_dtype(types)
    recursion = low.recursions[call.options["of"]] = _RecursionNodes(
        inner,
        groups,
        types,
    )
    results = low.run(
        each,
        [*closed, *rows],
        inner,
        Wanted(set(range(len(types))), groups=groups),
    )
    out: dict[int, Computed] = {}
    for number, group in enumerate(groups):
        kinds = [types[i] for i in group]
        flow = low.pack(
            [results[i] for i in group],
            kinds,
            inner,
            f"{name}/result",
            call.line,
        )
        flow = payload_notes.refresh_states(low.draft, flow, f"{name}/result", call.line)
        out |= {i: Computed(flow, part) for part, i in enumerate(group)}
        for place in recursion.places:
            place.connect(low, flow, number)
    low.draft.checks.append(lambda data: _check_order(data, recursion, call.line))
    result = []
    for i in range(len(types)):
        result.append(Elements(space, out[i]) if i in wanted.values else None)
    return result


@MESSAGE_RULES.of(RECALL)
def recall(
    low: Lowering,
    call: Call,
    operands: Sequence[Value],
    region: Region,
    wanted: Wanted,
) -> list[Any]:
    """Lowers a place that asks for an element's result: a negative number gets `init`, any other a copy of the result."""
    recursion = low.recursions.get(call.options["of"])
    number, *init = operands
    if recursion is None or recursion.space not in region.space.around():
        fix = "Pass on what it gave; its function is of this recursion alone."
        raise GraphError(
            call.line,
            "`recur` inside of the function that `amp.recurse` was given",
            "a call outside",
            fix,
        )
    if region.decisions != recursion.region.decisions:
        fix = "Ask before the choice, and use there what was given."
        raise GraphError(
            call.line,
            "`recur` where the instance decides what runs",
            "a call where a read value does",
            fix,
        )
    if not isinstance(number, Static | Constant):
        fix = "Take the number from the instance: what the recursion goes through can't depend on parameters."
        raise GraphError(
            call.line, "the number of an element, known from the instance", "a computed number", fix
        )
    kind = jax.ShapeDtypeStruct((), np.int32)
    place = _AskingPlace(
        recursion,
        region,
        low.column(number, region, kind),
        low.number("recur"),
        call.line,
    )
    recursion.places.append(place)
    return place.results(low, init)


@dataclass(eq=False)
class _RecursionNodes:
    """A recursion that is being lowered.

    Args:
      region: The elements.
      groups: Which results travel together.
      types: The results' types.
      places: Where results are asked for.
    """

    region: Region
    groups: Sequence[Sequence[int]]
    types: Sequence[Any]
    places: list[_AskingPlace] = field(default_factory=list)

    @property
    def space(self) -> IndexSpace:
        """The elements' space."""
        return self.region.space


class _AskingPlace:
    """A place in the function that asks for an element's result, for each row of a region.

    Args:
      recursion: The recursion.
      region: Where it is asked.
      number: The number of the element; negative for none.
      name: A name that no other place has.
      line: The user's line.
    """

    def __init__(
        self,
        recursion: _RecursionNodes,
        region: Region,
        number: Column,
        name: str,
        line: str,
    ):
        self.recursion = recursion
        self.region = region
        self.number = number
        self.name = name
        self.line = line
        has = Column(
            region.space,
            lambda data: (number.of(data) >= 0).astype(np.int64),
        )
        self._guards = [Guard(f"{name}_has", value, has) for value in (0, 1)]
        self.without, self.asking = (region.where(guard) for guard in self._guards)
        self._loops: list[tuple[Flow, Flow]] = []

    def results(
        self,
        low: Lowering,
        init: Sequence[Value],
    ) -> list[Value]:
        """Makes the place's values, to be connected later; and the values from `init`."""
        starts = [self._where_without(low, value) for value in init]
        values: dict[int, Value] = {}
        for group in self.recursion.groups:
            kinds = [self.recursion.types[i] for i in group]
            first = low.pack(
                [starts[i] for i in group],
                kinds,
                self.without,
                f"{self.name}/init",
                self.line,
            )
            flow = low.draft.loop(
                self.region,
                kinds,
                self.name,
                is_fresh=True,
            )
            self._loops.append(
                (
                    flow,
                    payload_notes.refresh_states(low.draft, first, f"{self.name}/init", self.line),
                )
            )
            values |= {i: Computed(flow, part) for part, i in enumerate(group)}
        return [values[i] for i in range(len(init))]

    def _where_without(self, low: Lowering, value: Value) -> Value:
        if not isinstance(value, Computed):
            return value
        field = self._note_has()
        guard = self._guards[0]
        fresh = payload_notes.refresh_states(
            low.draft,
            value.flow,
            self.name,
            self.line,
        )
        assert guard.column is not None
        return Computed(
            split_by(low, fresh, field, self._guards, low.draft.name(self.name))[0],
            value.part,
        )

    def _note_has(self) -> str:
        guard = self._guards[0]
        return self.region.space.fact(
            guard.field, guard.column, f"whether an element is asked ({self.line})"
        )

    def connect(self, low: Lowering, result: Flow, number: int) -> None:
        """Sends copies of the results to the rows that ask for results.

        Args:
          low: The lowering.
          result: The results, one for each element.
          number: Which of the groups they are.
        """
        reads = Reads(
            self.asking,
            self.recursion.space,
            lambda data: self.edges(data)[1],
            self.name,
            self.line,
        )
        flow, first = self._loops[number]
        low.draft.close_loop(
            flow,
            first,
            reads.copies(low.draft, result),
        )

    def edges(
        self,
        data: Any,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Finds, for each asking row, the row of its own element, and the row of the asked element."""

        def make():
            return asked_rows(
                data,
                self.recursion.space,
                self.asking,
                self.number,
                self.line,
            )

        return data.once((self, "edges"), make)


def _check_order(data: Any, recursion: _RecursionNodes, line: str) -> None:
    """Checks that no result is made of itself."""
    check_order(
        data,
        recursion.space,
        [place.edges(data) for place in recursion.places],
        line,
    )


def check_order(
    data: Any,
    space: IndexSpace,
    edges: Sequence[tuple[np.ndarray, np.ndarray]],
    line: str,
) -> np.ndarray:
    """Checks that no result is made of itself.

    Args:
      data: The data set.
      space: The elements' space.
      edges: For each place that asks, rows of the elements that ask, and of those that are asked.
      line: The user's line.

    Returns:
      `[elements]`: the level of each, as `waiting_levels` gives it.

    Raises:
      DataError: If one is.
    """
    asking = np.concatenate(
        [
            np.zeros(
                0,
                np.int64,
            ),
            *(a for a, _ in edges),
        ]
    )
    asked = np.concatenate(
        [
            np.zeros(
                0,
                np.int64,
            ),
            *(b for _, b in edges),
        ]
    )
    levels = waiting_levels(space.n_rows(data), asking, asked)
    for row in np.flatnonzero(levels < 0)[:1]:
        where = f"{line}, instance {space.instances(data)[row]}"
        raise DataError(
            where,
            "results that are not made of themselves",
            f"element {space.numbers(data)[row]}",
            _MEND,
        )
    return levels


def asked_rows(
    data: Any, elements: IndexSpace, place: Region, number: Column, line: str
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the asking and the asked elements at a place of a recursion.

    Args:
      data: The data set.
      elements: The elements' space.
      place: The rows that ask.
      number: For each row of its space, the number of the element that it asks.
      line: The user's line.

    Returns:
      `[asking rows]` each: the row of the element that each belongs to, and of the one that it asks.

    Raises:
      DataError: If there is no such element.
    """
    space = place.space
    rows = place.rows(data)
    places = space.rows_of(data, elements, np.arange(elements.n_rows(data)))
    numbers = number.of(data).astype(np.int64)
    if rows is not None:
        places = places[rows]
        numbers = numbers[rows]
    parents = elements.parents(data)[places]
    n = elements.lengths(data)[parents]
    for wrong in np.flatnonzero(numbers >= n)[:1]:
        where = f"{line}, instance {elements.instances(data)[places[wrong]]}"
        raise DataError(
            where, f"an element below {n[wrong]}, or a negative number", f"{numbers[wrong]}", _MEND
        )
    return places, elements.starts(data)[parents] + numbers
