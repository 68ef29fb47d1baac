"""Arrays as users have them: NumPy's, JAX's, tensors of other libraries, numbers of Python; and whether JAX holds their numbers.

Knows single leaves; nothing of batches or parameters.
"""

from __future__ import annotations

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
      DataError: If it is in another memory than the host's, or if nothing says what its bytes are.
    """
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
