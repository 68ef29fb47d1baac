"""Functions of `jax.numpy` for whole sequences, written without questions for a length; each has the arguments of the function of the same name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export


def convolve(
    a: Any,
    v: Any,
    mode: str = "full",
    **settings: Any,
) -> Any:
    """`jnp.convolve` of a sequence and a kernel of fixed size, in either order."""
    if not export.is_symbolic_dim(a.shape[0]):
        a, v = v, a
    if export.is_symbolic_dim(v.shape[0]):
        return NotImplemented
    return _correlate(a, v[::-1], mode, **settings)


def correlate(
    a: Any,
    v: Any,
    mode: str = "valid",
    **settings: Any,
) -> Any:
    """`jnp.correlate` of a sequence with a kernel of fixed size."""
    if export.is_symbolic_dim(v.shape[0]):
        return NotImplemented
    return _correlate(a, jnp.conj(v), mode, **settings)


def _correlate(
    xs: Any,
    kernel: Any,
    mode: str,
    **settings: Any,
) -> Any:
    """Convolves a sequence with a kernel that is turned around; JAX exchanges both where the kernel is longer, and takes none that is empty."""
    k = kernel.shape[0]
    paddings = {
        "full": (k - 1, k - 1),
        "same": (k // 2, k - k // 2 - 1),
        "valid": (0, 0),
    }
    if mode not in paddings or not k or len(xs.shape) > 1:
        return NotImplemented
    least = 1 if mode == "full" else k
    dtype = (jnp.zeros((), xs.dtype) / jnp.zeros((), kernel.dtype)).dtype
    # the sequence has the check: a kernel that differs from example to example would be a convolution for each
    xs = _where_not_below_zero(
        xs.shape[0] - least,
        xs.astype(dtype),
    )
    result = jax.lax.conv_general_dilated(
        xs[None, None],
        kernel.astype(dtype)[None, None],
        (1,),
        [paddings[mode]],
        **settings,
    )
    return result[0, 0]


def pad(
    array: Any,
    pad_width: Any,
    mode: Any = "constant",
    **settings: Any,
) -> Any:
    """`jnp.pad` with elements of the sequence, which are read by number."""
    numbers = _PADDED.get(mode) if isinstance(mode, str) else None
    if numbers is None or settings:
        return NotImplemented
    widths = np.broadcast_to(
        np.asarray(pad_width, int),
        (len(array.shape), 2),
    )
    for axis, (before, behind) in enumerate(widths.tolist()):
        if not before and not behind:
            continue
        n = array.shape[axis]
        places = jnp.arange(before + n + behind) - before
        at = (slice(None),) * axis
        array = array[(*at, numbers(places, jnp.asarray(n)))]
    return array


def _reflect(places: Any, n: Any) -> Any:
    period = jnp.maximum(2 * n - 2, 1)
    place = places % period
    return jnp.minimum(place, period - place)


def _mirror(places: Any, n: Any) -> Any:
    period = jnp.maximum(2 * n, 1)
    place = places % period
    return jnp.minimum(place, period - 1 - place)


_PADDED: Mapping[str, Callable[[Any, Any], Any]] = {
    "edge": lambda places, n: jnp.clip(places, 0, n - 1),
    "wrap": lambda places, n: places % jnp.maximum(n, 1),
    "reflect": _reflect,
    "symmetric": _mirror,
}
"""By mode: from places, of which those outside of `0..n-1` are padding, and `n` to the places that are read."""


def indexed(array: Any, index: Any) -> Any:
    """An element by an expression of lengths, as in `xs[n - 1]`."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(map(export.is_symbolic_dim, parts)):
        return NotImplemented
    numbers = [jnp.asarray(part) if export.is_symbolic_dim(part) else part for part in parts]
    return array[tuple(numbers)]


def take(
    a: Any,
    indices: Any,
    axis: int | None = None,
    out: Any = None,
    mode: str | None = None,
    **settings: Any,
) -> Any:
    """`jnp.take` of elements by numbers that go round."""
    is_first = axis == 0 or (axis is None and len(a.shape) == 1)
    if mode != "wrap" or not is_first or not export.is_symbolic_dim(a.shape[0]):
        return NotImplemented
    n = jnp.maximum(jnp.asarray(a.shape[0]), 1)
    return jnp.take(a, indices % n, axis=0, mode="clip", **settings)


def linspace(
    start: Any,
    stop: Any,
    num: Any = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    **settings: Any,
) -> Any:
    """`jnp.linspace` of as many numbers as a length says."""
    if retstep or axis or not export.is_symbolic_dim(num):
        return NotImplemented
    first, last = jnp.asarray(start), jnp.asarray(stop)
    kind = (first / last).dtype
    count = jnp.asarray(num) - int(endpoint)
    share = jnp.arange(num).astype(kind) / jnp.maximum(count, 1).astype(kind)
    rank = max(first.ndim, last.ndim)
    share = share.reshape(num, *[1] * rank)
    found = first * (1 - share) + last * share
    if dtype is None:
        return found.astype(kind)
    is_whole = jnp.issubdtype(dtype, jnp.integer)
    return (jnp.floor(found) if is_whole else found).astype(dtype)


def diagonal(
    a: Any,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
) -> Any:
    """`jnp.diagonal` beside the main one, of a matrix with as many rows as columns."""
    is_square = a.shape[axis1] == a.shape[axis2]
    if not offset or not is_square or len(a.shape) > 2:
        return NotImplemented
    numbers = jnp.arange(a.shape[axis1])
    pairs = numbers[: -abs(offset)], numbers[abs(offset) :]
    is_turned = (offset < 0) != (axis1 % 2 == 1)
    return a[pairs[::-1] if is_turned else pairs]


def diag(v: Any, k: int = 0) -> Any:
    """`jnp.diag` of a matrix."""
    return diagonal(v, k) if len(v.shape) == 2 else NotImplemented


def insert(
    arr: Any,
    obj: Any,
    values: Any,
    axis: int | None = None,
) -> Any:
    """`jnp.insert` at one place that is a number of Python."""
    is_first = axis == 0 or (axis is None and len(arr.shape) == 1)
    if not is_first or not isinstance(obj, int):
        return NotImplemented
    wide = jnp.array(values, dtype=arr.dtype, ndmin=len(arr.shape))
    wide = jnp.broadcast_to(
        wide,
        (wide.shape[0], *arr.shape[1:]),
    )
    return jnp.concatenate([arr[:obj], wide, arr[obj:]])


def delete(
    arr: Any,
    obj: Any,
    axis: int | None = None,
    **settings: Any,
) -> Any:
    """`jnp.delete` at one place that is a number of Python, and that each example has."""
    is_first = axis == 0 or (axis is None and len(arr.shape) == 1)
    if not is_first or not isinstance(obj, int):
        return NotImplemented
    least = obj + 1 if obj >= 0 else -obj
    arr = _where_not_below_zero(arr.shape[0] - least, arr)
    if obj == -1:
        return arr[:-1]
    return jnp.concatenate([arr[:obj], arr[obj + 1 :]])


def _where_not_below_zero(length: Any, value: Any) -> Any:
    """A value for examples of which an expression of lengths is not below zero; others are refused, as for any length that is read as a number."""
    return jnp.where(
        jnp.asarray(length) >= 0,
        value,
        value,
    )
