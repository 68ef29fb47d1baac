"""Cuts: the relation of a value on a replica's part of a batch to the value on the joined batch, and arithmetic with cuts.

A batch is cut along its examples. What a program computes from a part is then the same number as on the joined batch, or its rows are some of
the joined rows, or the parts' numbers add up to the joined one. Anything else mixes examples. Knows kinds of values; nothing of jaxprs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

ONE = Fraction(1)
_SIMPLE = 4096
"""The largest denominator of a quotient that is taken for exact."""

_ROUNDING = 4e-6
"""What share of a number rounding may change."""


@dataclasses.dataclass(frozen=True)
class Cut:
    """The relation of a part's value to the joined batch's value, times a scale.

    Args:
      kind: `same`: that value. `rows`: a block of it along an axis. `total`: a number or array of which the parts' sum is that value.
        `place`: the numbers of a block's examples, counted from the block's first along an axis. `columns`: several of these kinds beside each other
        along the last axis, each of size one.
      scale: What the part's value is multiplied with: a `same` of scale 1/2 is half of the joined value.
      axis: The examples' axis, where there is one.
      number: The number that all of it is, where that is known.
      columns: The cuts of the columns.
      order: Of rows of a concatenation along that axis, its pieces: which share of the rows each has, and its own order. Empty where the rows lie
        as in the joined batch.
    """

    kind: str
    scale: Fraction = ONE
    axis: int = 0
    number: float | None = None
    columns: tuple[Cut, ...] = ()
    order: tuple[tuple[Fraction, Any], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Tells whether the part's value is the joined value or a block thereof, which every elementwise function preserves."""
        return self.kind in ("same", "rows") and self.scale == ONE


SAME = Cut("same")
Value = Cut | None
"""None stands for what mixes examples, or is not understood."""


def constant(part: float, whole: float) -> Value:
    """The cut of a number written into the program.

    Args:
      part: The number in the program for a part.
      whole: The number in the program for the joined batch.
    """
    if math.isnan(part) and math.isnan(whole):
        return SAME
    if part == whole:
        return Cut("same", number=part)
    if not (math.isfinite(part) and math.isfinite(whole) and part and whole):
        return None
    exact = Fraction(part) / Fraction(whole)
    simple = exact.limit_denominator(_SIMPLE)  # 1 / 6 and 1 / 18 are rounded
    return Cut("same", simple if abs(simple / exact - 1) < _ROUNDING else exact)


def cut_of(
    parts: Sequence[np.ndarray],
    whole: np.ndarray,
) -> Value:
    """The cut of a value that is known, up to rounding.

    Args:
      parts: By replica its value.
      whole: The joined batch's value.
    """
    n = len(parts)
    axis = grown_axis(parts[0].shape, whole.shape)
    if any(part.dtype.kind not in "iufbV" or part.shape != parts[0].shape for part in parts):
        return None
    if axis is not None and whole.shape[axis] != n * parts[0].shape[axis]:
        return None
    if axis is None:
        blocks = [whole] * n
    else:
        blocks = np.split(whole, n, axis)
    like = SAME if axis is None else Cut("rows", axis=axis)
    scales = ONE, Fraction(1, n), Fraction(n)
    return next(
        (
            dataclasses.replace(like, scale=each)
            for each in scales
            if _is_scaled(parts, blocks, each)
        ),
        None,
    )


def _is_scaled(
    parts: Sequence[np.ndarray],
    blocks: Sequence[np.ndarray],
    scale: Fraction,
) -> bool:
    """Tells whether all values are the same multiple of the blocks' values."""
    if scale == ONE and parts[0].dtype.kind in "iub":
        return all(map(np.array_equal, parts, blocks))
    return all(
        _is_close(part, block, float(scale)) for part, block in zip(parts, blocks, strict=True)
    )


def _is_close(
    part: np.ndarray,
    block: np.ndarray,
    scale: float,
) -> bool:
    """Tells whether numbers are some multiple of others, each up to its rounding: any quotient may be used."""
    return np.allclose(
        part.astype(np.float64),
        block.astype(np.float64) * scale,
        _ROUNDING,
        0,
        equal_nan=True,
    )


def grown_axis(
    part: tuple[int, ...],
    whole: tuple[int, ...],
) -> int | None:
    """The axis that is longer for the joined batch.

    Args:
      part: A value's shape for a part.
      whole: Its shape for the joined batch, of as many axes.

    Returns:
      The axis; None if there is none.
    """
    return next(
        (a for a, (short, long) in enumerate(zip(part, whole, strict=True)) if short != long),
        None,
    )


def add(cuts: Sequence[Value], n: int) -> Value:
    """Finds the cut of a sum of values, or of a choice among values that is the same for all parts."""
    if None in cuts:
        return None
    known = [cut for cut in cuts if cut is not None]
    some = [cut for cut in known if cut.number != 0] or known[:1]
    totals = [cut for cut in some if cut.kind == "total"]
    scales = {cut.scale for cut in totals or some}
    if len(scales) > 1:
        return None
    scale = scales.pop()
    if not totals:
        return _join_cuts(known, scale)
    others = [cut for cut in some if cut.kind != "total"]
    # What all parts have is the mean of what they have.
    are_means = all((cut.kind, cut.scale) == ("same", ONE) for cut in others)
    fits = not others or (are_means and scale == n)
    return Cut("total", scale) if fits else None


def multiply(first: Value, second: Value) -> Value:
    """The cut of a product."""
    if first is None or second is None:
        return None
    if "total" in (first.kind, second.kind):
        total, other = (first, second) if first.kind == "total" else (second, first)
        if other.kind == "same":
            return Cut("total", total.scale * other.scale)
        return None
    return _join_cuts([first, second], first.scale * second.scale)


def divide(first: Value, second: Value) -> Value:
    """The cut of a quotient."""
    if first is None or second is None or second.kind == "total":
        return None
    if first.kind == "total":
        if second.kind == "same":
            return Cut("total", first.scale / second.scale)
        return None
    return _join_cuts([first, second], first.scale / second.scale)


def scale_cut(cut: Value, scale: Fraction) -> Value:
    """The cut of a function that only multiplies each number by itself some times, or turns its sign."""
    if cut is None or cut.kind not in ("same", "rows"):
        return None
    return dataclasses.replace(cut, scale=scale, number=None)


def elementwise(cuts: Sequence[Value]) -> Value:
    """The cut of any function that goes number by number."""
    known = [cut for cut in cuts if cut is not None and cut.is_plain]
    return _join_cuts(known, ONE) if len(known) == len(cuts) else None


def _join_cuts(cuts: Sequence[Cut], scale: Fraction) -> Value:
    """The cut of a result whose operands lie in one way."""
    if any(cut.kind not in ("same", "rows") for cut in cuts):
        return None
    lying = set()
    for cut in cuts:
        if cut.kind == "rows" and (cut.number is None or cut.order):
            lying.add((cut.axis, cut.order))
    lying = lying or {
        (cut.axis, ()) for cut in cuts if cut.kind == "rows"
    }  # rows that are all equal lie as one likes
    if len(lying) > 1:
        return None
    return next(
        (Cut("rows", scale, axis, order=order) for axis, order in lying),
        Cut("same", scale),
    )


def move_cut(cut: Value, axis: int) -> Value:
    """The same cut along another axis.

    Args:
      cut: A cut that has an axis.
      axis: The new one.
    """
    if cut is None:
        return None
    return dataclasses.replace(cut, axis=axis)
