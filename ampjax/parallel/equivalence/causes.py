"""The causes of differences between replicas and one device: operations that mix examples of a batch, and shared random keys.

Reads jaxprs and draws, and writes the errors; computes no loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ampjax.errors import EquivalenceError
from ampjax.jaxprs import primitives
from ampjax.parallel.config.config import ParallaxConfig
from ampjax.sparse.detection.findings import Draw

OFF = 'If it is meant, say `ParallaxConfig(check_equivalence="off")`.'

_ADVICE = {
    "quotient": "{} divides by a sum over the replica's own part (of weights, say, where padding differs): return `px.Weighted(total, weight)`.",
    "pairs": "{} pairs examples of the replica's own part (negatives within the batch, say): pair them with `px.all_gather(x)`; labels that count examples come with the batch (`np.arange(n)`), for they are positions in the joined batch.",
    "statistics": "{} reduces over examples of the replica's own part (batch statistics, say): take `px.mean(x, axis)`.",
}
_UNKNOWN = (
    "something is computed across the examples of a replica's own part: a sum of weights (return `px.Weighted(total, weight)`), "
    "pairs of examples (`px.all_gather`), statistics of the batch (`px.mean`), a sum beside a mean; or the leading axis is not that of the examples."
)
_ALONE = "Without a barrier (`sync=False`) each replica's part is a batch of its own, also for `px.Weighted`, `px.all_gather` and `px.mean`."


@dataclass(frozen=True)
class Mixing:
    """An equation that brings examples together.

    Args:
      kind: `quotient`, `pairs` or `statistics`.
      line: The user's source line, or empty.
    """

    kind: str
    line: str


@dataclass(frozen=True)
class Losses:
    """A batch's loss, computed in two ways.

    Args:
      joined: The joined batch's loss, as a single device computes it.
      replicas: The mean or sum of the replicas' losses.
      rounding: How far apart rounding may bring the two.
    """

    joined: float
    replicas: float
    rounding: float

    @property
    def agree(self) -> bool:
        """Tells whether the losses differ by rounding at most."""
        return abs(self.joined - self.replicas) <= self.rounding


def explain_difference(
    losses: Losses,
    n: int,
    config: ParallaxConfig,
    nearby: bool,
    find: Callable[[], list[Mixing]],
    which: str,
) -> EquivalenceError:
    """The error for losses that differ, with the likely cause.

    Args:
      losses: The losses.
      n: The number of replicas.
      config: The settings.
      nearby: Whether the losses are those at parameters that were moved a little.
      find: Finds the equations that bring examples together; called if nothing simpler explains the difference.
      which: What the batch is called.

    Returns:
      The error.
    """
    at = " (at parameters nearby, where it shows)" if nearby else ""
    average = config.average_dense
    return EquivalenceError(
        f"loss_fn, {which} cut for {n} replicas",
        f"the joined batch's loss, {losses.joined:.6g}{at}",
        f"{losses.replicas:.6g}, the {average} of the replicas' losses, where rounding explains {losses.rounding:.1g}",
        f"Likely cause: {_cause(losses, n, config, find)} {OFF}",
    )


def _cause(
    losses: Losses,
    n: int,
    config: ParallaxConfig,
    find: Callable[[], list[Mixing]],
) -> str:
    joined = losses.joined
    replicas = losses.replicas
    rounding = losses.rounding
    if not config.sync:
        return f"something is computed across examples. {_ALONE} Train with `sync=True`."
    if config.average_dense == "mean" and abs(joined - n * replicas) <= n * rounding:
        return 'the loss is a sum over examples: take their mean, or say `average_dense="sum"` and `average_sparse="sum"`.'
    if config.average_dense == "sum" and abs(n * joined - replicas) <= n * rounding:
        return 'the loss is a mean over examples: leave `average_dense` and `average_sparse` at "mean", or take the sum.'
    lines = {mixing.kind: mixing.line for mixing in reversed(find())}
    advice = []
    for kind in _ADVICE:
        if kind in lines:
            advice.append(_ADVICE[kind].format(lines[kind] or "the program"))
    return " Or: ".join(advice) or _UNKNOWN


def explain_divisors(
    lines: Sequence[str],
    n: int,
    which: str,
) -> EquivalenceError:
    """The error for parts whose losses are divided by different sums."""
    return EquivalenceError(
        f"loss_fn, {which} in parts for {n} replicas",
        "a loss that is divided by the same number at all replicas, since their mean is taken",
        "different sums over the replicas' own parts",
        f"Likely cause: {_ADVICE['quotient'].format(', '.join(lines))} {OFF}",
    )


def explain_shared_keys(
    draws: Sequence[Draw],
    whole: Sequence[Draw] | None,
    varies: Sequence[bool],
) -> tuple[EquivalenceError, ...]:
    """The errors for draws whose keys all replicas share.

    Args:
      draws: The draws of the loss function on a part of the batch.
      whole: The same on the joined batch; None if the loss function does not take it.
      varies: By leaf of the batch, whether each replica has its own.

    Returns:
      One error for keys that do not come from the batch, one for keys that come from it but are the same for all replicas, or none.
    """
    same_shape = whole is not None and len(whole) == len(draws)
    fixed = []
    for a, b in zip(draws, whole or draws, strict=False):
        fixed.append(same_shape and a.shape == b.shape)
    closed = [draw for draw in draws if not draw.deps]
    # What does not grow with the batch (one set of negatives for all examples) is the same for all examples on one device, too.
    common = []
    for draw, is_fixed in zip(draws, fixed or [False] * len(draws), strict=False):
        if (
            draw.deps
            and not is_fixed
            and not any(varies[leaf] for leaf in draw.deps if isinstance(leaf, int))
        ):
            common.append(draw)
    errors = []
    if closed:
        errors.append(
            _shared_key(
                closed,
                "a key that is closed over or made in the loss",
                ", and the same at every step",
            )
        )
    if common:
        errors.append(
            _shared_key(common, "a key that follows from scalars or a single key of the batch", "")
        )
    return tuple(errors)


def _shared_key(
    draws: Sequence[Draw],
    key: str,
    more: str,
) -> EquivalenceError:
    lines = ", ".join(dict.fromkeys(draw.line for draw in draws if draw.line))
    return EquivalenceError(
        "loss_fn, random numbers" + (f" ({lines})" if lines else ""),
        "a key from the batch for each replica",
        f"{key}: all replicas draw the same numbers{more}",
        'Put `runner.keys()` into the batch, anew for each step, and draw with `batch["key"][0]`. Numbers that shall never change are drawn once, outside of the loss. '
        + OFF,
    )


# ---- what brings examples together -----------------------------------------------------------------------------------


def find_mixing(part: Any, whole: Any) -> list[Mixing]:
    """Finds the equations that bring examples together, by comparing sizes on a part and on the joined batch.

    Args:
      part: The loss function's jaxpr for a part.
      whole: The same for the joined batch.

    Returns:
      The equations in their order.
    """
    return list(_mixing(part, whole, ""))


def _mixing(
    part: Any,
    whole: Any,
    around: str,
) -> Iterator[Mixing]:
    part, _ = primitives.opened(part)
    whole, _ = primitives.opened(whole)
    totals: set[Any] = set()  # scalars that follow from sums over examples
    for small, large in zip(part.eqns, whole.eqns, strict=False):
        if small.primitive is not large.primitive:
            return
        line = primitives.source_line(small) or around
        growth = _operand_growth(small, large)
        inner = list(zip(primitives.inner(small), primitives.inner(large), strict=False))
        if small.outvars and not inner:
            for kind in _kinds_of_mixing(small, large, growth, totals):
                yield Mixing(kind, line)
        if growth > 1 or any(_is_var_in(v, totals) for v in small.invars):
            totals |= {v for v in small.outvars if getattr(v.aval, "size", 0) == 1}
        for a, b in inner:
            yield from _mixing(a, b, line)


def _kinds_of_mixing(
    small: Any,
    large: Any,
    growth: float,
    totals: set[Any],
) -> Iterator[str]:
    """Yields the ways in which an equation brings examples together.

    Args:
      small: The equation for a part.
      large: The same for the joined batch.
      growth: How much more numbers its operands have there.
      totals: Scalars that follow from sums over examples.
    """
    out = small.outvars[0]
    of_result = _growth(out, large.outvars[0])
    if of_result > growth > 1:
        yield "pairs"
    if growth > 1 and of_result == 1 and out.aval.size > 1:
        yield "statistics"
    is_division = small.primitive.name == "div" and out.aval.size == 1
    if is_division and _is_var_in(small.invars[1], totals):
        yield "quotient"


def _operand_growth(small: Any, large: Any) -> float:
    """Finds the largest growth of an equation's operands; 1 without operands."""
    operands = zip(small.invars, large.invars, strict=False)
    return max((_growth(a, b) for a, b in operands), default=1.0)


def _is_var_in(atom: Any, variables: set[Any]) -> bool:
    return not hasattr(atom, "val") and atom in variables


def _growth(part: Any, whole: Any) -> float:
    """Computes the ratio of a value on the joined batch to the value on a part."""
    return getattr(whole.aval, "size", 1) / max(getattr(part.aval, "size", 1), 1)
