"""Writes into a part of an array that some versions of XLA compute wrongly on CPUs, or slowly. No flag prevents this.

*Wrong.* `h.at[1:].set(h[:-1])` moves a register on by a row. Where a reshape follows, and be it an axis of one, XLA computes the moved rows
while it writes over them (XLA issue 49176; found with jaxlib 0.10.2, all of 0.11, and 0.12.0.1). *Slow.* A row of fewer than 256 bytes that a loop
writes into a large array costs as much as the whole array (JAX issue 40101; jaxlib 0.11.1).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

INSTEAD = "Write `jnp.concatenate([first, h[:-1]])` for `h.at[1:].set(h[:-1])` wherever a reshape may follow."
"""The same in a form that comes out right."""

SLOW = 20.0
"""How many times the seconds of a small array a large one may take: some two are usual, a copy of the whole array makes hundreds."""

_STEPS = 200
_SMALL = 1 << 10
_LARGE = 1 << 20

Moved = tuple[str, Callable[[jax.Array], jax.Array], np.ndarray, np.ndarray]


def moved_rows() -> Iterator[Moved]:
    """Yields programs that move rows of registers on: the program's text, the function, its argument, and NumPy's result."""
    h = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    moved = h.copy()
    summed = h.copy()
    shifted = np.concatenate(
        [
            np.zeros(
                (5, 4),
                np.float32,
            ),
            h[:3],
        ]
    )
    moved[1:] = h[:-1]
    summed[1:] += h[:-1]
    yield (
        "h.at[1:].set(h[:-1])[:, None]",
        lambda h: h.at[1:].set(h[:-1])[:, None],
        h,
        moved[:, None],
    )
    yield "h.at[1:].add(h[:-1])[None]", lambda h: h.at[1:].add(h[:-1])[None], h, summed[None]
    yield "a scan whose state is the register, flat", _carry_in_scan, h.ravel(), shifted.ravel()


def _carry_in_scan(flat: jax.Array) -> jax.Array:
    """A register that a scan carries as one axis, after five rows of zeros."""

    def step(
        flat: jax.Array,
        _: None,
    ) -> tuple[jax.Array, None]:
        # Rows move on by one and row 0 becomes zero: XLA may write a row before it was read.
        h = flat.reshape(8, 4)
        return h.at[1:].set(h[:-1]).at[0].set(0).reshape(-1), None

    return jax.lax.scan(step, flat, None, length=5)[0]


def wrongly_moved() -> list[str]:
    """Computes each program on this process's first CPU device and compares the result with NumPy's.

    Returns:
      The text of each program that comes out wrong.
    """
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return [
            text
            for text, function, rows, want in moved_rows()
            if not np.array_equal(
                np.asarray(jax.jit(function)(jnp.asarray(rows))), want
            )  # summed in NumPy's order, so to the bit
        ]


def advice_on_moved_rows() -> str:
    """Returns a possible explanation of numbers that differ on this process's CPU; empty where moved rows come out right."""
    if not wrongly_moved():
        return ""
    return f"XLA computes some arrays wrongly whose rows are moved on in place. {INSTEAD}"


def slowness_of_writes() -> float:
    """Measures the time of a loop's writes of single numbers into four megabytes, as a multiple of the time into four kilobytes."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        small, large = (_seconds(size) for size in (_SMALL, _LARGE))
    return large / small


def _seconds(size: int) -> float:
    """The time of a loop that writes single numbers into an array of this size; the array itself is made beforehand."""

    def write(i: jax.Array, array: jax.Array) -> jax.Array:
        # Each write depends on the one before, so that XLA can't join them.
        return array.at[i].set(array[i - 1] + 1)

    program = jax.jit(
        lambda array: jax.lax.fori_loop(1, _STEPS, write, array),
        donate_argnums=0,
    )
    # Compile first, so that only the loop is timed.
    array = jax.block_until_ready(program(jnp.zeros(size)))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        array = jax.block_until_ready(program(array))
        times.append(time.perf_counter() - start)
    return min(times)
