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
from ampjax.frontend.batches.row_program import PackedBatches, RowProgram
from ampjax.frontend.batches.row_tables import Examples, Sizes, fine, rounded
from ampjax.frontend.instances.instance_columns import Columns

LONGEST_RUN = 16
"""So many batches are packed together at most."""

LONGER_AFTER = 3
"""After so many runs of batches with room a run is twice as long."""

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


@dataclass
class _Run:
    """The number of batches to pack together: fewer where some batch often lacks room in the first shape.

    Args:
      length: How many.
      n_packed: How many batches had room since then.
    """

    length: int = LONGEST_RUN
    n_packed: int = 0

    def note(self, n: int, had_room: bool) -> None:
        """Notes whether some batches had room.

        Args:
          n: How many.
          had_room: Whether all had, in the first shape.
        """
        if not had_room:
            self.length = max(n // 2, 1)
            self.n_packed = 0
            return
        self.n_packed += n
        if self.n_packed >= LONGER_AFTER * self.length:
            self.length = min(2 * self.length, LONGEST_RUN)
            self.n_packed = 0


class BatchShapes:
    """The shapes of a data set's batches.

    Args:
      program: Lays examples out.
      size: Rows of a batch, or of each of its parts.
      n_parts: Parts of a batch, which share a shape; its arrays then have an axis for them in front. None for a batch without parts.
      are_joined: Whether small arrays of a batch lie in one (`Batch.joined`).

    Attributes:
      shapes: The shapes, from small to large.
    """

    def __init__(
        self,
        program: RowProgram,
        size: int,
        n_parts: int | None = None,
        are_joined: bool = False,
    ):
        self._are_joined = are_joined
        self._program = program
        self._size = size
        self._has_parts = n_parts is not None
        self._n_parts = n_parts or 1
        self._runs: dict[tuple[Shape, ...], _Run] = {}
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
        candidates = []
        sampled = []
        for numbers in _sample(groups, n_elements):
            examples = self._examples(columns, [numbers])
            packed = self._pack_finely(examples, {})
            most = self._most_elements(n_elements, numbers)
            own = Shape(packed.sizes, packed.n_numbers, most, numbers)
            candidates.append((examples, own))
            sampled.append(packed)
        candidates.sort(key=lambda one: -one[1].n_numbers)
        is_short = len(groups) < FEW_BATCHES
        for most in COSTS_OF_FEW if is_short else COSTS:
            shapes = self._join_shapes(candidates, most)
            if len(shapes) <= MOST_SHAPES:
                break
        self.shapes = shapes[::-1]
        # other batches are drawn, too, some of them larger; where there are several shapes few batches have the largest, so room in it costs little
        gets_room = is_short or len(shapes) > 1
        if gets_room and len({own.n_elements for _, own in candidates}) > 1:
            self.shapes = [*self.shapes[:-1], self._widen(columns, sampled)]

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
            examples = self._examples(columns, [numbers])
            packed = self._program.pack_like(examples, self._size, sizes)
            if not packed.sizes.items() <= sizes.items():
                largest = numbers
            sizes = {**sizes, **packed.sizes}
            n_numbers = packed.n_numbers
        every = int(n_elements.sum())
        self.shapes = [Shape(sizes, n_numbers, every, largest)]

    def pack(self, columns: Columns, groups: Sequence[np.ndarray]) -> list[Batch]:
        """Packs batches, each in the first shape with room for all its parts, or in an own shape if none has room.

        Those that may fit the same shapes are packed together: most of packing is calls of NumPy, which take as long for a few batches as for one.

        Args:
          columns: The data set.
          groups: The numbers of the examples of each batch.
        """
        n_elements = columns.n_elements()
        places: dict[tuple[Shape, ...], list[int]] = {}
        for place, numbers in enumerate(groups):
            shapes = self._large_enough(self._most_elements(n_elements, numbers))
            places.setdefault(shapes, []).append(place)
        found: dict[int, Batch] = {}
        for shapes, own in places.items():
            batches = self._in_runs(columns, [groups[place] for place in own], shapes)
            found |= zip(own, batches, strict=True)
        return [found[place] for place in range(len(groups))]

    def _examples(self, columns: Columns, groups: Sequence[np.ndarray]) -> Examples:
        """The examples of each part of some batches; a part for which there is none gets a copy of its batch's first."""
        parts = []
        for numbers in groups:
            for own in self._parts(numbers):
                parts.append(own if len(own) else numbers[:1])
        numbers = np.concatenate(parts)
        return Examples(columns.some(numbers), [*map(len, parts)])

    def _parts(self, numbers: np.ndarray) -> list[np.ndarray]:
        """Deals the examples of a batch out to parts, of which the last ones may get none."""
        least = -(-len(numbers) // self._n_parts)
        return [numbers[i * least : (i + 1) * least] for i in range(self._n_parts)]

    def _most_elements(self, n_elements: np.ndarray, numbers: np.ndarray) -> int:
        """Counts the elements of the examples in the largest part of a batch."""
        return max(int(n_elements[own].sum()) for own in self._parts(numbers))

    def _large_enough(self, n_elements: int) -> tuple[Shape, ...]:
        """Lists the shapes with room for so many elements, and the largest shape in any case."""
        *others, largest = self.shapes
        own = [shape for shape in others if shape.n_elements >= n_elements]
        return *own, largest

    def _in_runs(
        self,
        columns: Columns,
        groups: Sequence[np.ndarray],
        shapes: tuple[Shape, ...],
    ) -> list[Batch]:
        """Packs batches, so many together as mostly have room."""
        run = self._runs.setdefault(shapes, _Run())
        found: list[Batch] = []
        while len(found) < len(groups):
            some = groups[len(found) : len(found) + run.length]
            batches, had_room = self._pack_in_first(columns, some, shapes)
            run.note(len(some), had_room)
            found += batches
        return found

    def _pack_in_first(
        self,
        columns: Columns,
        groups: Sequence[np.ndarray],
        shapes: Sequence[Shape],
    ) -> tuple[list[Batch], bool]:
        """Packs batches in the first of some shapes with room.

        Returns:
          The batches, none if one of several lacks room in the first shape; and whether all have room in it.
        """
        examples = self._examples(columns, groups)
        sizes: Sizes = {}
        for shape in shapes:
            packed = self._pack_finely(examples, shape.sizes)
            sizes = packed.sizes
            if sizes.items() <= shape.sizes.items():
                return self._batches(packed, groups), shape is shapes[0]
            if len(groups) > 1:
                return [], False
        # Batches that fit no shape share one: without room each had a shape, and a program, of its own.
        roomy = self._program.pack_in(examples, self._size, _largest(self._roomy, sizes))
        return self._batches(roomy, groups), False

    def _batches(self, packed: PackedBatches, groups: Sequence[np.ndarray]) -> list[Batch]:
        """Takes jointly packed batches apart."""
        together = packed.together
        if self._are_joined:
            together = together.joined()
        if not self._has_parts:
            return [*together.parts]
        n_parts = self._n_parts
        batches = []
        for i, numbers in enumerate(groups):
            own = slice(i * n_parts, (i + 1) * n_parts)
            has_own = [len(part) > 0 for part in self._parts(numbers)]
            weights = together.weights[own] * np.array(has_own, np.float32)[:, None]
            arrays = tuple(array[own] for array in together.arrays)
            batches.append(replace(together, weights=weights, arrays=arrays))
        return batches

    def _widen(
        self,
        columns: Columns,
        sampled: Sequence[PackedBatches],
    ) -> Shape:
        """Widens the largest shape: other batches may be larger than the sampled ones."""
        last = self.shapes[-1]
        sizes = {}
        for name, size in last.sizes.items():
            counts = [each.counts.get(name, 0) for each in sampled]
            if any(counts):
                sizes[name] = _with_room(size, counts)
            else:
                sizes[name] = _next_size(
                    size,
                    [each.sizes.get(name, size) for each in sampled],
                )
        packed = self._pack_finely(self._examples(columns, [last.numbers]), sizes)
        return replace(last, sizes=packed.sizes, n_numbers=packed.n_numbers)

    @property
    def _roomy(self) -> Sizes:
        """The sizes of the largest shape, each a step of the ladder larger; none before shapes are found."""
        if not self.shapes:
            return {}
        sizes = self.shapes[-1].sizes
        return {name: rounded(n + 1) for name, n in sizes.items() if n}

    def _pack_finely(
        self,
        examples: Examples,
        least: Sizes,
    ) -> PackedBatches:
        """Packs examples in fine sizes, or in the sizes of a shape."""
        return self._program.pack_in(
            examples,
            self._size,
            least,
            _fine,
        )

    def _join_shapes(
        self,
        found: Sequence[tuple[Examples, Shape]],
        most: float,
    ) -> list[Shape]:
        """Finds shapes for batches from large to small: a batch shares the shape of the batch before, unless sharing costs too much."""
        shapes: list[Shape] = []
        for examples, own in found:
            if not shapes:
                shapes.append(own)
                continue
            last = shapes[-1]
            packed = self._pack_finely(examples, _largest(last.sizes, own.sizes))
            n_numbers = packed.n_numbers
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


def _sample(
    groups: Sequence[np.ndarray],
    n_elements: np.ndarray,
) -> list[np.ndarray]:
    """Chooses some of an epoch's batches, of all sizes; among these batches the one with the largest example."""
    totals = np.array([n_elements[numbers].sum() for numbers in groups])
    order = np.argsort(totals, kind="stable")
    places = np.linspace(
        0,
        len(groups) - 1,
        min(SAMPLED, len(groups)),
    )
    chosen = set(order[places.astype(int)].tolist())
    largest = int(n_elements.argmax())
    for number, numbers in enumerate(groups):
        if largest in numbers:
            chosen.add(number)
    return [groups[number] for number in sorted(chosen)]
