"""The shapes of a data set's batches: few, so that an epoch needs few programs.

They are found from some batches that are drawn for it, before any is trained on. What a batch is packed to depends on these and on its own
examples, not on what came before: so a run that is resumed has the same arrays again.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ampjax.frontend.batches.batch import Batch
from ampjax.frontend.batches.row_program import PackedParts, RowProgram
from ampjax.frontend.batches.row_tables import Sizes, fine, rounded
from ampjax.frontend.instance_columns import Columns

MOST_SHAPES = 4
"""How many shapes there are, at most, unless a batch fits none of them."""

SAMPLED = 64
"""How many batches shapes are found from, at most."""

COSTS = (1.1, 1.25, 1.5, 2.0, float("inf"))
"""How many times its own numbers a batch may hold in a shape that others share; the next one where there would be too many shapes."""

FEW_BATCHES = 256
"""An epoch of fewer batches than this takes less time than the compilation of a program more; so its batches may hold half as much again as they need."""

COSTS_OF_FEW = COSTS[2:]
"""`COSTS` of such an epoch."""

STEPS = 32
"""Fine sizes: so many between a power of two and the next, as shapes are few anyway."""

DEVIATIONS = 4.0
"""Room for batches that are so many standard deviations larger than the mean, if many were sampled."""

MOST_ROOM = 1.5
"""How many times its own size the largest shape may have."""

KEPT = 4
"""The shapes of how many data sets are kept."""


@dataclass(frozen=True, eq=False)
class Shape:
    """A shape of batches.

    Args:
      sizes: The sizes of its arrays.
      n_numbers: How many numbers the arrays hold.
      n_elements: How many elements of examples a batch has for which it was made, at most.
      numbers: The numbers of the examples of the largest of these batches.
    """

    sizes: Sizes
    n_numbers: int
    n_elements: int
    numbers: np.ndarray


class BatchShapes:
    """The shapes of a data set's batches.

    Args:
      program: Lays examples out.
      size: Rows of a batch, or of each of its parts.
      n_parts: Parts of a batch, which share a shape.

    Attributes:
      shapes: The shapes, from small to large.
    """

    def __init__(
        self,
        program: RowProgram,
        size: int,
        n_parts: int = 1,
    ):
        self._program = program
        self._size = size
        self._n_parts = n_parts
        self.shapes: Sequence[Shape] = ()

    def find(
        self,
        columns: Columns,
        groups: Sequence[np.ndarray],
        n_elements: np.ndarray,
    ) -> None:
        """Finds the shapes.

        Args:
          columns: The data set.
          groups: The numbers of the examples of each batch of an epoch.
          n_elements: How many elements each example has.
        """
        found = []
        sampled = []
        for numbers in _sample(groups, n_elements):
            parts = self._parts(columns, numbers)
            packed = self._pack_finely(parts, {})
            own = Shape(packed.sizes, _n_numbers(packed), _n_elements(parts), numbers)
            found.append((parts, own))
            sampled.append(packed)
        found.sort(key=lambda one: -one[1].n_numbers)
        is_short = len(groups) < FEW_BATCHES
        for most in COSTS_OF_FEW if is_short else COSTS:
            shapes = self._joined(found, most)
            if len(shapes) <= MOST_SHAPES:
                break
        self.shapes = shapes[::-1]
        # other batches are drawn, too, some of them larger; where there are several shapes few batches have the largest, so room in it costs little
        gets_room = is_short or len(shapes) > 1
        if gets_room and len({own.n_elements for _, own in found}) > 1:
            self.shapes = [*self.shapes[:-1], self._widened(columns, sampled)]

    def find_like(
        self,
        sizes: Sizes,
        columns: Columns,
        groups: Sequence[np.ndarray],
        n_elements: np.ndarray,
    ) -> None:
        """Takes the shape of an earlier batch; a single larger one, with room, if some batch does not fit.

        Args:
          sizes: The sizes of the earlier batch's arrays.
          columns: The data set.
          groups: The numbers of the examples of each batch of an epoch.
          n_elements: How many elements each example has.
        """
        n_numbers = 0
        largest = groups[0]
        for numbers in _sample(groups, n_elements):
            parts = self._parts(columns, numbers)
            packed = self._program.pack_like(parts, self._size, sizes)
            if not packed.sizes.items() <= sizes.items():
                largest = numbers
            sizes = {**sizes, **packed.sizes}
            n_numbers = _n_numbers(packed)
        every = int(n_elements.sum())
        self.shapes = [Shape(sizes, n_numbers, every, largest)]

    def pack(self, columns: Columns, numbers: np.ndarray) -> list[Batch]:
        """Packs the parts of a batch in the first shape that fits all parts, or in a shape of their own if none fits.

        Args:
          columns: The data set.
          numbers: The numbers of the batch's examples.
        """
        parts = self._parts(columns, numbers)
        batches = self._packed(parts)
        for i in range(-(-len(numbers) // len(parts[0])), self._n_parts):
            nothing = np.zeros_like(batches[i].weights)
            batches[i] = replace(batches[i], weights=nothing)
        return batches

    def _parts(self, columns: Columns, numbers: np.ndarray) -> list[Columns]:
        """The examples of each part; one for which there is none gets a copy of the first."""
        least = -(-len(numbers) // self._n_parts)
        parts = []
        for i in range(self._n_parts):
            own = numbers[i * least : (i + 1) * least]
            parts.append(columns.some(own if len(own) else numbers[:1]))
        return parts

    def _packed(self, parts: Sequence[Columns]) -> list[Batch]:
        wanted = _n_elements(parts)
        sizes: Sizes = {}
        for shape in self.shapes:
            if shape.n_elements < wanted and shape is not self.shapes[-1]:
                continue
            packed = self._pack_finely(parts, shape.sizes)
            sizes = packed.sizes
            if sizes.items() <= shape.sizes.items():
                return packed.batches
        # Batches that fit no shape share one: without room each had a shape, and a program, of its own.
        roomy = self._program.pack_in(parts, self._size, _largest(self._roomy, sizes))
        return roomy.batches

    def _widened(
        self,
        columns: Columns,
        sampled: Sequence[PackedParts],
    ) -> Shape:
        """Widens the largest shape: other batches may be larger than the sampled ones."""
        last = self.shapes[-1]
        sizes = {}
        for name, size in last.sizes.items():
            counts = [each.counts.get(name, 0) for each in sampled]
            if any(counts):
                sizes[name] = _with_room(size, counts)
            else:
                sizes[name] = _next_size(size, [each.sizes.get(name, size) for each in sampled])
        packed = self._pack_finely(self._parts(columns, last.numbers), sizes)
        return replace(last, sizes=packed.sizes, n_numbers=_n_numbers(packed))

    @property
    def _roomy(self) -> Sizes:
        """The sizes of the largest shape, each a step of the ladder larger; none before shapes are found."""
        if not self.shapes:
            return {}
        sizes = self.shapes[-1].sizes
        return {name: rounded(n + 1) for name, n in sizes.items() if n}

    def _pack_finely(
        self,
        parts: Sequence[Columns],
        least: Sizes,
    ) -> PackedParts:
        """Packs the parts of a batch in fine sizes, or in the sizes of a shape."""
        return self._program.pack_in(
            parts,
            self._size,
            least,
            _fine,
        )

    def _joined(
        self,
        found: Sequence[tuple[Sequence[Columns], Shape]],
        most: float,
    ) -> list[Shape]:
        """Finds shapes for batches from large to small: a batch shares the shape of the batch before, unless sharing costs too much."""
        shapes: list[Shape] = []
        for parts, own in found:
            if not shapes:
                shapes.append(own)
                continue
            last = shapes[-1]
            packed = self._pack_finely(parts, _largest(last.sizes, own.sizes))
            n_numbers = _n_numbers(packed)
            # the last batch of an epoch may be smaller: for one batch no program is worth its time
            is_full = len(own.numbers) == self._size * self._n_parts
            if is_full and n_numbers > most * own.n_numbers:
                shapes.append(own)
                continue
            n_elements = max(last.n_elements, own.n_elements)
            shapes[-1] = Shape(packed.sizes, n_numbers, n_elements, last.numbers)
        return shapes


class RecentShapes:
    """The shapes of the data sets that were used last."""

    def __init__(self) -> None:
        self._known: list[tuple[Hashable, Any, int, BatchShapes]] = []

    def get(self, key: Hashable, data: Any) -> BatchShapes | None:
        """Returns the shapes of a data set, or None if the shapes are not kept.

        Args:
          key: How it is packed.
          data: The data set.
        """
        for known, own, length, shapes in self._known:
            if known == key and own is data and length == len(data):
                return shapes
        return None

    def put(self, key: Hashable, data: Any, shapes: BatchShapes) -> None:
        """Keeps the shapes of a data set.

        Args:
          key: How it is packed.
          data: The data set.
          shapes: Its shapes.
        """
        self._known = [*self._known[1 - KEPT :], (key, data, len(data), shapes)]


def _largest(one: Sizes, other: Sizes) -> Sizes:
    """The larger of both sizes, of each."""
    sizes = dict(one)
    for key, size in other.items():
        sizes[key] = max(size, sizes.get(key, 0))
    return sizes


def _fine(n: int) -> int:
    return fine(n, STEPS)


def _with_room(size: int, sampled: Sequence[int]) -> int:
    """A size with room for batches that were not sampled: none where all that were are the same.

    Args:
      size: The size.
      sampled: How many rows or levels each sampled batch has.
    """
    if min(sampled) == max(sampled):
        return size
    # Few batches tell little of how far others deviate.
    deviations = DEVIATIONS * (1 + math.sqrt(2 / len(sampled)))
    tail = np.mean(sampled) + deviations * np.std(sampled)
    return max(size, _fine(int(min(tail, MOST_ROOM * size))))


def _next_size(size: int, sampled: Sequence[int]) -> int:
    """One step of the ladder more, for sizes by other rules; none where all sampled batches have equal sizes."""
    return size if min(sampled) == max(sampled) else rounded(size + 1)


def _n_numbers(packed: PackedParts) -> int:
    """Counts the numbers in the arrays of a batch."""
    total = 0
    for batch in packed.batches:
        for array in batch.arrays:
            total += array.size
    return total


def _n_elements(parts: Sequence[Columns]) -> int:
    """Counts the elements of the examples in the largest part."""
    return max(int(columns.n_elements().sum()) for columns in parts)


def _sample(
    groups: Sequence[np.ndarray],
    n_elements: np.ndarray,
) -> list[np.ndarray]:
    """Chooses some of an epoch's batches, of all sizes; among these batches the one with the largest example."""
    totals = np.array([n_elements[numbers].sum() for numbers in groups])
    order = np.argsort(totals, kind="stable")
    places = np.linspace(0, len(groups) - 1, min(SAMPLED, len(groups)))
    chosen = set(order[places.astype(int)].tolist())
    largest = int(n_elements.argmax())
    for number, numbers in enumerate(groups):
        if largest in numbers:
            chosen.add(number)
    return [groups[number] for number in sorted(chosen)]
