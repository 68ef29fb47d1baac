"""Types of sequences: arrays with an axis whose length is each example's own.

A sequence in a batch is its elements. Those of an array with several such axes are what the first one counts, wherever it stands: of scores `[heads, t, t]`
there are `t` elements `[heads, t]`, each of which has `t` elements `[heads]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax


def is_known_length(size: Any) -> bool:
    """Whether an axis has the same length in all examples."""
    return isinstance(size, int)


def long_axis(kind: Any) -> int | None:
    """The axis that counts a sequence's elements: the first whose length is symbolic; None if there is none.

    Args:
      kind: A type.
    """
    for axis, size in enumerate(kind.shape):
        if not isinstance(size, int):
            return axis
    return None


def is_sequence(kind: Any) -> bool:
    """Whether a type is that of a sequence."""
    return long_axis(kind) is not None


def n_long_axes(kind: Any) -> int:
    """Counts the axes of a type whose lengths are each example's own.

    Args:
      kind: The type.
    """
    return sum(not isinstance(size, int) for size in kind.shape)


def is_in_front(kind: Any) -> bool:
    """Whether the axes of a type that are each example's own come before all others; a type without any passes."""
    is_long = [not isinstance(size, int) for size in kind.shape]
    return is_long == sorted(is_long, reverse=True)


def length_name(kind: Any) -> str:
    """The length of a sequence, as JAX writes lengths.

    Args:
      kind: The sequence's type.
    """
    axis = long_axis(kind)
    assert axis is not None
    return str(kind.shape[axis])


def element_type(kind: Any, axis: int | None = None) -> Any:
    """The type of a sequence's element, or of an array's part along its first axis.

    Args:
      kind: The type.
      axis: The axis that counts the elements, if it is another one.
    """
    if axis is None:
        axis = long_axis(kind) or 0
    return jax.ShapeDtypeStruct(
        (*kind.shape[:axis], *kind.shape[axis + 1 :]),
        kind.dtype,
    )


def without_axis(axes: Sequence[int], gone: int) -> tuple[int, ...]:
    """The numbers of axes where one is left out.

    Args:
      axes: The axes; that one may be among them.
      gone: The one.

    >>> without_axis([0, 2, 3], 2)
    (0, 2)
    """
    return tuple(axis - (axis > gone) for axis in axes if axis != gone)
