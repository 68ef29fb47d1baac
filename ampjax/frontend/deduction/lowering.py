"""Lowering a model: its functions become nodes, and values come where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ampjax.errors import GraphError
from ampjax.frontend.combinators.tracing import Call, Combinator, Rules, Traced
from ampjax.frontend.combinators.user_errors import BATCHES_TAKE_MOST
from ampjax.frontend.deduction.equations import Equation
from ampjax.frontend.deduction.function_lowering import FunctionLowering
from ampjax.frontend.deduction.opened_functions import Opened, open_function
from ampjax.frontend.draft import payload_notes
from ampjax.frontend.draft.graph_draft import GraphDraft
from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.node_bodies import NodeNote, as_it_is
from ampjax.frontend.draft.payload_types import raw, raw_type
from ampjax.frontend.draft.values import (
    Computed,
    Constant,
    Elements,
    Flow,
    LossTerm,
    SequenceSource,
    Static,
    Value,
    Wanted,
    leaves_of,
    read_of,
)

Rule = Callable[["Lowering", Call, Sequence[Value], Region, Wanted], list[Any]]
"""How a combinator becomes nodes: from its operands, where it is used, and what of its results is wanted, to the results' values."""

MESSAGE_RULES = Rules[Rule]()
"""How each combinator becomes nodes; the modules in `ampjax/frontend/rules` register theirs."""


class Lowering:
    """Lowers the functions of one model.

    Args:
      params: The model's parameters, a dictionary.
      rules: How each combinator becomes nodes.
      of_rows: Whether it finds out what a batch as one function reads, and makes no graph.

    Attributes:
      draft: The graph to be.
      terms: The summands of the loss, and the metrics.
      recursions: Those that are being lowered, by the object that their calls name them with.
    """

    def __init__(
        self,
        params: Mapping[str, Any],
        rules: Mapping[Combinator, Rule],
        of_rows: bool = False,
    ):
        self.of_rows = of_rows
        self.draft = GraphDraft(params)
        self.terms: list[LossTerm] = []
        self.lengths: dict[str, Column] = {}
        self.recursions: dict[Any, Any] = {}
        self._rules = rules
        self._numbers: dict[str, int] = {}
        self._made: dict[Hashable, Any] = {}

    def number(self, prefix: str) -> str:
        """A name that nothing has, such as `if_2`."""
        self._numbers[prefix] = self._numbers.get(prefix, 0) + 1
        return f"{prefix}_{self._numbers[prefix]}"

    def once(
        self,
        key: Hashable,
        make: Callable[[], Any],
    ) -> Any:
        """Makes a shared object at its first use, for several places."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def run(
        self,
        function: Traced,
        values: Sequence[Value],
        region: Region,
        wanted: Wanted,
    ) -> list[Any]:
        """Lowers a function.

        Args:
          function: The function.
          values: What its variables are.
          region: Where it is computed.
          wanted: What of its results is needed.

        Returns:
          What each result is; None where it is not wanted.
        """
        return self.run_opened(open_function(function, values), region, wanted)

    def run_opened(
        self,
        function: Opened,
        region: Region,
        wanted: Wanted,
    ) -> list[Any]:
        """Lowers a function's equations; see `run`."""
        return FunctionLowering(self, region, function).lower(wanted)

    def call(
        self, equation: Equation, operands: Sequence[Value], region: Region, wanted: Wanted
    ) -> list[Any]:
        """Lowers a combinator.

        Args:
          equation: Its equation.
          operands: What its operands are.
          region: Where it is used.
          wanted: What of its results is needed.
        """
        call = equation.call
        assert call is not None
        if region.space.is_ragged and not call.kind.in_ragged:
            word = call.options.get("word", call.kind.name)
            fix = "Choose with `jnp.where`; put what has a length, or rounds, outside of the `map` over the nodes."
            raise GraphError(
                call.line,
                "arrays alone in what is computed for each node of a graph",
                f"`{word}`",
                fix,
            )
        return self._rules[call.kind](self, call, operands, region, wanted)

    # -- values in another place

    def into(
        self,
        value: Value,
        region: Region,
        space: IndexSpace,
        name: str,
        line: str,
    ) -> Value:
        """Brings a value of a region into a space of elements inside the region.

        Args:
          value: The value.
          region: Where it is.
          space: The elements' space; its parent is the region's space.
          name: What new nodes are called after.
          line: The user's line.

        Raises:
          GraphError: If it is a sequence of sequences that is computed.
        """
        if isinstance(value, Computed):
            return Computed(
                payload_notes.send_in(self.draft, value.flow, space, name),
                value.part,
                value.was_read,
            )
        if isinstance(value, Elements):
            outer = region.space
            return self._copy_sequence(
                value,
                region,
                space,
                lambda data: space.rows_of(data, outer, np.arange(outer.n_rows(data))),
                line,
            )
        return value

    def closures(
        self,
        call: Call,
        operands: Sequence[Value],
        region: Region,
        spaces: Sequence[IndexSpace],
        name: str,
    ) -> Iterator[list[Value]]:
        """Yields the closed-over values of each of a combinator's functions, in the space where the function runs. Unused values stay where they are.

        Args:
          call: The combinator.
          operands: Its operands, of which these values come first.
          region: Where it is used.
          spaces: For each function the space of elements that it runs in.
          name: What new nodes are called after.

        Yields:
          The values of the next function: their nodes are noted only then.
        """
        start = 0
        for function, n, space in zip(call.functions, call.n_closed, spaces, strict=True):
            used = function.used
            own = zip(
                operands[start : start + n],
                function.variables[:n],
                strict=True,
            )
            yield [
                self.into(value, region, space, name, call.line) if v in used else value
                for value, v in own
            ]
            start += n

    def length_of(self, dimension: str, line: str) -> Column:
        """Makes the column of the lengths of a dimension's sequences.

        Raises:
          GraphError: If the instance does not say.
        """
        if dimension not in self.lengths:
            fix = f"Put what is cut or turned round into the example as another sequence, or use `amp.scan` with `reverse=True`. {BATCHES_TAKE_MOST}"
            raise GraphError(
                line,
                "whole sequences, or their `amp.length`",
                f"the length `{dimension}`, as of a slice or of `xs[::-1]`",
                fix,
            )
        return self.lengths[dimension]

    def pack_values(
        self,
        values: Sequence[Value],
        types: Sequence[Any],
        region: Region,
        name: str,
        line: str,
    ) -> list[Computed]:
        """Packs values into messages, one for each dtype; returns the values as parts of the messages.

        Args:
          values: Values that are no sequences.
          types: Their types.
          region: Where they are.
          name: What new nodes are called after.
          line: The user's line.

        Returns:
          For each value, the wire and its part.
        """
        parts: dict[int, Computed] = {}
        for members in by_dtype(types):
            flow = self.pack(
                [values[i] for i in members],
                [types[i] for i in members],
                region,
                name,
                line,
            )
            parts |= {i: Computed(flow, part, read_of(values[i])) for part, i in enumerate(members)}
        return [parts[i] for i in range(len(values))]

    def pack(
        self,
        values: Sequence[Value],
        types: Sequence[Any],
        region: Region,
        name: str,
        line: str,
    ) -> Flow:
        """Values of one dtype as one message, in order.

        Args:
          values: The values.
          types: Their types.
          region: Where they are.
          name: What new nodes are called after.
          line: The user's line.
        """
        values = [self.draft.find_carried(value, region) for value in values]
        first = values[0]
        if isinstance(first, Computed) and len(first.flow.types) == len(values):
            flow = first.flow
            if all(
                isinstance(v, Computed) and v.flow is flow and v.part == i
                for i, v in enumerate(values)
            ):
                return flow
        for value in values:
            if isinstance(value, Elements):
                raise GraphError(
                    line,
                    "an array",
                    "a sequence",
                    "Carry what has a fixed shape: a sum, or one element. `amp.vmap` carries sequences.",
                )
        leaves = leaves_of(values)
        if (
            region.is_known
            and not leaves
            and all(isinstance(value, Static | Constant) for value in values)
        ):
            columns = []
            for value, kind in zip(values, types, strict=True):
                columns.append(self.column(value, region, kind))
            return self.draft.pump(name, region, columns, list(types), line)
        note = NodeNote(
            name,
            region,
            values,
            types,
            as_it_is,
            types,
            [range(len(values))],
            line,
            leaves,
        )
        return payload_notes.compute(self.draft, note)[0]

    def column(self, value: Value, region: Region, kind: Any) -> Column:
        """A static or constant value as a column of a region's space."""
        space = region.space.known
        if isinstance(value, Static):
            return value.column.inside(space)
        assert isinstance(value, Constant)
        lies = raw_type(kind)
        one = np.asarray(raw(value.value), lies.dtype)
        key = (space, one.dtype, lies.shape, one.tobytes())
        return self.same_column(
            key,
            space,
            lambda data: np.broadcast_to(one, (space.n_rows(data), *lies.shape)),
        )

    def same_column(
        self,
        key: Hashable,
        space: IndexSpace,
        compute: Callable[[Any], np.ndarray],
    ) -> Column:
        """A column that several places ask for: the same for the same key.

        Args:
          key: What it says.
          space: Its space.
          compute: From the data set to the array `[rows, ...]`.
        """
        return self.once(key, lambda: Column(space, compute))

    def _copy_sequence(
        self,
        value: Elements,
        region: Region,
        around: IndexSpace,
        origin: Callable[[Any], np.ndarray],
        line: str,
    ) -> Elements:
        """A sequence from outside, once more for each row of a space.

        Args:
          value: The sequence.
          region: Where it is.
          around: The space that each row of has a copy.
          origin: For each of its rows, the row of the sequence's own surrounding space.
          line: The user's line.
        """
        outer = value.space
        sizes = value.space.sizes
        inner = around.along(
            outer.dimension,
            None
            if sizes is None
            else Column(
                around,
                lambda data: sizes.of(data)[origin(data)],
                _still(sizes, around),
            ),
            outer.is_ragged,
        )
        known = value.source
        if known is None:
            rows = origin
        else:
            rows = lambda data: known.rows(data)[origin(data)]
        source = SequenceSource(value if known is None else known.elements, rows)
        return Elements(
            inner, lambda: self._copied_element(value, region, inner, origin, line), source
        )

    def _copied_element(
        self,
        value: Elements,
        region: Region,
        inner: IndexSpace,
        origin: Callable[[Any], np.ndarray],
        line: str,
    ) -> Value:
        """An element of a sequence from outside, once more for each row around the space of the copies; see `_copied`."""
        outer = value.space
        element = value.element
        around = inner.parent
        assert around is not None

        def origin_of_elements(data: Any) -> np.ndarray:
            return outer.starts(data)[origin(data)[inner.parents(data)]] + inner.numbers(data)

        if isinstance(element, Static):
            column = element.column.inside(outer)
            repeated = column.origin if outer.known.parent in around.known.around() else None
            return Static(
                Column(
                    inner,
                    lambda data: column.of(data)[origin_of_elements(data)],
                    repeated,
                )
            )
        if isinstance(element, Computed):
            if outer.parent is not region.space:
                fix = "Pass it to `map` as an argument, or sum the inner sequences before."
                raise GraphError(
                    line,
                    "sequences of arrays from outside",
                    "a computed sequence of sequences",
                    fix,
                )
            if inner.is_ragged:
                sent = payload_notes.send_in(self.draft, element.flow, around, outer.dimension)
                sent.region = region.within(inner)
                return Computed(sent, element.part)
            flow = payload_notes.refresh_states(self.draft, element.flow, outer.dimension, line)
            name = self.draft.name(f"{outer.dimension}/each")
            pairs = self.draft.pair(
                flow,
                region.within(inner),
                (around.add_size(), around.index, outer.index),
                name,
            )
            return Computed(pairs, element.part)
        assert isinstance(element, Elements)
        return self._copy_sequence(element, region, inner, origin_of_elements, line)


def by_dtype(
    types: Sequence[Any],
    members: Iterable[int] | None = None,
) -> list[list[int]]:
    """Groups the numbers of types by dtype: of all types, or of some."""
    if members is None:
        members = range(len(types))
    groups: dict[Any, list[int]] = {}
    for i in members:
        groups.setdefault(types[i].dtype, []).append(i)
    return list(groups.values())


def _still(column: Column, space: IndexSpace) -> Column | None:
    """Finds the column that a copied column repeats, if that is a column of a space around the copy."""
    return column.origin if column.origin.space in space.known.around() else None
