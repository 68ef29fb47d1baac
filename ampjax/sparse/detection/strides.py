"""Strides: numbers that rise evenly along the axes of an array, as an element's place in memory does, while axes are moved.

Along an axis whose stride is None nothing is counted. Knows shapes only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

Strides = tuple[int | None, ...]
"""For each axis of an array, by how much the number rises along it; None for an axis along which nothing is counted."""

Numbers = tuple[Strides, int]
"""Strides, and the number at index 0 of all axes."""


def in_one_line(sizes: Sequence[int | None]) -> Strides:
    """Strides of numbers that count the places of some axes, the last one fastest.

    Args:
      sizes: By axis its size; None where nothing is counted.
    """
    strides: list[int | None] = []
    stride = 1
    for n in reversed(sizes):
        strides.append(None if n is None else stride)
        stride *= n or 1
    return tuple(reversed(strides))


def is_one_line(
    axes: Sequence[tuple[int | None, int]],
    stride: int = 1,
) -> bool:
    """Tells whether numbers rise evenly through several axes, the last one fastest.

    Args:
      axes: By axis its stride and its size.
      stride: By how much they rise.
    """
    for own_stride, n in reversed(axes):
        if n != 1 and own_stride != stride:
            return False
        stride *= n
    return True


def transpose(numbers: Numbers, order: Sequence[int]) -> Numbers:
    """The numbers after axes have been put into another order.

    Args:
      numbers: Those before.
      order: By new axis the old one.
    """
    strides, offset = numbers
    return tuple(strides[a] for a in order), offset


def drop_axes(numbers: Numbers, gone: Sequence[int]) -> Numbers:
    """The numbers without some axes of one.

    Args:
      numbers: Those before.
      gone: The axes.
    """
    strides, offset = numbers
    return tuple(s for a, s in enumerate(strides) if a not in gone), offset


def broadcast(
    numbers: Numbers,
    old: Sequence[int],
    new: Sequence[int],
    target: Sequence[int],
) -> Numbers:
    """The numbers after new axes, and axes of one, have been repeated.

    Args:
      numbers: Those before.
      old: The shape before.
      new: The shape after.
      target: By old axis the new one.
    """
    strides, offset = numbers
    result: list[int | None] = [0] * len(new)
    for a, stride in enumerate(strides):
        repeated = stride is not None and old[a] != new[target[a]]
        result[target[a]] = 0 if repeated else stride
    return tuple(result), offset


def cut(numbers: Numbers, spans: Sequence[slice]) -> Numbers:
    """The numbers of a part.

    Args:
      numbers: Those of the whole.
      spans: By axis from where to where, and in which steps.
    """
    strides, offset = numbers
    offset += sum(spans[a].start * stride for a, stride in enumerate(strides) if stride is not None)
    return tuple(None if s is None else s * spans[a].step for a, s in enumerate(strides)), offset


def reverse_axes(
    numbers: Numbers,
    shape: Sequence[int],
    turned: Sequence[int],
) -> Numbers:
    """The numbers after some axes have been turned.

    Args:
      numbers: Those before.
      shape: The array's shape.
      turned: The axes.
    """
    strides, offset = numbers
    offset += sum((shape[a] - 1) * (strides[a] or 0) for a in turned)
    return tuple(-s if s is not None and a in turned else s for a, s in enumerate(strides)), offset


def reshape(
    numbers: Numbers,
    old: Sequence[int],
    new: Sequence[int],
) -> Numbers | None:
    """Computes the numbers after a reshape, if they still rise evenly: counted axes may be joined and cut, and so may the others.

    Args:
      numbers: Those before.
      old: The shape before.
      new: The shape after.
    """
    strides, offset = numbers
    result: list[int | None] = [0] * len(new)
    for before, after in _groups(old, new):
        kinds = {strides[a] is None for a in before}
        inner = strides[before[-1]]
        if len(kinds) > 1 or (
            inner is not None
            and not is_one_line(
                [(strides[a], old[a]) for a in before],
                inner,
            )
        ):
            return None
        for a in reversed(after):
            result[a] = inner
            inner = None if inner is None else inner * new[a]
    return tuple(result), offset


def _groups(
    old: Sequence[int],
    new: Sequence[int],
) -> Iterator[tuple[list[int], list[int]]]:
    """Yields axes of two shapes, without axes of one, in the smallest groups of equal size."""
    first, second = ([a for a, n in enumerate(shape) if n != 1] for shape in (old, new))
    while first:
        before = [first.pop(0)]
        after = [second.pop(0)]
        while (size := math.prod(old[a] for a in before)) != (
            other := math.prod(new[a] for a in after)
        ):
            (before if size < other else after).append((first if size < other else second).pop(0))
        yield before, after
