"""The parts of an optimizer's state in words, by which a checkpoint knows its optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ampjax.errors import DataError


def parts_of(state: Any) -> str:
    """The parts of an optimizer's state in words: `ScaleByAdamState, EmptyState`.

    Args:
      state: What a transform's `init` gives.
    """
    if isinstance(state, tuple) and not hasattr(state, "_fields"):
        return ", ".join(map(parts_of, state)) or "no state"
    if isinstance(state, Mapping):
        return ", ".join(map(parts_of, state.values()))
    name = type(state).__name__
    if hasattr(state, "_fields"):
        inner = [parts_of(part) for part in state if isinstance(part, tuple)]
    else:
        inner = []
    return f"{name}({', '.join(inner)})" if inner else name


def require_same_parts(
    where: str,
    expected: str,
    saved: Any,
    fix: str,
) -> None:
    """Checks, by the parts, that a saved state is of the optimizer that shall continue with the state.

    Raises:
      DataError: If it is of another.
    """
    if f"{saved}" != expected:
        raise DataError(where, f"the state {expected:.120}", f"{saved:.120}", fix)
