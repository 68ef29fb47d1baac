"""The layout of values in payloads and columns: arrays unchanged, JAX's typed PRNG keys as their integers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ampjax.errors import DataError
from ampjax.jaxprs.primitives import shape_text


def is_key(value: Any) -> bool:
    """Tells whether a value, or a type, is one of typed PRNG keys.

    Args:
      value: The value or type.
    """
    return jnp.issubdtype(
        getattr(value, "dtype", np.dtype(np.float32)),
        jax.dtypes.prng_key,
    )


def typed_key(where: str, key: Any) -> Any:
    """Makes a typed PRNG key of a user's key: typed, or the integers of `jax.random.PRNGKey`; None stays None.

    Args:
      where: The argument, for errors.
      key: The key.

    Raises:
      DataError: If it is no key.
    """
    if key is None or (is_key(key) and not key.shape):
        return key
    if not is_key(key) and jnp.result_type(key) == np.uint32:
        try:
            return jax.random.wrap_key_data(key)
        except (TypeError, ValueError):
            pass
    kind = shape_text(jax.typeof(key))
    raise DataError(
        where,
        "one PRNG key of JAX",
        kind,
        "Give `jax.random.key(0)`, say, or a part of another key by `jax.random.split`.",
    )


def raw_type(kind: Any) -> Any:
    """Finds the type of a value in a payload or a column."""
    if is_key(kind):
        return jax.eval_shape(
            jax.random.key_data,
            jax.ShapeDtypeStruct(kind.shape, kind.dtype),
        )
    return kind


def raw(value: Any) -> Any:
    """Converts a value to its form in a payload or a column."""
    return jax.random.key_data(value) if is_key(value) else value


def from_raw(array: Any, dtype: Any) -> Any:
    """The value that lies in a payload or a column.

    Args:
      array: What `raw` gave.
      dtype: The value's dtype.
    """
    if not jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return array
    return jax.random.wrap_key_data(array, impl=implementation(dtype))


def implementation(dtype: Any) -> Any:
    """Finds the generator of keys, in the form that `jax.random.key(seed, impl=...)` takes.

    Args:
      dtype: The keys' dtype.
    """
    return jax.random.key_impl(jnp.zeros((), dtype))
