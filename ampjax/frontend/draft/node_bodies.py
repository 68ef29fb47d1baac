"""The body of a compiled node: some equations of the model, on payloads that pack several values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.frontend.combinators.draw_places import DrawPlace
from ampjax.frontend.draft.index_spaces import Column, Region
from ampjax.frontend.draft.payload_types import from_raw, raw, raw_type
from ampjax.frontend.draft.values import Constant, Leaf, OfParams, Value, packed_shape
from ampjax.sparse import Table

Function = Callable[..., Sequence[Any]]
"""`function(key, *inputs) -> results`; `key` is a PRNG key in training, where the node draws random numbers, else None."""


@dataclass(frozen=True, eq=False)
class NodeNote:
    """A node that computes.

    It has more than twelve fields: all that is known of a node when it is noted.

    Args:
      name: What it is to be called.
      region: The rows of which there is a message each.
      inputs: What it reads.
      types: The inputs' types.
      function: From the inputs to the results.
      results: The results' types.
      groups: Which results travel together, packed in one payload; they have one dtype.
      line: The user's line.
      leaves: The leaves of the parameters that it reads.
      named_by: The name that `amp.node` gave; None otherwise.
      draws: For each of its steps that draws random numbers, its number, and where it is in the model.
      options: What `amp.node` was given.
      replicas: How many replicas of it there are.
      told: State fields of which its messages bring other values than those of their place.
      origin: The lines that lead to it, for people; empty where that is the line alone.
      table: The table in host memory that it reads rows of; its only input are their ids then.
    """

    name: str
    region: Region
    inputs: Sequence[Value]
    types: Sequence[Any]
    function: Function
    results: Sequence[Any]
    groups: Sequence[Sequence[int]]
    line: str
    leaves: frozenset[Leaf] = frozenset()
    named_by: str | None = None
    draws: Sequence[tuple[int, DrawPlace]] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    replicas: int = 1
    told: Mapping[str, Column] = field(default_factory=dict)
    origin: str = ""
    table: Table | None = None


@dataclass(frozen=True, eq=False)
class LossPart:
    """A value that only losses and metrics read: the loss computes the value itself, without a node before.

    Args:
      note: What computes it; it reads no parameters.
      result: Which of its results.
    """

    note: NodeNote
    result: int


@dataclass(frozen=True, eq=False)
class PackedBody:
    """The body of a node: unpacks payloads, computes, packs the results.

    Args:
      note: The node.
      layouts: For each port, the types of the values that its payload packs.
      places: For each input that comes in a payload, its port and its part there.
      leaves: The leaves of the node's parameters, in the order of its parameters' leaves; empty without parameters.
    """

    note: NodeNote
    layouts: Sequence[Sequence[Any]]
    places: Mapping[int, tuple[int, int]]
    leaves: Sequence[Leaf] = field(default=())

    @property
    def payloads(self) -> list[Any]:
        """The payloads' types, by port."""
        result = []
        for types in self.layouts:
            result.append(
                jax.ShapeDtypeStruct(
                    packed_shape(list(types)),
                    raw_type(types[0]).dtype,
                )
            )
        return result

    def __call__(self, *args: Any, key: Any = None) -> Any:
        """Computes the payloads of the groups; the first argument is the parameters, where there are any."""
        if self.leaves:
            params = args[0]
            payloads = args[1:]
        else:
            params = ()
            payloads = args
        values = dict(zip(self.leaves, jax.tree.leaves(params), strict=True))
        parts = []
        for payload, types in zip(payloads, self.layouts, strict=True):
            parts.append(unpack(payload, types))
        inputs = []
        for i, value in enumerate(self.note.inputs):
            inputs.append(self._input(i, value, parts, values))
        results = self.note.function(key, *inputs)
        rows = tuple(pack([results[i] for i in group]) for group in self.note.groups)
        return rows[0] if len(rows) == 1 else rows

    def _input(
        self,
        i: int,
        value: Value,
        parts: Sequence[Sequence[Any]],
        values: Mapping[Leaf, Any],
    ) -> Any:
        if i in self.places:
            port, part = self.places[i]
            return parts[port][part]
        if isinstance(value, Constant):
            return value.value
        assert isinstance(value, OfParams)
        return value.compute(values)


def pack(values: Sequence[Any]) -> Any:
    """Packs several arrays into one: a single array unchanged, several flat, one after the other."""
    if len(values) == 1:
        return jnp.asarray(raw(values[0]))
    return jnp.concatenate([jnp.ravel(raw(value)) for value in values])


def unpack(payload: Any, types: Sequence[Any]) -> list[Any]:
    """The values that `pack` has put together."""
    if len(types) == 1:
        return [from_raw(payload, types[0].dtype)]
    shapes = [raw_type(kind).shape for kind in types]
    parts = jnp.split(
        payload,
        np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1].tolist(),
    )
    result = []
    for part, shape, t in zip(parts, shapes, types, strict=True):
        result.append(from_raw(part.reshape(shape), t.dtype))
    return result


def as_it_is(_: Any, *values: Any) -> Sequence[Any]:
    """The function of a node that only puts values together."""
    return values


def second(_: Any, state: Any) -> Any:
    """Returns the second payload: the body of a node at which a message waits for another."""
    return state
