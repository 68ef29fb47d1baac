"""Arrays as users have them: NumPy's, JAX's, tensors of other libraries, numbers of Python; and whether JAX holds their numbers.

Knows leaves; nothing of batches or parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.devices.random_keys import is_key
from ampjax.errors import AmpError, DataError


def host_array(
    leaf: Any,
    where: str,
    error: type[AmpError] = DataError,
) -> Any:
    """A leaf as an array of NumPy's or JAX's. A tensor in host memory gives a view of that memory.

    Args:
      leaf: An array, random keys, a number, or a tensor of another library.
      where: What it is called in errors.
      error: Their type.

    Returns:
      Arrays of NumPy's and JAX's and keys as they are; of anything else a NumPy array.

    Raises:
      DataError: If it is in another memory than the host's, if it is masked, or if nothing says what its bytes are.
    """
    if isinstance(leaf, np.ma.MaskedArray):
        fix = "Pass `.filled(...)`, and the mask as an array of its own."
        raise error(
            where, "an array without a mask", "a masked array, whose mask would be lost", fix
        )
    if isinstance(leaf, np.ndarray | np.generic | jax.Array):
        array = leaf
    else:
        if hasattr(leaf, "dtype"):
            array = _of_tensor(leaf, where, error)
        else:
            array = np.asarray(leaf)
    if not is_key(array) and array.dtype == np.dtype(("V", array.dtype.itemsize)):
        got = f"{array.dtype}, bytes without a type: so NumPy reads bfloat16 and other short floats from its files"
        raise error(where, "numbers", got, "Say what they are: `array.view(ml_dtypes.bfloat16)`.")
    return array


def require_32_bits(
    array: Any,
    where: str,
    error: type[AmpError] = DataError,
) -> None:
    """Checks that JAX holds the numbers of an array: without `jax_enable_x64`, 64 bits are cut to 32.

    Args:
      array: Any array, or keys.
      where: What it is called in errors.
      error: Their type.

    Raises:
      DataError: If an integer would become another one, or a float infinite; it names the first.
    """
    if not isinstance(array, np.ndarray | np.generic) or array.dtype.itemsize < 8 or not array.size:
        return
    held = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if held == array.dtype:
        return
    limits = np.iinfo(held) if held.kind in "iu" else np.finfo(held)
    numbers: Any = np.abs(array) if held.kind == "c" else np.asarray(array)
    if numbers.min() >= limits.min and numbers.max() <= limits.max:
        return
    is_lost = ((numbers < limits.min) | (numbers > limits.max)) & np.isfinite(numbers)
    if not is_lost.any():  # infinity and NaN are what they are
        return
    place = np.unravel_index(int(np.argmax(is_lost)), array.shape)
    at = f" at {list(map(int, place))}" if array.ndim else ""
    smaller = "ids: `ids % n_rows`" if held.kind in "iu" else "they may have exploded"
    fix = f"Make them smaller in NumPy ({smaller}), or let JAX have 64 bits: `jax.config.update('jax_enable_x64', True)`."
    raise error(
        where,
        f"numbers that {held} holds, as which JAX takes {array.dtype}",
        f"{np.asarray(array)[place]}{at}",
        fix,
    )


def hold_in_32_bits(arrays: Sequence[Any]) -> bool:
    """Tells whether `require_32_bits` surely lets all of some arrays pass, in few calls of NumPy's.

    Args:
      arrays: Any arrays, or keys.
    """
    wide: dict[np.dtype, list[np.ndarray]] = {}
    for array in arrays:
        if not isinstance(array, np.ndarray) or not array.size:
            continue
        dtype = array.dtype
        if dtype.itemsize >= 8:
            of_dtype = wide.setdefault(dtype, [])
            of_dtype.append(array)
    for dtype, several in wide.items():
        held = np.dtype(jax.dtypes.canonicalize_dtype(dtype))
        if held == dtype:
            continue
        # NumPy has no order of complex numbers
        if held.kind == "c":
            return False
        if held.kind in "iu":
            limits = np.iinfo(held)
        else:
            limits = np.finfo(held)
        least, most = extremes(several)
        is_large_enough = least.min() >= limits.min
        is_small_enough = most.max() <= limits.max
        if not (is_large_enough and is_small_enough):
            return False
    return True


def extremes(arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest number of each array, from all together: a call takes longer than a small array does.

    Args:
      arrays: n arrays of one dtype, none of them empty.

    Returns:
      The smallest numbers `[n]`, and the largest; NaN of an array that has one.

    >>> extremes([np.array([[3, 1]]), np.array([2])])[0].tolist()
    [1, 2]
    """
    joined = arrays[0].reshape(-1)
    if len(arrays) > 1:
        joined = np.concatenate(
            arrays,
            axis=None,
        )
    sizes = [array.size for array in arrays[:-1]]
    starts = list(accumulate(sizes, initial=0))
    least = np.minimum.reduceat(joined, starts)
    most = np.maximum.reduceat(joined, starts)
    return least, most


def _of_tensor(
    tensor: Any,
    where: str,
    error: type[AmpError],
) -> np.ndarray:
    """A tensor of another library as a NumPy array."""
    tensor = (
        tensor.detach() if hasattr(tensor, "detach") else tensor
    )  # torch gives no memory away that has a gradient
    try:
        return np.asarray(tensor)
    except Exception as first:  # whatever that library raises
        try:
            return np.asarray(jnp.from_dlpack(tensor))  # NumPy knows no bfloat16
        except Exception:
            library = type(tensor).__module__.split(".")[0]
            reason = str(first).splitlines()[0]
            got = f"a tensor of {library}, {tensor.dtype} ({reason})"
            raise error(
                where, "an array in host memory", got, "Convert it to NumPy first."
            ) from first
