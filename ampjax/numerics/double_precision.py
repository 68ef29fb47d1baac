"""Programs that run operation by operation in float64, without the fusions and the rounding of compiled kernels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

_WIDER = {
    np.dtype("float32"): np.dtype("float64"),
    np.dtype("complex64"): np.dtype("complex128"),
}


@contextmanager
def operation_by_operation() -> Iterator[None]:
    """Inside, JAX neither compiles more than one operation at a time, nor narrows float64."""
    with jax.enable_x64(True), jax.disable_jit():
        yield


def widen_tree(tree: Any) -> Any:
    """The same values; single precision leaves in double precision, as NumPy arrays."""
    return jax.tree.map(_widen_leaf, tree)


def _widen_leaf(leaf: Any) -> Any:
    wide = _WIDER.get(getattr(leaf, "dtype", None))
    return leaf if wide is None else np.asarray(leaf, wide)
