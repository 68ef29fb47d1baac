"""Programs that some versions of XLA compute wrongly on CPUs, each beside its answer from NumPy.

XLA's CPU compiler can hand reductions, and what feeds them, to the library YNNPACK. In jaxlib 0.10.2 to 0.12 some of these fused kernels
give wrong numbers, without an error (JAX issues 39103, 37465, 39257 and 40412).

This file imports only JAX and NumPy, so that it can run by itself, as `python patterns.py`, in a process where `ampjax` has set no flag.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

TOLERANCE = 1e-4
"""Largest relative error of a right answer: sums of up to 3,600 float32 products err by 1e-6, the wrong kernels by 1e-3 and more."""

Pattern = tuple[str, Callable[..., jax.Array], Callable[..., np.ndarray], tuple[np.ndarray, ...]]


def patterns() -> Iterator[Pattern]:
    """Yields for each pattern its name, the function for JAX, the function for NumPy in float64, and float32 arguments."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(np.float32)

    yield (
        "sum((x @ constant) * w) over matrices",
        lambda x, w: jnp.sum(
            (x @ jnp.full_like(x, 0.7)) * w,
            axis=(1, 2),
        ),
        lambda x, w: np.sum(
            (x @ np.full_like(x, 0.7)) * w,
            axis=(1, 2),
        ),
        (normal(5, 60, 60), normal(5, 60, 60)),
    )
    yield (
        "sum((x @ constant) * w) over one matrix",
        lambda x, w: jnp.sum((x @ jnp.full((60, 60), 0.7, x.dtype)) * w)[None],
        lambda x, w: np.sum((x @ np.full((60, 60), 0.7)) * w)[None],
        (normal(100, 60), normal(100, 60)),
    )
    yield (
        "sum((m @ row) ** 2) for each of 32,769 rows",
        lambda m, rows: jax.vmap(lambda row: jnp.sum((m @ row) ** 2))(rows),
        lambda m, rows: np.sum((rows @ m.T) ** 2, axis=1),
        (normal(3, 3), normal(32_769, 3)),
    )


def wrong_patterns() -> list[str]:
    """Computes every pattern on this process's first CPU device and compares the result with NumPy's.

    Returns:
      A line for each pattern that comes out wrong; empty where all are right.
    """
    wrong = []
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        for name, function, oracle, arguments in patterns():
            got = np.asarray(
                jax.jit(function)(*arguments),
                np.float64,
            )
            want = oracle(*(np.asarray(x, np.float64) for x in arguments))
            error = np.max(np.abs(got - want)) / np.max(np.abs(want))
            if not error <= TOLERANCE:  # an error that is no number is wrong, too
                worst = np.unravel_index(
                    np.argmax(
                        np.nan_to_num(
                            np.abs(got - want),
                            nan=np.inf,
                        )
                    ),
                    got.shape,
                )
                wrong.append(f"{name}: {got[worst]:.6g} in place of {want[worst]:.6g}")
    return wrong


if __name__ == "__main__":
    print(json.dumps(wrong_patterns()))
