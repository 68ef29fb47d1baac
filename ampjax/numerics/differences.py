"""The measure of gradient parity: two dictionaries of pytrees, leaf by leaf, as numbers and as text; and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import ParameterError

Difference = tuple[str, str, float]
"""A node, a path within its pytree, and max |difference| / max |wanted|."""


TOLERANCE = 1e-5
ROUNDINGS = 16
"""The largest difference that rounding explains, where numbers are float32; and in units of rounding, where they are narrower."""


def tolerance_for(dtype: Any) -> float:
    """The largest difference that rounding explains, in the measure of `compare`: 1e-5 for float32, 0.02 for float16, 0.1 for bfloat16.

    Args:
      dtype: The narrowest floats that are computed with.
    """
    return max(TOLERANCE, ROUNDINGS * float(jnp.finfo(dtype).eps))


def compare(
    got: Mapping[str, Any],
    want: Mapping[str, Any],
) -> list[Difference]:
    """Compares two dictionaries of pytrees leaf by leaf, with the measure that the law of gradient parity uses.

    Args:
      got: By node name, a pytree of arrays.
      want: The same from the oracle.

    Returns:
      `(node, path, max|got - want| / max|want|)` per leaf, in `want`'s order. Where `want` is all zero the difference itself counts;
      a value that is not finite counts as infinite.

    Raises:
      ParameterError: If nodes, structures or shapes differ.
    """
    if sorted(got) != sorted(want):
        raise ParameterError(
            "compare",
            f"the nodes {sorted(want)}",
            f"{sorted(got)}",
            "Compare the same graph's nodes.",
        )
    result = []
    for node in want:
        wanted, structure = jax.tree.flatten_with_path(want[node])
        leaves, other = jax.tree.flatten(got[node])
        if structure != other:
            raise ParameterError(
                f"compare, node `{node}`",
                f"the structure {structure}",
                f"{other}",
                "Compare the same pytrees.",
            )
        for (path, w), g in zip(wanted, leaves, strict=True):
            w = widen_leaf(w)
            g = widen_leaf(g)
            if w.shape != g.shape:
                raise ParameterError(
                    f"compare, node `{node}`{jax.tree_util.keystr(path)}",
                    f"shape {w.shape}",
                    f"{g.shape}",
                    "Compare equal shapes.",
                )
            scale = float(np.max(np.abs(w), initial=0.0))
            difference = float(np.max(np.abs(g - w), initial=0.0)) / (scale or 1.0)
            result.append(
                (
                    node,
                    jax.tree_util.keystr(path),
                    difference if np.isfinite(difference) else float("inf"),
                )
            )
    return result


def widen_leaf(leaf: Any) -> np.ndarray:
    """Widens a leaf to double precision; a complex one stays complex."""
    return np.asarray(
        leaf,
        np.complex128 if np.iscomplexobj(leaf) else np.float64,
    )


def difference_table(
    differences: Sequence[Difference], tolerance: float = 1e-5, limit: int = 20
) -> str:
    """Writes the result of `compare` as text, worst first; leaves beyond the tolerance are marked.

    Args:
      differences: The result of `compare`.
      tolerance: Largest difference that is not marked.
      limit: Lines at most.

    Returns:
      The table.
    """
    ordered = sorted(differences, key=lambda d: -d[2])[:limit]
    wide = max([len(node) for node, _, _ in ordered] + [len("node")])
    leaf = max([len(path) for _, path, _ in ordered] + [len("leaf")])
    lines = [f"{'node':{wide}}  {'leaf':{leaf}}  max|difference| / max|gradient|"]
    for node, path, value in ordered:
        mark = f"  > {tolerance:g}" if value > tolerance else ""
        lines.append(f"{node:{wide}}  {path:{leaf}}  {value:12.1e}{mark}".rstrip())
    if len(differences) > limit:
        lines.append(f"... and {len(differences) - limit} more")
    return "\n".join(lines)


@dataclass(frozen=True)
class Verification:
    """The result of `amp.verify`, and of `verify` of a compiled model.

    Args:
      ok: Whether everything agrees within the tolerance.
      worst: The largest difference, max |difference| / max |reference| over leaves, losses, norms, metrics and sinks.
      report: A readable account, one part per schedule, with what was not looked at.
      not_looked_at: What can still be wrong, a line each.
    """

    ok: bool
    worst: float
    report: str
    not_looked_at: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.ok

    def __repr__(self) -> str:
        return self.report
