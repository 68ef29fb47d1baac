"""The binding times of a model's values: a constant, from parameters alone, from the instance alone, or computed."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ampjax.frontend.draft.index_spaces import Column, IndexSpace, Region
from ampjax.frontend.draft.payload_types import raw_type
from ampjax.ir.wires import Wire

if TYPE_CHECKING:
    from ampjax.frontend.instances.instance_columns import Columns

Leaf = tuple[str, int]
"""A leaf of the parameters: its top-level key, and its number among that key's leaves."""


@dataclass(frozen=True, eq=False)
class Constant:
    """The same for all instances and for ever."""

    value: Any


@dataclass(frozen=True, eq=False)
class OfParams:
    """A function of parameters alone: every node that reads the value computes it.

    Args:
      leaves: The parameters' leaves that it reads.
      compute: From values by leaf to the value.
    """

    leaves: frozenset[Leaf]
    compute: Callable[[Mapping[Leaf, Any]], Any]


@dataclass(frozen=True, eq=False)
class Static:
    """A function of the instance alone: a column over a space's rows. Control may depend on it; nodes get it from pumps."""

    column: Column


@dataclass(eq=False)
class Flow:
    """A wire of the graph to be: the messages of a region, whose payload packs one or several values of one dtype.

    Args:
      region: Where there are messages.
      types: Types of the values, in order.
      is_fresh: Whether the messages' states are those of their place; after a step of a loop some fields tell of the place before.
      foresees: Where a loop tells its carry what the instance says of the next element: makes it tell one more field, of so many
        values at most; None elsewhere.
      is_late: Whether it is a loop's carry: what does not need it is computed in nodes of its own, before the loop.
      wire: The wire, once it is built.
      knows_outer: Whether, where it is not fresh, at least the fields of the spaces around are those of their place.
      kept: Where it is not fresh, the fields of its own space that are those of its place nevertheless, since a loop keeps them so.
    """

    region: Region
    types: list[Any]
    is_fresh: bool = True
    is_late: bool = False
    foresees: Callable[[str, Column, int], None] | None = None
    wire: Wire | None = None
    knows_outer: bool = True
    kept: Container[str] = ()

    @property
    def dtype(self) -> np.dtype:
        """The payload's dtype."""
        return np.dtype(raw_type(self.types[0]).dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """The payload's shape."""
        return packed_shape(self.types)


@dataclass(frozen=True, eq=False)
class Computed:
    """A part of a wire's payload.

    Args:
      flow: The wire.
      part: Which of the packed values.
      was_read: What `amp.read` said is to be assumed, if it is what was read back; control may depend on it.
    """

    flow: Flow
    part: int = 0
    was_read: int | None = None


@dataclass(frozen=True, eq=False)
class SequenceSource:
    """The source of the elements of a copied sequence.

    Args:
      elements: The sequence of which it is a copy, which is none itself.
      rows: From the data set to `[rows of the space around the copy]`: the row of the space around `elements` whose sequence each has.
    """

    elements: Elements
    rows: Callable[[Columns], np.ndarray]


class Elements:
    """A sequence: the value of its element, in the space of the elements.

    Args:
      space: The elements' space.
      element: A `Static`, `Computed` or `Elements` in it; or what makes that when somebody first goes through the sequence.
      source: Of what it is a copy: who reads single elements reads them there, and none is copied for that. None if it is none.
    """

    def __init__(
        self,
        space: IndexSpace,
        element: Value | Callable[[], Value],
        source: SequenceSource | None = None,
    ):
        self.space = space
        self.source = source
        self._element = element

    @property
    def element(self) -> Value:
        """The value of an element."""
        if callable(self._element):
            self._element = self._element()
        return self._element

    @property
    def innermost(self) -> Value:
        """The value of an element of the innermost sequence, where elements are sequences; a copy's elements are not made for that."""
        element = self.element if self.source is None else self.source.elements.element
        return element.innermost if isinstance(element, Elements) else element


Value = Constant | OfParams | Static | Computed | Elements


@dataclass(eq=False)
class LossTerm:
    """A summand of the loss, or a metric: one number for each row of a region.

    Args:
      value: The number.
      region: Where there is one.
      weights: What it is multiplied with: constants and statics.
      metric: The metric's name; None for the loss.
      count: For a metric, what a value counts for.
      line: The user's line.
    """

    value: Value
    region: Region
    weights: tuple[Value, ...] = field(default=())
    metric: str | None = None
    count: Value | None = None
    line: str = ""


class Wanted:
    """The wanted results of a function, and their uses.

    Args:
      values: Numbers of the results that are read.
      losses: By number of a result that is a summand of the loss and nothing else, what it is multiplied with.
      groups: Results that should travel in one message, since the same nodes read them; any other travels alone.
      metrics: Numbers of the results that are metrics and read by nothing else.
    """

    def __init__(
        self,
        values: set[int],
        losses: Mapping[int, tuple[Value, ...]] | None = None,
        groups: Sequence[Sequence[int]] = (),
        metrics: Sequence[int] = (),
    ):
        self.values = values
        self.losses = dict(losses or {})
        self.groups = groups
        self.metrics = metrics


def packed_shape(types: list[Any]) -> tuple[int, ...]:
    """Computes the shape of a payload with values of these types: a single value unchanged, several flat, one after the other."""
    shapes = [tuple(raw_type(kind).shape) for kind in types]
    if len(shapes) == 1:
        return shapes[0]
    return (sum(int(np.prod(shape)) for shape in shapes),)


def read_of(value: Value) -> int | None:
    """Returns the assumed value of an `amp.read`; None for a value that was not read."""
    return value.was_read if isinstance(value, Computed) else None


def read_of_all(values: Sequence[Value]) -> int | None:
    """Returns the assumed value for one of several values, each of which was read; None if one was not."""
    reads = [read_of(value) for value in values]
    return None if None in reads else reads[0]


def leaves_of(values: Sequence[Value | None]) -> frozenset[Leaf]:
    """The leaves of the parameters that values read which follow from parameters alone."""
    return frozenset(
        leaf for value in values if isinstance(value, OfParams) for leaf in value.leaves
    )
