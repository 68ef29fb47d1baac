"""Rules for products, convolutions and sums over replicas of cut values. See `cut_rules`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ampjax.parallel.equivalence.cut_rules import Pair
from ampjax.parallel.equivalence.cuts import Cut, Value, move_cut, multiply


def _dot(pair: Pair) -> Value:
    cuts = first, second = pair.cuts
    contracted, batch = pair.params["dimension_numbers"]
    if "total" in (first.kind, second.kind):
        return multiply(first, second)
    if any(cut.kind not in ("same", "rows") for cut in cuts):
        return None
    scale = first.scale * second.scale
    of_rows = [side for side, cut in enumerate(cuts) if cut.kind == "rows"]
    if len(of_rows) == 2:
        axes = first.axis, second.axis
        if first.order != second.order:
            return None
        if axes in zip(*contracted, strict=True):
            return Cut("total", scale)
        if axes in zip(*batch, strict=True):
            return Cut(
                "rows",
                scale,
                list(batch[0]).index(first.axis),
                order=first.order,
            )
        return None
    if not of_rows:
        return Cut("same", scale)
    (side,) = of_rows
    free = []
    for s in (0, 1):
        free.append([a for a in range(len(pair.shape(s))) if a not in (*contracted[s], *batch[s])])
    if cuts[side].axis not in free[side]:
        return None
    before = len(batch[0]) + (len(free[0]) if side else 0)
    return Cut(
        "rows",
        scale,
        before + free[side].index(cuts[side].axis),
        order=cuts[side].order,
    )


def _convolve(pair: Pair) -> Value:
    images, kernel = pair.cuts
    numbers = pair.params["dimension_numbers"]
    if pair.params["batch_group_count"] != 1 or kernel.kind != "same":
        return None
    product = multiply(images, kernel)
    if product is None or product.kind != "rows":
        return product
    if images.axis == numbers.lhs_spec[0]:
        return move_cut(product, numbers.out_spec[0])
    return None


def _sum_over_replicas(pair: Pair) -> list[Value]:
    """Sums over the replicas at the program's request: of totals, the result is the joined value. With one replica nothing happens."""

    def summed(cut: Cut) -> Value:
        if cut.kind not in ("same", "total"):
            return None
        return Cut(
            "same",
            cut.scale * (pair.n if cut.kind == "same" else 1),
        )

    return [summed(cut) for cut in pair.cuts]


def _gather_replicas(pair: Pair) -> list[Value]:
    """Gathers all replicas' rows in their order: the joined rows."""
    is_tiled = pair.params["tiled"]
    axis = pair.params["all_gather_dimension"]
    fits = []
    for cut in pair.cuts:
        fits.append(is_tiled and (cut.kind, cut.axis, cut.order) == ("rows", axis, ()))
    result = []
    for fit, cut in zip(fits, pair.cuts, strict=True):
        result.append(Cut("same", cut.scale) if fit else None)
    return result


PRODUCTS: dict[str, Callable[[Pair], Any]] = {
    "dot_general": _dot,
    "conv_general_dilated": _convolve,
    "psum": _sum_over_replicas,
    "psum_invariant": _sum_over_replicas,
    "all_gather": _gather_replicas,
}
"""By primitive its rule."""
