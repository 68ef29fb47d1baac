"""Rules of primitive operations for cut values: the result's cut follows from the operands' cuts and from both programs' shapes.

A rule gets one equation twice, from the program for a part and from that for the joined batch. An axis that is longer there is the
examples' axis. Operations without a rule mix examples, as far as is known. Products are `cut_products`', reads by index `cut_indexing`'s, calls and loops
`cut_flow`'s.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from ampjax.parallel.equivalence.cuts import (
    ONE,
    SAME,
    Cut,
    Value,
    add,
    divide,
    elementwise,
    grown_axis,
    move_cut,
    multiply,
    scale_cut,
)

Shape = tuple[int, ...]


class Pair(NamedTuple):
    """One equation of both programs.

    Args:
      part: In the program for a part.
      whole: In the program for the joined batch.
      cuts: The cuts of its operands, none of them None.
      n: The number of parts.
    """

    part: Any
    whole: Any
    cuts: Sequence[Any]
    n: int

    @property
    def params(self) -> Any:
        """The equation's parameters, for a part."""
        return self.part.params

    def shape(self, operand: int = 0) -> Shape:
        """The shape of an operand, for a part."""
        return self.part.invars[operand].aval.shape

    @property
    def out(self) -> Shape:
        """The shape of the first result, for a part."""
        return self.part.outvars[0].aval.shape

    @property
    def grown(self) -> int | None:
        """The axis of the first result that is longer for the joined batch; None if none is."""
        return grown_axis(self.out, self.whole.outvars[0].aval.shape)


# ---- number by number ------------------------------------------------------------------------------------------------


def _linear(pair: Pair) -> Value:
    """An operation that sums and multiples pass through."""
    (cut,) = pair.cuts
    if cut.kind in ("same", "rows", "total"):
        return dataclasses.replace(cut, number=None)
    return None


def _convert(pair: Pair) -> Value:
    """A cast: a cast of a sum has to keep fractions."""
    (cut,) = pair.cuts
    kinds = []
    for v in (pair.part.invars[0], pair.part.outvars[0]):
        kinds.append(v.aval.dtype.kind)
    if cut.kind in ("place", "columns"):
        return cut if kinds[1] in "iu" else None
    is_exact = kinds[1] != "b" and (kinds[0] in "iub" or kinds[1] not in "iu")
    return cut if is_exact else elementwise(pair.cuts)


def _add(pair: Pair) -> Value:
    return add(pair.cuts, pair.n)


def _multiply(pair: Pair) -> Value:
    return multiply(*pair.cuts)


def _divide(pair: Pair) -> Value:
    """A quotient; a quotient of integers is rounded, so that its multiples are other numbers."""
    is_rounded = pair.part.outvars[0].aval.dtype.kind in "iu"
    return elementwise(pair.cuts) if is_rounded else divide(*pair.cuts)


def _power(pair: Pair) -> Value:
    (cut,) = pair.cuts
    times = pair.params.get("y", 2)
    return scale_cut(cut, cut.scale**times)


def _largest(pair: Pair) -> Value:
    """The larger or smaller of two: as with sums, multiples of both make a multiple."""
    is_known = all(cut.kind != "total" and cut.scale > 0 for cut in pair.cuts)
    if is_known:
        return add(pair.cuts, pair.n)
    return None


def _compare(pair: Pair) -> Value:
    """A comparison. JAX compares indices with zero before reading."""
    first, second = pair.cuts
    if first.kind == "place" and second.number == 0:
        return Cut("rows", axis=first.axis, number=0)
    cut = elementwise(pair.cuts)
    if cut is None or first.number is None or second.number is None:
        return cut
    return dataclasses.replace(cut, number=float(first.number < second.number))


def _select(pair: Pair) -> Value:
    """A choice. No other rule accepts a value that mixes examples: that value must not be chosen."""
    which, *cases = pair.cuts
    if which is None or which.kind not in ("same", "rows") or which.scale != ONE:
        return None
    if which.number is not None:
        return cases[int(which.number)]
    chosen = add(cases, pair.n)
    return chosen if which.kind == "same" else multiply(which, chosen)


# ---- axes ------------------------------------------------------------------------------------------------------------


def _reduce(pair: Pair) -> Value:
    """A sum, over the examples or other axes; or any other fold, over other axes."""
    (cut,) = pair.cuts
    axes = pair.params["axes"]
    is_sum = pair.part.primitive.name == "reduce_sum"
    if cut.kind in ("place", "columns") or not (is_sum or cut.is_plain):
        return None
    if cut.kind == "rows" and cut.axis in axes:
        return Cut("total", cut.scale) if is_sum else None
    left = []
    for a in range(len(pair.shape())):
        if a not in axes:
            left.append(a)
    return dataclasses.replace(
        cut,
        number=None,
        axis=left.index(cut.axis) if cut.kind == "rows" else 0,
    )


def _along(name: str) -> Callable[[Pair], Value]:
    """Makes the rule of an operation along one axis, the last one by default."""

    def rule(pair: Pair) -> Value:
        axis = pair.params.get(name, -1) % len(pair.shape())
        cut = elementwise(pair.cuts)
        if cut is None or (cut.kind == "rows" and cut.axis == axis):
            return None
        return cut

    return rule


def _within_last(n_axes: int | Callable[[Any], int]) -> Callable[[Pair], Value]:
    """The rule of an operation on the last axes of all its operands, for each of the others apart."""

    def rule(pair: Pair) -> Value:
        cut = elementwise(pair.cuts)
        last = n_axes(pair.params) if callable(n_axes) else n_axes
        ranks = []
        for v in (*pair.part.invars, *pair.part.outvars):
            ranks.append(len(v.aval.shape))
        if cut is None or (cut.kind == "rows" and cut.axis >= min(ranks) - last):
            return None
        return cut

    return rule


def _broadcast(pair: Pair) -> Value:
    cut = pair.cuts[0]
    target = pair.params["broadcast_dimensions"]
    if cut.kind == "columns" or (cut.kind == "total" and pair.grown is not None):
        return None
    if cut.kind in ("rows", "place"):
        return move_cut(cut, int(target[cut.axis]))
    if pair.grown is None:
        return cut
    return dataclasses.replace(cut, kind="rows", axis=pair.grown)


def _reshape(pair: Pair) -> Value:
    """A reshape: blocks of rows stay blocks if nothing before the examples' axis is joined with that axis."""
    (cut, *_) = pair.cuts
    axis = pair.grown
    if cut.kind == "columns" or pair.params["dimensions"] is not None:
        return None
    if cut.kind in ("same", "total"):
        return cut
    if axis is None or math.prod(pair.shape()[: cut.axis]) != math.prod(pair.out[:axis]):
        return None
    is_place = cut.kind == "place" and pair.out[axis] == pair.shape()[cut.axis]
    is_whole = cut.kind == "rows" and _fits(cut.order, pair.out[axis])
    return move_cut(cut, axis) if is_whole or is_place else None


def _fits(order: Any, length: int) -> bool:
    """Tells whether each piece of a concatenation is whole rows."""
    return all(
        (share * length).denominator == 1 and _fits(inner, int(share * length))
        for share, inner in order
    )


def _squeeze(pair: Pair) -> Value:
    (cut,) = pair.cuts
    gone = pair.params["dimensions"]
    left = []
    for a in range(len(pair.shape())):
        if a not in gone:
            left.append(a)
    if cut.kind in ("rows", "place"):
        return move_cut(cut, left.index(cut.axis))
    return _keep_cut(cut)


def _transpose(pair: Pair) -> Value:
    (cut,) = pair.cuts
    order = list(pair.params["permutation"])
    if cut.kind in ("rows", "place"):
        return move_cut(cut, order.index(cut.axis))
    return _keep_cut(cut)


def _keep_cut(cut: Cut) -> Value:
    return cut if cut.kind in ("same", "total") else None


def _slice(pair: Pair) -> Value:
    """A part of other axes than the examples', or a piece of a concatenation along the examples' axis."""
    (cut,) = pair.cuts
    if cut.kind != "rows":
        return _keep_cut(cut)
    start = pair.params["start_indices"][cut.axis]
    stop = pair.params["limit_indices"][cut.axis]
    starts = pair.whole.params["start_indices"][cut.axis]
    strides = pair.params["strides"] or [1] * len(pair.out)
    is_block = strides[cut.axis] == 1 and starts == pair.n * start
    if is_block:
        return _piece(cut, pair.shape()[cut.axis], start, stop)
    return None


def _piece(
    cut: Cut,
    length: int,
    start: int,
    stop: int,
) -> Value:
    """Takes the rows from start to stop, if these are all rows, or a piece of a concatenation."""
    if (start, stop) == (0, length):
        return cut
    begin = Fraction(0)
    for share, order in cut.order:
        if (begin * length, (begin + share) * length) == (start, stop):
            return dataclasses.replace(cut, order=order, number=None)
        begin += share
    return None


def _split(pair: Pair) -> Any:
    (cut,) = pair.cuts
    axis = pair.params["axis"]
    if cut.kind != "rows" or cut.axis != axis:
        return cut if cut.kind == "rows" else _keep_cut(cut)
    stops = list(itertools.accumulate(pair.params["sizes"]))
    result = []
    for start, stop in itertools.pairwise([0, *stops]):
        result.append(_piece(cut, stops[-1], start, stop))
    return result


def _unstack(pair: Pair) -> Value:
    (cut,) = pair.cuts
    axis = pair.params["axis"]
    if cut.kind != "rows":
        return _keep_cut(cut)
    if axis != cut.axis:
        return move_cut(cut, cut.axis - (axis < cut.axis))
    return None


def _stack(pair: Pair) -> Value:
    cut = add(pair.cuts, pair.n)
    axis = pair.params["axis"]
    if cut is not None and cut.kind == "rows":
        return move_cut(cut, cut.axis + (axis <= cut.axis))
    return cut


def _tile(pair: Pair) -> Value:
    (cut,) = pair.cuts
    is_kept = cut.kind != "rows" or pair.params["reps"][cut.axis] == 1
    return cut if is_kept and cut.kind in ("same", "total", "rows") else None


def _reverse(pair: Pair) -> Value:
    (cut,) = pair.cuts
    is_kept = cut.kind == "rows" and cut.axis not in pair.params["dimensions"]
    return cut if is_kept else _keep_cut(cut)


def _pad(pair: Pair) -> Value:
    cut, filling = pair.cuts
    is_kept = cut.kind != "rows" or not any(pair.params["padding_config"][cut.axis])
    if is_kept:
        return add([cut, filling], pair.n)
    return None


def _concatenate(pair: Pair) -> Value:
    axis = pair.params["dimension"]
    is_last = pair.params["dimension"] == len(pair.out) - 1
    if any(cut.kind == "place" for cut in pair.cuts):
        ones = all(v.aval.shape[-1] == 1 for v in pair.part.invars)
        if is_last and ones:
            return Cut("columns", columns=tuple(pair.cuts))
        return None
    along = [cut.kind == "rows" and cut.axis == axis for cut in pair.cuts]
    if not any(along):
        return add(pair.cuts, pair.n)
    if not all(along) or len({cut.scale for cut in pair.cuts}) > 1:
        return None
    length = pair.out[axis]
    shares = []
    for i in range(len(pair.cuts)):
        shares.append(Fraction(pair.shape(i)[axis], length))
    order = tuple(zip(shares, (cut.order for cut in pair.cuts), strict=True))
    return Cut("rows", pair.cuts[0].scale, axis, order=order)


def _iota(pair: Pair) -> Value:
    if pair.grown is None:
        return SAME
    return Cut(
        "place" if pair.params["dimension"] == pair.grown else "rows",
        axis=pair.grown,
    )


def _window(pair: Pair) -> Value:
    """A fold over windows along other axes."""
    cut = elementwise(pair.cuts)
    if cut is None or cut.kind != "rows":
        return cut
    is_other = (
        pair.params["window_dimensions"][cut.axis] == 1
        and pair.out[cut.axis] == pair.shape()[cut.axis]
    )
    return cut if is_other else None


_FOLDS = (
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_and",
    "reduce_or",
    "reduce_xor",
    "argmax",
    "argmin",
)
_MATRICES = ("cholesky", "triangular_solve", "qr", "eigh", "svd", "lu", "householder_product")
_KEPT = (
    "neg",
    "copy",
    "copy_p",
    "real",
    "imag",
    "conj",
    "reduce_precision",
    "stop_gradient",
    "sharding_constraint",
)

RULES: dict[str, Callable[[Pair], Any]] = {
    **dict.fromkeys(_KEPT, _linear),
    **dict.fromkeys(("add", "sub", "add_any"), _add),
    **dict.fromkeys(("max", "min"), _largest),
    **dict.fromkeys(("integer_pow", "square"), _power),
    **dict.fromkeys(("reduce_sum", *_FOLDS), _reduce),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _along("axis")),
    **dict.fromkeys(_MATRICES, _within_last(2)),
    **dict.fromkeys(
        ("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min"), _window
    ),
    "mul": _multiply,
    "div": _divide,
    "lt": _compare,
    "select_n": _select,
    "convert_element_type": _convert,
    "sort": _along("dimension"),
    "top_k": _along("axis"),
    "fft": _within_last(lambda params: len(params["fft_lengths"])),
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "slice": _slice,
    "split": _split,
    "stack": _stack,
    "unstack": _unstack,
    "tile": _tile,
    "platform_index": lambda pair: SAME,
    "rev": _reverse,
    "pad": _pad,
    "concatenate": _concatenate,
    "iota": _iota,
    "optimization_barrier": lambda pair: list(pair.cuts),
}
"""By primitive its rule; what goes number by number needs none."""
