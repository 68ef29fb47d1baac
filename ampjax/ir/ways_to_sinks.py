"""The causes of sinks' results: nodes that lead to sinks, and the state fields that decide on a message's partners and route.

Which of its fields a state function reads is found by running it on columns that note who reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from ampjax.ir.nodes import Node
from ampjax.ir.ops.control_nodes import Bcast, Cond, Flatmap, Isu, Phi, Relabel
from ampjax.ir.ops.payload_nodes import Collect, Compute, Reduce, RouteBy, Sink
from ampjax.ir.ops.ragged_nodes import Distribute, Group, Repeat, Ungroup
from ampjax.ir.state import State, columns_of, sample

if TYPE_CHECKING:
    from ampjax.ir.graph import Graph
    from ampjax.ir.wires import Wire

Fields = frozenset[str]
NONE: Fields = frozenset()


def nodes_before_sinks(graph: Graph) -> set[str]:
    """The names of the nodes from which a way leads to a sink, with the sinks."""
    waiting = []
    for node in graph.nodes.values():
        if isinstance(node.op, Sink):
            waiting.append(node)
    names = {node.name for node in waiting}
    while waiting:
        for wire in waiting.pop().inputs:
            if wire is not None and wire.source.name not in names:
                names.add(wire.source.name)
                waiting.append(wire.source)
    return names


def fields_before_sinks(graph: Graph) -> dict[str, Fields]:
    """The state fields of pumped messages on which sinks' results depend, without fields that only a join by the whole state reads.

    Returns:
      By the name of a pump from which a way leads to a sink, names of fields.
    """
    needed: dict[Wire, Fields] = {}
    waiting = [node for node in graph.nodes.values() if isinstance(node.op, Sink)]
    while waiting:
        node = waiting.pop()
        # Backwards from the sinks, until nothing is added: loops may come by several times.
        outputs = [needed.get(wire) for wire in node.outputs]
        for wire, fields in zip(node.inputs, _before(node, outputs), strict=False):
            if wire is not None and needed.get(wire) != (
                all_fields := needed.get(wire, NONE) | fields
            ):
                needed[wire] = all_fields
                waiting.append(wire.source)
    return {
        name: needed[wire]
        for name, node in graph.pumps.items()
        for wire in node.outputs
        if wire in needed
    }


def _before(
    node: Node,
    outputs: Sequence[Fields | None],
) -> Iterator[Fields]:
    """Yields for each input the fields that decide on the outputs, of which some are needed (None: an output that leads to no sink)."""
    op = node.op
    needed = NONE.union(*(of_output for of_output in outputs if of_output is not None))
    first, *others = (_fields_of(wire) for wire in node.inputs)
    if isinstance(op, Phi | Bcast | Reduce | Sink | Distribute | Collect):
        yield needed
        yield from (needed if isinstance(op, Phi) else NONE for _ in others)
    elif isinstance(op, Cond):
        yield needed | _read(op.function, first)
    elif isinstance(op, Isu | Relabel):
        yield _through(op.function, first, needed)
    elif isinstance(op, Flatmap):
        yield _read(op.count, first) | _through(_of_copy(op.state), first, needed)
    elif isinstance(op, Repeat):
        yield needed | _read(op.count, first)
    elif isinstance(op, Ungroup):
        yield _through(_of_copy(op.state), first, needed)
    elif isinstance(op, Group):
        order = first if op.order is None else _read(op.order, first)
        size = _read(op.size, others[0] if op.opened else first)
        yield _key(op.by, first) | order | (NONE if op.opened else size | needed)
        yield from (_key(op.by, of_output) | size | needed for of_output in others)
    elif isinstance(op, Compute | RouteBy):
        yield _key(op.join, first) | needed - {*getattr(op, "names", ())}
        yield from (_key(op.join, of_output) for of_output in others)
    else:
        yield from (first, *others)


def _fields_of(wire: Wire | None) -> Fields:
    return NONE if wire is None or wire.type is None else frozenset(wire.type.fields)


def _key(
    by: tuple[str, ...] | Callable[..., Any] | None,
    fields: Fields,
) -> Fields:
    """The fields that a key reads; none for the whole state, since equal messages have equal fields in any case."""
    if callable(by):
        return _read(by, fields)
    return frozenset(by or ()) - {"instance"}


def _of_copy(function: Callable[[State, np.ndarray], State]) -> Callable[[State], Any]:
    return lambda s: function(s, np.arange(len(s)))


def _read(
    function: Callable[[State], Any],
    fields: Fields,
) -> Fields:
    """The fields from which a state function's result follows."""
    state, leaked = _watch_fields(fields)
    result = function(state)
    return _reads(result) | leaked


def _through(
    function: Callable[[State], Any],
    fields: Fields,
    needed: Fields,
) -> Fields:
    """The fields from which the needed fields of a state function's result follow."""
    state, leaked = _watch_fields(fields)
    after = function(state)
    sources: Mapping[str, Fields] = after.sources if isinstance(after, _Watched) else {}
    return NONE.union(
        leaked,
        *(sources.get(name, fields) for name in needed),
    )


def _watch_fields(fields: Fields) -> tuple[_Watched, set[str]]:
    """A state whose columns note their consequences, and the set of fields with unknown consequences."""
    plain = sample(sorted(fields))
    leaked = set[str]()
    return _Watched(plain, {name: frozenset([name]) for name in fields}, leaked), leaked


class _Watched(State):
    """A state that knows from which fields of an earlier one each of its fields follows.

    Args:
      plain: The state.
      sources: For each field, those of the earlier state.
      leaked: Gets the fields that were read in a way in which it can't be followed what becomes of them.
    """

    __slots__ = ("leaked", "sources")

    def __init__(
        self,
        plain: State,
        sources: Mapping[str, Fields],
        leaked: set[str],
    ):
        super().__init__(columns_of(plain), plain._layout, plain.fields)
        self.sources = dict(sources)
        self.leaked = leaked

    @property
    def array(self) -> np.ndarray:
        """All columns: a function that asks for the array may read any."""
        self.leaked.update(*self.sources.values())
        return columns_of(self)

    def __getattr__(self, name: str) -> Any:
        return _Column(
            super().__getattr__(name),
            self.sources.get(name, NONE),
            self.leaked,
        )

    def replace(self, **columns: Any) -> State:
        """Changes or adds fields, each of which follows from the sources of its value."""
        after = super().replace(**{name: _plain(value) for name, value in columns.items()})
        return _Watched(
            after,
            self.sources | {name: _reads(value) for name, value in columns.items()},
            self.leaked,
        )

    def drop(self, *names: str) -> State:
        """Leaves fields out."""
        return _Watched(
            super().drop(*names),
            self.sources,
            self.leaked,
        )

    def take(self, rows: Any) -> State:
        """Selects states; which, may depend on any field that `rows` follows from."""
        self.leaked.update(_reads(rows))
        return _Watched(
            super().take(_plain(rows)),
            self.sources,
            self.leaked,
        )


class _Column(NDArrayOperatorsMixin):
    """Numbers with the fields from which each follows, kept through NumPy's functions; a request for a plain array counts as a leak.

    Args:
      values: The numbers.
      reads: The fields.
      leaked: Gets the fields if the numbers leak.
    """

    def __init__(
        self,
        values: Any,
        reads: Fields,
        leaked: set[str],
    ):
        self.values = values
        self.reads = reads
        self._leaked = leaked

    def __array__(self, *args: Any, **options: Any) -> np.ndarray:
        self._leaked.update(self.reads)
        return np.asarray(self.values, *args, **options)

    def __array_ufunc__(
        self,
        ufunc: Any,
        method: str,
        *inputs: Any,
        **options: Any,
    ) -> Any:
        return self._apply(getattr(ufunc, method), inputs, options)

    def __array_function__(
        self,
        function: Any,
        types: Any,
        args: Any,
        options: Any,
    ) -> Any:
        return self._apply(function, args, options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # ways to get at a plain array, which `__array__` notices
            raise AttributeError(name)
        attribute = getattr(self.values, name)
        if callable(attribute):
            return lambda *args, **options: self._apply(attribute, args, options)
        return attribute

    def __getitem__(self, key: Any) -> Any:
        return self._apply(
            lambda k: self.values[k],
            (key,),
            {},
        )

    def __len__(self) -> int:
        return len(self.values)

    def _apply(
        self,
        function: Callable[..., Any],
        args: Any,
        options: Any,
    ) -> Any:
        """Applies a function to columns: the result follows from all of the columns."""
        reads = self.reads | _reads((args, options))
        result = function(*_plain(args), **_plain(options))
        wrap = lambda x: _Column(x, reads, self._leaked)
        if isinstance(result, tuple | list):
            return type(result)(map(wrap, result))
        return wrap(result)


def _reads(value: Any) -> Fields:
    """The fields from which a value, or its parts, follow."""
    if isinstance(value, _Column):
        return value.reads
    if isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, tuple | list):
        parts = value
    else:
        parts = ()
    return NONE.union(*map(_reads, parts))


def _plain(value: Any) -> Any:
    """A value with plain arrays in the place of columns."""
    if isinstance(value, _Column):
        return value.values
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(_plain, value))
    return value
